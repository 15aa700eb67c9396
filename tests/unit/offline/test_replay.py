"""Replay: the same bytes whatever the interleaving, and every difference found."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from eroica.bus import Incoming
from eroica.cli.main import main
from eroica.localizer.core import LocalizerCore
from eroica.offline.record import known_settings
from eroica.offline.recording import Manifest, read_manifest
from eroica.offline.replay import ReplayResult, replay
from eroica.offline.writer import RecordingWriter
from eroica.schemas.codec import encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import EroicaSettings, load_settings
from eroica.schemas.summaries import (
    CloseClass,
    Communicator,
    Expectation,
    FunctionPattern,
    Identity,
    Slot,
    StepRecord,
    Summary,
    SummaryTopicMessage,
)
from eroica.schemas.verdicts import Verdict
from eroica.streams.collect import GroupCore
from eroica.streams.opener import open_classes

pytestmark = pytest.mark.unit

SETTINGS = load_settings()
CULPRIT = 2
STEPS = range(100, 105)
CLASSES = {"pp0": "0-3", "pp1": "4-7"}
PARTITION = {"pp0": 3, "pp1": 11}


def request(number: int) -> ProfileRequest:
    return ProfileRequest(
        request=f"req-{number}",
        job="j",
        run_id="1",
        reason="degradation",
        start_step=STEPS[0],
        steps=len(STEPS),
        world_size=8,
        classes=CLASSES,
        issued_at_us=1_000_000 * number,
        deadline_ms=60_000,
    )


def summary(number: int, rank: int) -> Summary:
    """Rank 2 computes 60 ms longer in each step; the others of its group wait for it in the all-reduce."""
    cls = "pp0" if rank < 4 else "pp1"
    slow = rank == CULPRIT
    own, wait = (90_000.0, 2_000.0) if slow else (30_000.0 + rank, 62_000.0) if rank < 4 else (30_000.0 + rank, 2_000.0)
    slot = Slot(
        op="all_reduce",
        index=0,
        count=len(STEPS),
        step=list(STEPS),
        start_us=[own] * len(STEPS),
        duration_us=[wait] * len(STEPS),
    )
    who = Identity(job="j", run_id="1", request=f"req-{number}", cls=cls, rank=rank, world_size=8, host=f"h{rank // 2}")
    step_us = own + wait
    return Summary(
        who=who,
        first_step=STEPS[0],
        last_step=STEPS[-1],
        window_us=step_us * len(STEPS),
        ended_at_us=1_000_000 * number + 500_000 + rank,
        steps=[StepRecord(step=s, start_us=i * step_us, duration_us=step_us) for i, s in enumerate(STEPS)],
        functions=[
            FunctionPattern(
                name="count_words", category="python", beta=own / step_us, count=len(STEPS), exclusive_us=own * len(STEPS)
            )
        ],
        communicators=[Communicator(name="dp", kind="dp", ranks=CLASSES[cls], size=4, slots=[slot])],
    )


def messages(number: int, cls: str) -> list[SummaryTopicMessage]:
    """What one partition of summaries holds of one request."""
    opened = [o.message for o in open_classes(request(number))]
    first = [m for m in opened if isinstance(m, Expectation) and m.cls == cls]
    ranks = range(4) if cls == "pp0" else range(4, 8)
    if number == 2 and cls == "pp1":
        close = CloseClass(job="j", request="req-2", cls="pp1", closed_by="deadline")
        return [*first, summary(2, 4), summary(2, 5), close, summary(2, 6)]
    return [*first, *(summary(number, rank) for rank in ranks)]


def made(topic: str, partition: int, offset: int, value: bytes) -> Incoming:
    return Incoming(topic, partition, offset, b"j", value, (), 1_000 + offset)


def recording(directory: Path, *, spoil_verdict: bool = False, lose_verdict: bool = False) -> Manifest:
    """Two requests, the second with a class that silence closed, as the services would have written them."""
    kept = {name: getattr(SETTINGS, name).model_dump(mode="json") for name in ("detect", "group", "localize")}
    writer = RecordingWriter(directory, job="j", prefix="eroica.", settings=kept)
    localizer, offsets = LocalizerCore(SETTINGS.localize), itertools.count()
    verdicts = itertools.count()
    for number in (1, 2):
        writer.add("control", made("control", 0, number, encode(request(number))))
    for cls, partition in PARTITION.items():
        core, offset = GroupCore(SETTINGS.group), itertools.count(7)
        for number in (1, 2):
            for message in messages(number, cls):
                at = next(offset)
                writer.add("summaries", made("summaries", partition, at, encode(message)))
                for output in core.feed(message, InputRef("summaries", partition, at)):
                    assert isinstance(output.message, GroupChunk)
                    place = next(offsets)
                    writer.add("groups", made("groups", 5, place, encode(output.message)))
                    for said in localizer.feed(output.message, InputRef("groups", 5, place)):
                        assert isinstance(said.message, Verdict)
                        if lose_verdict:
                            continue
                        one = msgspec.structs.replace(said.message, headline="another") if spoil_verdict else said.message
                        writer.add("verdicts", made("verdicts", 1, next(verdicts), encode(one)))
    writer.close()
    return read_manifest(directory)


def again(directory: Path, seed: int | None = None, settings: EroicaSettings = SETTINGS) -> ReplayResult:
    return replay(directory, read_manifest(directory), settings, seed=seed)


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_every_interleaving_gives_the_recorded_bytes(tmp_path: Path, seed: int | None) -> None:
    recording(tmp_path / "rec")
    result = again(tmp_path / "rec", seed)
    assert [(one.request, one.state) for one in result.verdicts] == [("req-1", "same"), ("req-2", "same")]
    assert result.chunks.recorded == result.chunks.derived
    assert len(result.chunks.recorded) == 4
    assert result.refused == 0
    first, second = (one.verdict for one in result.verdicts)
    assert first.causes[0].suspects.ranks == str(CULPRIT)
    assert second.coverage.missing == "6-7"


def test_a_changed_verdict_is_found(tmp_path: Path) -> None:
    recording(tmp_path / "rec", spoil_verdict=True)
    assert [one.state for one in again(tmp_path / "rec").verdicts] == ["different", "different"]


def test_a_verdict_that_was_never_recorded_is_new(tmp_path: Path) -> None:
    recording(tmp_path / "rec", lose_verdict=True)
    assert [one.state for one in again(tmp_path / "rec").verdicts] == ["new", "new"]


def test_a_verdict_without_its_summaries_is_missing(tmp_path: Path) -> None:
    manifest = recording(tmp_path / "rec")
    kept = [entry for entry in manifest.files if entry.topic != "summaries"]
    result = replay(tmp_path / "rec", msgspec.structs.replace(manifest, files=kept), SETTINGS)
    assert [one.state for one in result.verdicts] == ["missing", "missing"]


def test_another_setting_gives_another_verdict(tmp_path: Path) -> None:
    recording(tmp_path / "rec")
    result = again(tmp_path / "rec", settings=load_settings(["localize.rules=paper"]))
    assert [one.state for one in result.verdicts] == ["different", "different"]


@pytest.mark.parametrize("setting", ["localize.rules=paper", "localize.outlier_z=4", "localize.min_effect=0.02"])
def test_a_verdict_under_other_settings_is_not_taken_for_the_published_one(tmp_path: Path, setting: str) -> None:
    recording(tmp_path / "rec")
    published = [one.verdict.verdict_id for one in again(tmp_path / "rec").verdicts]
    other = [one.verdict.verdict_id for one in again(tmp_path / "rec", settings=load_settings([setting])).verdicts]
    assert len({*published, *other}) == 4
    assert [one.verdict.verdict_id for one in again(tmp_path / "rec", settings=load_settings([setting])).verdicts] == other
    detect = again(tmp_path / "rec", settings=load_settings(["detect.window=30"]))
    assert [one.verdict.verdict_id for one in detect.verdicts] == published, "what does not judge does not count"


def test_unreadable_messages_are_refused_and_the_rest_counts(tmp_path: Path) -> None:
    recording(tmp_path / "rec")
    writer = RecordingWriter(tmp_path / "rec", job="j", prefix="eroica.", settings={})
    writer.add("summaries", made("summaries", 3, 900, b"\xff"))
    writer.add("summaries", made("summaries", 4, 1, b"{}"))
    writer.close()
    result = again(tmp_path / "rec")
    assert result.refused == 2
    assert [one.state for one in result.verdicts] == ["same", "same"]


def test_the_command_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "rec")
    assert main(["replay", str(tmp_path / "rec"), "--verify"]) == 0
    assert capsys.readouterr().out.count("against the recorded verdict: same") == 2
    assert main(["replay", str(tmp_path / "rec"), "--verify", "--json", "--set", "localize.rules=paper"]) == 1
    assert capsys.readouterr().out.count('"state":"different"') == 2
    assert main(["replay", str(tmp_path / "rec"), "--json"]) == 0
    lines = capsys.readouterr().out.encode().splitlines()
    assert lines == [one.raw for one in again(tmp_path / "rec").verdicts]


def test_the_settings_of_the_recording_count_before_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recording(tmp_path / "rec")
    monkeypatch.setenv("EROICA_LOCALIZE__RULES", "paper")
    assert main(["replay", str(tmp_path / "rec"), "--verify", "--json"]) == 0
    capsys.readouterr()


def test_settings_of_another_version_are_left_out_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "rec")
    path = tmp_path / "rec" / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    manifest["settings"]["localize"] |= {"of_tomorrow": 3, "rules": "tomorrows", "min_effect": 0.5}
    manifest["settings"]["new_section"] = {"x": 1}
    path.write_bytes(msgspec.json.encode(manifest))
    assert main(["replay", str(tmp_path / "rec"), "--json"]) == 0
    shown = capsys.readouterr().err
    assert "localize.of_tomorrow is not known here and left out" in shown
    assert "localize.rules is not one of eroica, paper, guide, as it must be here" in shown
    known, notes = known_settings(manifest["settings"])
    assert known["localize"]["min_effect"] == 0.5 and "rules" not in known["localize"] and len(notes) == 2
    assert main(["replay", str(tmp_path / "rec"), "--json", "--set", "localize.of_tomorrow=3"]) == 2, "but not from the caller"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_nothing_to_verify_with_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]) -> None:
    recording(tmp_path / "rec", lose_verdict=True)
    assert main(["replay", str(tmp_path / "rec"), "--verify", *form]) == 3
    assert "no verdict was recorded, so there is nothing to verify with" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "rec"), *form]) == 0
