"""Each scenario of the gallery, written as a recording and replayed: the verdict is what the scenario's own labels say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import eroica.simulator
from eroica.cli.main import main
from eroica.offline.recording import read_manifest
from eroica.offline.replay import replay
from eroica.offline.score import score
from eroica.schemas.settings import load_settings
from eroica.simulator.simulation import Simulation
from eroica.simulator.source import parse_scenario
from eroica.simulator.truth import labels as labels_of

pytestmark = pytest.mark.unit

LARGE = {"hundred-thousand"}
"""A minute of work: the benchmarks' business."""
GALLERY = sorted(path.stem for path in (Path(next(iter(eroica.simulator.__path__))) / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("name", [name for name in GALLERY if name not in LARGE])
def test_the_verdict_is_what_the_labels_say(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", name, "--out", str(tmp_path / "rec")]) == 0
    labels = json.loads((tmp_path / "rec" / "labels.json").read_text())
    result = replay(tmp_path / "rec", read_manifest(tmp_path / "rec"), load_settings())
    verdicts = {one.request: one.verdict for one in result.verdicts}
    told = score(verdicts.pop(labels["request"]), labels)
    assert told.right and not told.waiter
    assert (told.found, told.of) == (len(labels["causes"]), len(labels["causes"]))
    # What was profiled before the fault set in accuses nobody.
    assert {verdict.status for verdict in verdicts.values()} <= {"no_fault_found"}
    capsys.readouterr()


@pytest.mark.parametrize(("hosts", "others"), [("0-1", ["link"]), ("0-2", [])])
def test_a_fabric_that_is_slow_between_two_hosts_is_their_link(hosts: str, others: list[str]) -> None:
    fault = f"{{fault: ecmp_collision, at: {{hosts: '{hosts}'}}}}"
    text = f"job: {{world: 16, framework: fsdp}}\ncluster: {{gpus_per_host: 4}}\nfaults: [{fault}]\n"
    [cause] = labels_of(Simulation(parse_scenario(text)), "req")["causes"]
    assert (cause["class"], cause["alternatives"]) == ("fabric", others)
