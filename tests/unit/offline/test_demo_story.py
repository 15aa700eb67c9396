"""What the demo tells, and when it calls a verdict right."""

from __future__ import annotations

import msgspec
import pytest

from eroica.offline.demo.narrate import Narrator
from eroica.offline.demo.scenario import SETTINGS, Scenario, mistakes, parse_fault
from eroica.schemas.base import Message
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import UsageError
from eroica.schemas.groups import GroupChunk
from eroica.schemas.iterations import StepPartial
from eroica.schemas.jobs import JobAnnouncement, RankInfo
from eroica.schemas.settings import load_settings
from eroica.schemas.summaries import Expectation, Identity, Summary, SummaryError
from eroica.schemas.verdicts import (
    Action,
    Cause,
    Coverage,
    IsolationGroup,
    Provenance,
    RequestRef,
    Suspects,
    Verdict,
    Waiters,
)

pytestmark = pytest.mark.unit


def verdict(*, ranks: str = "2", cls: str = "worker", status: str = "culprit_found", waiters: str = "0-1,3") -> Verdict:
    cause = Cause(
        class_=cls,  # type: ignore[arg-type]  # the table below gives literals
        suspects=Suspects(ranks=ranks),
        isolation_group=IsolationGroup(kind="dp", ranks="0-3"),
        explains=0.9,
        confidence=0.9,
        action=Action(kind="check", text="look"),
    )
    return Verdict(
        verdict_id="v",
        job="demo",
        request=RequestRef(id="r", reason="degradation", steps=(1, 2)),
        status=status,  # type: ignore[arg-type]
        headline="h",
        event_time="t",
        causes=[cause] if ranks else [],
        waiters=Waiters(ranks=waiters),
        coverage=Coverage(expected=4, received=4),
        provenance=Provenance(settings_digest="d", software="0", rules="eroica"),
    )


@pytest.mark.parametrize(
    ("fault", "one", "wrong"),
    [
        ("slow-data", verdict(), ""),
        ("slow-host", verdict(), ""),
        ("slow-data", verdict(ranks="1"), "accuses rank 1 in place of 2"),
        ("slow-data", verdict(ranks="2-3"), "accuses ranks 2-3"),
        ("slow-data", verdict(cls="host"), "calls it host"),
        ("slow-data", verdict(waiters="0"), "rank 0 wait"),
        ("slow-data", verdict(ranks="", status="no_fault_found"), "status is no_fault_found"),
        ("none", verdict(ranks="", status="no_fault_found"), ""),
        ("none", verdict(ranks="", status="insufficient_data"), ""),
        ("none", verdict(), "accuses rank 2"),
        ("none", verdict(ranks="", status="culprit_found"), "culprit was found"),
    ],
)
def test_a_verdict_is_right_or_it_is_said_why_not(fault: str, one: Verdict, wrong: str) -> None:
    found = mistakes(parse_fault(fault, 2, 4), one)
    assert wrong in "; ".join(found)
    assert bool(found) is bool(wrong)


@pytest.mark.parametrize(("ranks", "split"), [(3, (2, 1)), (4, (2, 2)), (5, (3, 2))])
def test_ranks_stand_on_two_hosts(ranks: int, split: tuple[int, int]) -> None:
    assert Scenario(fault_rank=0, ranks=ranks).ranks_of_host == split


@pytest.mark.parametrize(
    ("fault", "rank", "ranks"), [("x", 0, 4), ("none", 4, 4), ("none", -1, 4), ("none", 0, 1), ("none", 0, 99)]
)
def test_what_cannot_be_played_is_refused(fault: str, rank: int, ranks: int) -> None:
    with pytest.raises(UsageError):
        parse_fault(fault, rank, ranks)


def test_the_settings_of_the_demo_are_settings() -> None:
    assert load_settings(SETTINGS).detect.window == 20


WHO = Identity(job="demo", run_id="1", request="r", cls="all", rank=1, world_size=4, host="host-a")
REQUEST = ProfileRequest(
    request="r",
    job="demo",
    run_id="1",
    reason="degradation",
    start_step=100,
    steps=5,
    world_size=4,
    classes={"all": "0-3"},
    issued_at_us=1,
    deadline_ms=1,
    detail="mean 110 ms against 45 ms",
)
PARTIAL = StepPartial(
    job="demo",
    run_id="1",
    shard=0,
    ranks_per_shard=8,
    world_size=4,
    first_step=10,
    count=[4, 4],
    mean_us=[40_000.0, 60_000.0],
    max_us=[1, 1],
    max_rank=[0, 0],
    event_time_us=10_000_000,
)
SUMMARY = Summary(who=WHO, first_step=100, last_step=104, window_us=1.0, ended_at_us=1)
CHUNK = GroupChunk(
    job="demo",
    run_id="1",
    request=REQUEST,
    cls="all",
    classes=["all"],
    chunk=0,
    chunks=1,
    closed_by="complete",
    expected="0-3",
    received="0-2",
)
HOST = JobAnnouncement(job="demo", run_id="1", host="host-a", world_size=4, ranks=[RankInfo(rank=0), RankInfo(rank=1)])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (PARTIAL, "step 11: 50 ms a step, 20.0 steps/s"),
        (HOST, "host-a announces ranks 0-1 of 4"),
        (REQUEST, "profile request (degradation), 5 steps from 100 on 4 ranks: mean 110 ms against 45 ms"),
        (SUMMARY, "summary 1/4: rank 1 on host-a, steps 100–104"),
        (SummaryError(who=WHO, error="out of\nspace", ended_at_us=1), "summary 1/4: rank 1 could not: out of space"),
        (CHUNK, "class all closed (complete): 3 of 4 summaries compared now"),
    ],
)
def test_each_thing_is_told_once(message: Message, says: str) -> None:
    narrator = Narrator()
    assert narrator.feed(message) == [says]
    assert narrator.feed(message) == []


def test_silent_messages_are_remembered() -> None:
    narrator = Narrator()
    assert narrator.feed(Expectation(cls="all", ranks="0-1", classes=["all"], request=REQUEST)) == []
    assert narrator.feed(SUMMARY) == ["summary 1/2: rank 1 on host-a, steps 100–104"]
    assert narrator.feed(verdict()) == []
    assert set(narrator.verdicts) == {"r"}


def test_the_pace_is_told_every_few_seconds_only() -> None:
    narrator = Narrator()
    told = 0
    for second in range(10):
        later = msgspec.structs.replace(PARTIAL, first_step=10 + 2 * second, event_time_us=(10 + second) * 1_000_000)
        told += len(narrator.feed(later))
    assert told == 4
    assert narrator.last_step == 29
