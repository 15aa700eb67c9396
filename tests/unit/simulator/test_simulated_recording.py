"""``eroica simulate`` writes recordings that ``eroica replay`` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eroica.cli.main import main
from eroica.offline.recording import read_file, read_manifest, verify
from eroica.schemas.codec import decode, encode

pytestmark = pytest.mark.unit

TEXT = (
    "name: small\njob: {world: 4}\nfaults: [{fault: slow_gpu_clock, at: {ranks: '2'}, dose: 2}]\nhistory: {before: 4, after: 9}\n"
)


def _simulate(path: Path, *words: str) -> int:
    scenario = path.parent / "small.yaml"
    scenario.write_text(TEXT)
    return main(["simulate", str(scenario), "--out", str(path), *words])


def test_a_recording_is_whole_and_holds_the_codecs_bytes(tmp_path: Path) -> None:
    assert _simulate(tmp_path / "one") == 0
    manifest = read_manifest(tmp_path / "one")
    verify(tmp_path / "one", manifest)
    topics = set()
    for entry in manifest.files:
        for record in read_file(tmp_path / "one", entry):
            assert record.value == encode(decode(entry.topic, record.value))
            topics.add(entry.topic)
    assert topics == {"jobs", "iterations", "control", "summaries"}
    labels = json.loads((tmp_path / "one" / "labels.json").read_text())
    assert labels["causes"][0]["suspects"]["ranks"] == "2"


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("one", "3"), ("two", "3"), ("three", "4")):
        assert _simulate(tmp_path / name, "--seed", seed) == 0
    files = {n: {p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two", "three")}
    assert files["one"] == files["two"]
    assert files["one"] != files["three"]


def test_replay_comes_to_a_verdict_on_the_culprit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _simulate(tmp_path / "one") == 0
    capfd.readouterr()
    assert main(["replay", str(tmp_path / "one"), "--json"]) == 0
    verdict = json.loads(capfd.readouterr().out.splitlines()[0])
    assert verdict["causes"][0]["suspects"]["ranks"] == "2"


def test_what_was_never_recorded_is_not_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _simulate(tmp_path / "one") == 0
    capfd.readouterr()
    assert main(["replay", str(tmp_path / "one")]) == 0
    told = capfd.readouterr()
    assert "against the recorded verdict" not in told.out + told.err
    assert "none was recorded to compare with" in told.err
    assert "planted: slow_gpu_clock at rank 2, host node-0; found: right" in told.out
    assert "the request is the simulator's own" in told.err and "requests of detect" not in told.err


@pytest.mark.parametrize("command", ["diagnose", "summarize"])
@pytest.mark.parametrize("name", ["", "manifest.json"])
def test_a_recording_is_no_folder_of_traces(name: str, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _simulate(tmp_path / "one") == 0
    assert main([command, str(tmp_path / "one" / name)]) == 2
    assert (
        f"this is a recording, not a folder of traces. judge it with: eroica replay {tmp_path / 'one'}" in capfd.readouterr().err
    )


def test_fields_and_settings_go_through_set(tmp_path: Path) -> None:
    assert _simulate(tmp_path / "one", "--set", "job.world=8", "--set", "localize.rules=paper") == 0
    assert json.loads((tmp_path / "one" / "labels.json").read_text())["world"] == 8
    assert read_manifest(tmp_path / "one").settings["localize"]["rules"] == "paper"


@pytest.mark.parametrize(
    "words",
    [
        ["simulate"],
        ["simulate", "healthy"],
        ["simulate", "no-such-scenario", "--out", "x"],
        ["simulate", "healthy", "--out", "x", "--bootstrap", "localhost:1"],
        ["simulate", "missing.yaml", "--out", "x"],
    ],
)
def test_wrong_use_ends_with_two(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2


def test_a_full_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "mine.txt").write_text("x")
    assert _simulate(tmp_path / "one") == 2
    assert [p.name for p in (tmp_path / "one").iterdir()] == ["mine.txt"]


def test_the_list_names_faults_and_gallery(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)
    assert "slow-gpu" in listed["scenarios"]
    assert {"nic_down", "hang_before"} <= set(listed["faults"])
