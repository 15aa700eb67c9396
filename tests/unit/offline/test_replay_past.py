"""A replay judges with the healthy past that was known, and where it was not recorded, with what the recording itself shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from eroica.bus import Incoming
from eroica.cli.main import main
from eroica.localizer.core import LocalizerCore
from eroica.offline.explain import explain_recorded
from eroica.offline.recording import Manifest, read_manifest
from eroica.offline.replay import ReplayResult, replay
from eroica.offline.writer import RecordingWriter
from eroica.schemas.codec import encode
from eroica.schemas.control import ProfileRequest, Reason
from eroica.schemas.groups import GroupChunk
from eroica.schemas.memory import Baseline
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import load_settings
from eroica.schemas.summaries import Communicator, Expectation, FunctionPattern, Identity, Slot, StepRecord, Summary
from eroica.schemas.verdicts import Verdict
from eroica.streams.collect import GroupCore
from eroica.streams.opener import open_classes

pytestmark = pytest.mark.unit

SETTINGS = load_settings()
STEPS = range(100, 105)
CLASSES = {"pp0": "0-3", "pp1": "4-7"}
SEEDS = [None, *range(6)]
Ask = tuple[str, Reason, float]
"""Id, reason, and own time per step, µs; asked for in this order, an hour apart."""
STORY: list[Ask] = [
    ("req-start", "scheduled", 30_000.0),
    ("req-alarm", "degradation", 60_000.0),
    ("req-hand", "manual", 60_000.0),
    ("req-again", "degradation", 60_000.0),
]
"""A healthy start; then the whole job is slow, and stays so while somebody profiles it."""


def request(ask: Ask, at: int) -> ProfileRequest:
    return ProfileRequest(
        request=ask[0], job="j", run_id="1", reason=ask[1], start_step=STEPS[0], steps=len(STEPS), world_size=8, classes=CLASSES,
        issued_at_us=at * 3_600_000_000, deadline_ms=60_000,
    )  # fmt: skip


def summary(of: ProfileRequest, cls: str, rank: int, own: float) -> Summary:
    own, wait = own + rank % 4, 2_000.0
    slot = Slot(
        op="all_reduce", index=0, count=len(STEPS), step=list(STEPS), start_us=[own] * len(STEPS), duration_us=[wait] * len(STEPS)
    )
    step_us = own + wait
    return Summary(
        who=Identity(job="j", run_id="1", request=of.request, cls=cls, rank=rank, world_size=8, host=f"h{rank // 2}"),
        first_step=STEPS[0],
        last_step=STEPS[-1],
        window_us=step_us * len(STEPS),
        ended_at_us=of.issued_at_us + 500_000 + rank,
        steps=[StepRecord(step=s, start_us=i * step_us, duration_us=step_us) for i, s in enumerate(STEPS)],
        functions=[
            FunctionPattern(
                name="forward", category="python", beta=own / step_us, count=len(STEPS), exclusive_us=own * len(STEPS)
            )
        ],
        communicators=[Communicator(name="dp", kind="dp", ranks=CLASSES[cls], size=4, slots=[slot])],
    )


def write(
    directory: Path,
    *,
    topics: str = "",
    learn: bool = True,
    order: Callable[[int], int] = int,
    one_partition: bool = False,
    lost: tuple[str, str] = ("", ""),
) -> list[Verdict]:
    """What a localizer that was there all the time would have left, but for *topics*; returns its verdicts.

    :param order: place of a request → time of its records, which a replay without a seed goes by.
    :param one_partition: of all groups, in place of one a request.
    :param lost: request and class of summaries that never came.
    """
    kept = {name: getattr(SETTINGS, name).model_dump(mode="json") for name in ("detect", "group", "localize")}
    writer = RecordingWriter(directory, job="j", prefix="eroica.", settings=kept)
    localizer, verdicts = LocalizerCore(SETTINGS.localize, learn=learn), []
    offsets = {name: itertools.count() for name in ("control", "summaries", "groups", "verdicts", "baselines")}

    def put(topic: str, partition: int, at: int, message: msgspec.Struct) -> InputRef:
        offset = next(offsets[topic])
        if topic not in topics.split():
            writer.add(topic, Incoming(topic, partition, offset, b"j", encode(message), (), at))  # type: ignore[arg-type]
        return InputRef(topic, partition, offset)

    for number, ask in enumerate(STORY, 1):
        asked, at = request(ask, number), order(number)
        put("control", 0, at, asked)
        for place, cls in enumerate(CLASSES):
            if (ask[0], cls) == lost:
                continue
            core = GroupCore(SETTINGS.group)
            opened = [o.message for o in open_classes(asked) if isinstance(o.message, Expectation) and o.message.cls == cls]
            ranks = range(4 * place, 4 * place + 4)
            for message in [*opened, *(summary(asked, cls, rank, ask[2]) for rank in ranks)]:
                ref = put("summaries", 2 * number + place, at, message)
                for output in core.feed(message, ref):
                    assert isinstance(output.message, GroupChunk)
                    where = put("groups", 5 if one_partition else number, at, output.message)
                    for said in localizer.feed(output.message, where):
                        put("verdicts" if isinstance(said.message, Verdict) else "baselines", 0, at, said.message)
                        verdicts += [said.message] if isinstance(said.message, Verdict) else []
    writer.close()
    return verdicts


def again(directory: Path, seed: int | None = None) -> ReplayResult:
    return replay(directory, read_manifest(directory), SETTINGS, seed=seed)


def named(result: ReplayResult) -> dict[str, tuple[str, str]]:
    return {one.request: (one.state, one.verdict.provenance.inputs.get("baselines", "")) for one in result.verdicts}


def test_the_story_is_what_it_says(tmp_path: Path) -> None:
    verdicts = write(tmp_path / "rec")
    assert [(v.request.id, v.status, v.provenance.inputs.get("baselines")) for v in verdicts] == [
        ("req-start", "no_fault_found", None),
        ("req-alarm", "shared_cause", "req-start"),
        ("req-hand", "shared_cause", "req-start"),
        ("req-again", "shared_cause", "req-start"),
    ]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("topics", ["", "baselines", "baselines groups"])
def test_the_recorded_bytes_come_again_whatever_the_order(tmp_path: Path, topics: str, backwards: bool) -> None:
    write(tmp_path / "rec", topics=topics, order=(lambda at: 100 - at) if backwards else int)
    for seed in SEEDS:
        assert {state for state, _ in named(again(tmp_path / "rec", seed)).values()} == {"same"}, (topics, seed)
    assert main(["replay", str(tmp_path / "rec"), "--verify", "--interleave", "3"]) == 0


@pytest.mark.parametrize("lost", [("", ""), ("req-alarm", "pp1"), ("req-start", "pp0")])
def test_requests_hours_apart_on_one_partition_cost_each_other_no_class(tmp_path: Path, lost: tuple[str, str]) -> None:
    """A class counts as lost only where it was lost."""
    online = write(tmp_path / "rec", one_partition=True, lost=lost)
    assert len(online) == 4
    assert [v.request.id for v in online if any("never closed" in note for note in v.coverage.notes)] == [
        r for r in lost[:1] if r
    ]
    for seed in SEEDS:
        assert [state for state, _ in named(again(tmp_path / "rec", seed)).values()] == ["same"] * 4


@pytest.mark.parametrize("topics", ["verdicts", "verdicts baselines"])
def test_without_recorded_verdicts_the_latest_healthy_profile_before_a_request_serves(tmp_path: Path, topics: str) -> None:
    online = write(tmp_path / "rec", topics=topics, order=lambda at: 100 - at)
    for seed in SEEDS:
        result = again(tmp_path / "rec", seed)
        assert {one.request: one.raw for one in result.verdicts} == {v.request.id: encode(v) for v in online}, seed
        assert {one.state for one in result.verdicts} == {"new"}


def test_a_verdict_that_knew_of_no_past_is_judged_without_one_again(tmp_path: Path) -> None:
    write(tmp_path / "rec", learn=False)
    assert {baseline.topic for baseline in read_manifest(tmp_path / "rec").files} >= {"baselines"}
    for seed in SEEDS:
        found = named(again(tmp_path / "rec", seed))
        assert found["req-alarm"] == found["req-again"] == ("same", "")


def test_a_profile_that_is_named_but_not_recorded_is_told(tmp_path: Path) -> None:
    write(tmp_path / "rec", topics="baselines groups")
    manifest = read_manifest(tmp_path / "rec")
    lost = [entry for entry in manifest.files if entry.topic == "summaries" and entry.partition in (2, 3)]
    assert len(lost) == 2
    kept = msgspec.structs.replace(manifest, files=[entry for entry in manifest.files if entry not in lost])
    result = replay(tmp_path / "rec", kept, SETTINGS)
    assert named(result)["req-alarm"][0] == "different"
    assert any("healthy profile req-start, which is not in the recording" in note for note in result.notes)


def test_other_settings_make_no_past_on_the_way(tmp_path: Path) -> None:
    """A profile by hand that looks healthy to other settings may serve later requests, in every order alike."""
    write(tmp_path / "rec", topics="verdicts")
    lenient = load_settings(["localize.min_effect=0.9"])
    found = {
        tuple(one.raw for one in replay(tmp_path / "rec", read_manifest(tmp_path / "rec"), lenient, seed=seed).verdicts)
        for seed in SEEDS
    }
    assert len(found) == 1


def test_evidence_against_the_past_can_be_made_again(tmp_path: Path) -> None:
    write(tmp_path / "rec", topics="baselines")
    manifest: Manifest = read_manifest(tmp_path / "rec")
    alarm = next(one.verdict for one in again(tmp_path / "rec").verdicts if one.request == "req-alarm")
    explained = explain_recorded(tmp_path / "rec", manifest, SETTINGS, alarm.verdict_id)
    assert explained.state == "same" and explained.wrong == 0
    assert any("req-start" in item.evidence.compared_with for item in explained.items)


def test_baselines_that_cannot_be_read_or_cannot_be_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "rec")
    writer = RecordingWriter(tmp_path / "rec", job="j", prefix="eroica.", settings={})
    odd = Baseline(job="j", cls="pp0", request="req-odd", event_time_us=3_700_000_000, step_us=1.0, ranks="0-9")
    for offset, value in enumerate((b"\xff", b"{}", encode(odd)), 900):
        writer.add("baselines", Incoming("baselines", 1, offset, b"j", value, (), 1))
    writer.close()
    assert {state for state, _ in named(again(tmp_path / "rec")).values()} == {"same"}
