"""``eroica replay --explain``: the table behind each item of evidence of a recorded verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eroica.cli.main import main
from eroica.offline.explain import explain_recorded
from eroica.offline.recording import read_manifest
from eroica.schemas.errors import UsageError
from eroica.schemas.settings import load_settings

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    assert main(["simulate", "slow-storage", "--out", str(folder / "rec")]) == 0
    return folder / "rec"


def test_last_and_the_id_are_the_same_verdict(recording: Path) -> None:
    manifest, settings = read_manifest(recording), load_settings()
    last = explain_recorded(recording, manifest, settings, "last")
    named = explain_recorded(recording, manifest, settings, last.verdict.verdict_id)
    assert (named.verdict, named.items) == (last.verdict, last.items)
    assert [i.evidence for i in last.items] == [e for cause in last.verdict.causes for e in cause.evidence]
    assert (last.wrong, last.state) == (0, "new")
    with pytest.raises(UsageError, match=last.verdict.verdict_id):
        explain_recorded(recording, manifest, settings, "verdict-unknown")


def test_the_command_prints_tables_that_a_person_can_redo(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recording), "--explain", "last"]) == 0
    shown = capsys.readouterr()
    assert "→ rank" in shown.out
    assert "median of the peers" in shown.out
    assert "DIFFERENT" not in shown.out
    assert shown.out.count("the same") == shown.out.count("made again")
    assert main(["replay", str(recording), "--explain", "last", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == shown.out.count("made again")
    for line in lines:
        assert line["agrees"] is True
        assert line["again"]["value"] == pytest.approx(line["evidence"]["value"], rel=2e-3)
        assert all(len(row) == len(line["columns"]) for row in line["rows"])


def test_a_median_of_the_table_is_what_was_expected(recording: Path) -> None:
    found = explain_recorded(recording, read_manifest(recording), load_settings(), "last")
    item = next(i for i in found.items if i.evidence.metric == "exposed communication per step")
    assert item.explanation is not None
    [median] = [row for row in item.explanation.rows if row[0] == "median of the peers"]
    [suspect] = [row for row in item.explanation.rows if row[0].startswith("→")]
    assert float(median[1]) == pytest.approx(item.evidence.expected, rel=5e-4), "a table has four digits"
    assert float(suspect[1]) == pytest.approx(item.evidence.value, rel=5e-4)


@pytest.mark.parametrize("words", [["--verify"], ["--to-kafka"], ["--interleave", "3"]])
def test_explaining_goes_with_nothing_else(recording: Path, words: list[str]) -> None:
    assert main(["replay", str(recording), "--explain", "last", *words]) == 2


def test_figures_that_come_out_otherwise_fail_the_command(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with a table that was registered for another formula."""
    from eroica.localizer.explain import registry, times

    monkeypatch.setitem(registry._TABLES, ("eroica/own-time", "own time per step"), times.communication)
    assert main(["replay", str(recording), "--explain", "last"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_a_recorded_past_explains_what_grew_since(tmp_path: Path) -> None:
    """As recorded by a localizer that had judged the healthy profile long before the recording begins."""
    from eroica.bus import Incoming
    from eroica.localizer.past import baselines_of
    from eroica.offline.recording import read_file
    from eroica.offline.replay import replay
    from eroica.offline.writer import RecordingWriter
    from eroica.schemas.codec import encode

    assert main(["simulate", "regression", "--out", str(tmp_path / "whole")]) == 0
    manifest, kept = read_manifest(tmp_path / "whole"), []
    replay(tmp_path / "whole", manifest, load_settings(), watch=kept.append)
    healthy, broken = sorted(kept, key=lambda one: one.verdict.event_time)
    writer = RecordingWriter(tmp_path / "later", job=manifest.job, prefix=manifest.prefix, settings=manifest.settings)
    for offset, baseline in enumerate(baselines_of(healthy.frame)):
        writer.add("baselines", Incoming("baselines", 0, offset, b"k", encode(baseline), (), offset))
    for entry in manifest.files:
        for record in read_file(tmp_path / "whole", entry):
            if entry.topic != "summaries" or broken.verdict.request.id.encode() in (record.value or b""):
                writer.add(entry.topic, record)
    writer.close()
    found = explain_recorded(tmp_path / "later", read_manifest(tmp_path / "later"), load_settings(), "last")
    assert found.verdict == broken.verdict
    assert "whole_job" in [cause.class_ for cause in found.verdict.causes]
    assert found.wrong == 0
