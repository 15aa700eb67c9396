"""A replay of a simulation is held against what the simulator planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eroica.cli.main import main

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]

SLOW = """\
job: {name: small, world: 8, model: {layers_per_stage: 2}}
faults: [{fault: slow_gpu_clock, at: {ranks: 2}, dose: 1.3}]
"""
HEALTHY = "job: {name: small, world: 8, model: {layers_per_stage: 2}}\n"


def simulate(folder: Path, text: str, **labels: Any) -> str:
    """A recording of the scenario *text*, its labels overwritten with *labels*."""
    (folder / "job.yaml").write_text(text)
    recording = folder / "recording"
    assert main(["simulate", str(folder / "job.yaml"), "--out", str(recording)]) == 0
    path = recording / "labels.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | labels))
    return str(recording)


def cause(ranks: str) -> dict[str, Any]:
    return {"class": "worker", "fault": "slow_hbm", "suspects": {"ranks": ranks, "hosts": [], "links": [], "stages": []}}


CASES: list[tuple[str, dict[str, Any], list[str], str, str, int]] = [
    (SLOW, {}, [], "slow_gpu_clock at rank 2, host node-0", "right", 0),
    (SLOW, {"causes": [cause("5")]}, [], "slow_hbm at rank 5", "wrong", 1),
    (SLOW, {"causes": [cause("2"), cause("5")]}, [], "slow_hbm at rank 2 and slow_hbm at rank 5", "right, 1 of 2 named", 0),
    (SLOW, {"causes": [], "waiters": ""}, [], "nothing", "wrong", 1),
    (SLOW, {}, ["--set", "localize.min_effect=0.9"], "slow_gpu_clock at rank 2, host node-0", "not named", 1),
    (SLOW, {"request": "req-of-another-time"}, [], "slow_gpu_clock at rank 2, host node-0", "not named", 1),
    (HEALTHY, {}, [], "nothing", "right", 0),
]


@pytest.mark.parametrize(("text", "labels", "options", "planted", "found", "code"), CASES)
def test_one_line_says_whether_it_was_found(
    text: str,
    labels: dict[str, Any],
    options: list[str],
    planted: str,
    found: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = simulate(tmp_path, text, **labels)
    capsys.readouterr()
    assert main(["replay", recording, *options]) == 0, "nobody asked to fail on it"
    assert f"  planted: {planted}; found: {found}\n" in capsys.readouterr().out
    assert main(["replay", recording, "--verify", "--json", *options]) == code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert " and ".join(last["planted"]) == ("" if planted == "nothing" else planted)
    assert last["found"] == found.partition(",")[0]


def test_labels_that_are_not_the_simulators_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = simulate(tmp_path, HEALTHY)
    (Path(recording) / "labels.json").write_text("[]")
    assert main(["replay", recording]) == 3
    assert "labels.json: the labels of the simulator hold a list of causes" in capsys.readouterr().err
