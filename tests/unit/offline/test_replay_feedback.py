"""Feedback is an input like any other: a replay counts the votes that the verdict had counted, and no later ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eroica.bus import Incoming
from eroica.cli.main import main
from eroica.localizer.feedback import FeedbackTable
from eroica.offline.recording import read_file, read_manifest
from eroica.offline.replay import replay
from eroica.offline.writer import RecordingWriter
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.memory import Feedback
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import load_settings
from eroica.schemas.verdicts import Verdict

pytestmark = pytest.mark.unit

SCENARIO = "name: small\njob: {world: 8}\nfaults: [{fault: slow_gpu_clock, at: {ranks: '2'}, dose: 2}]\n"
REMEDY = "clock.cooling"
AGES_DAYS = (200, 1, 1, -1)
"""Before the request; the last vote is of the day after it."""


def simulated(folder: Path) -> Path:
    (folder / "small.yaml").write_text(SCENARIO)
    assert main(["simulate", str(folder / "small.yaml"), "--out", str(folder / "rec")]) == 0
    return folder / "rec"


def add(recording: Path, topic: str, partition: int, offset: int, value: bytes) -> None:
    manifest = read_manifest(recording)
    writer = RecordingWriter(recording, job=manifest.job, prefix=manifest.prefix, settings=manifest.settings)
    writer.add(topic, Incoming(topic, partition, offset, b"x", value, (), 1_000 + offset))
    writer.close()


def voted(recording: Path) -> list[Feedback]:
    """One vote a line of ``AGES_DAYS``, each of another verdict; put into the recording."""
    [entry] = [e for e in read_manifest(recording).files if e.topic == "control"]
    issued_us = json.loads(next(iter(read_file(recording, entry))).value or b"")["issued_at_us"]
    votes = []
    for number, days in enumerate(AGES_DAYS):
        vote = Feedback(
            job="another", verdict_id=f"v{number}", helped=True, remedy=REMEDY, event_time_us=issued_us - days * 86_400_000_000
        )
        add(recording, "feedback", 3, 40 + number, encode(vote))
        votes.append(vote)
    return votes


def remedies(verdict: Verdict) -> dict[str, int]:
    return {r.id: r.helped for r in verdict.causes[0].action.remedies}


def test_without_a_recorded_verdict_votes_up_to_the_request_count(tmp_path: Path) -> None:
    recording = simulated(tmp_path)
    voted(recording)
    [one] = replay(recording, read_manifest(recording), load_settings()).verdicts
    assert remedies(one.verdict)[REMEDY] == 2  # not the one that is too old, nor the one from the day after


@pytest.mark.parametrize("read", [2, 3, 4])
def test_with_one_exactly_the_votes_that_it_had_read(tmp_path: Path, read: int) -> None:
    recording = simulated(tmp_path)
    bare = replay(recording, read_manifest(recording), load_settings()).verdicts[0].verdict
    votes, table = voted(recording), FeedbackTable()
    for offset, vote in enumerate(votes[:read], 40):
        table.feed(vote, InputRef("feedback", 3, offset))
    live = _judged_with(recording, table)
    assert remedies(live)[REMEDY] == read - 1
    assert live.verdict_id == bare.verdict_id
    add(recording, "verdicts", 0, 0, encode(live))
    for seed in (None, 1, 2):
        [one] = replay(recording, read_manifest(recording), load_settings(), seed=seed).verdicts
        assert one.state == "same"
    assert main(["replay", str(recording), "--verify"]) == 0


def _judged_with(recording: Path, table: FeedbackTable) -> Verdict:
    """The verdict of a localizer that has read *table*."""
    from eroica.localizer.core import LocalizerCore
    from eroica.schemas.codec import decode
    from eroica.streams.collect import GroupCore

    settings = load_settings()
    core = LocalizerCore(settings.localize, listen=lambda request: table.heard(request.issued_at_us))
    groups: dict[int, GroupCore] = {}
    for entry in read_manifest(recording).files:
        for record in read_file(recording, entry) if entry.topic == "summaries" else ():
            group = groups.setdefault(entry.partition, GroupCore(settings.group))
            for made in group.feed(decode("summaries", record.value), InputRef("summaries", entry.partition, record.offset)):  # type: ignore[arg-type]
                for output in core.feed(made.message, InputRef("groups", 0, 0)):  # type: ignore[arg-type]
                    if isinstance(output.message, Verdict):
                        return decode_as(Verdict, encode(output.message))
    raise AssertionError("no verdict")
