"""When a launch is announced, and which of two launches of one name is refused."""

from __future__ import annotations

from typing import Any

import pytest
from agent_unit_kit import MONO_NS, NOW_US, hello

from eroica.producers.agent.announce import FIRST_LOOK_US, OVERLAP_US, Announcer, Row, row_of
from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hoststate import HostState
from eroica.producers.agent.launches import GONE_LINGER_US, PROCESS_GONE
from eroica.producers.hook.wire import GOODBYE, Event
from eroica.schemas.iterations import IterationBatch
from eroica.schemas.jobs import JobAnnouncement

pytestmark = pytest.mark.unit
SECOND = 1_000_000
INTERVAL = 30 * SECOND


class Host:
    """A host's state and announcer, at a time that the test moves."""

    def __init__(self) -> None:
        self.state = HostState("h", 1_024, Counters())
        self.announcer = Announcer("h", INTERVAL)
        self.now = NOW_US

    def hello(self, pid: int = 100, rank: int = 0, **fields: Any) -> None:
        self.state.hello(hello(pid, rank, **fields), self.now, MONO_NS)

    def look(self, *rows: Row) -> None:
        jobs = self.announcer.jobs_to_look_up(self.state.runs.values(), self.now)
        self.announcer.looked_up(jobs, rows, self.state.runs)

    def due(self) -> list[JobAnnouncement]:
        found = []
        for output in self.announcer.due(self.state.runs, self.now):
            assert isinstance(output.message, JobAnnouncement)
            assert output.key == f"{output.message.job}/h"
            found.append(output.message)
        return found

    def tick(self) -> list[JobAnnouncement]:
        """As the agent does it: first what is announced, then the batches."""
        found = self.due()
        self.state.batches(self.now, MONO_NS)
        return found


def other(run_id: str = "run-0", host: str = "elsewhere", started: int = -100, announced: int = -1, ended: bool = False) -> Row:
    """Another launch of the same name; times in seconds from NOW."""
    return Row("job", run_id, host, NOW_US + started * SECOND, NOW_US + announced * SECOND, ended)


def test_announced_on_change_and_as_a_sign_of_life() -> None:
    host = Host()
    host.hello()
    host.look()
    (first,) = host.due()
    assert (first.job, first.world_size, first.framework, first.launcher) == ("job", 4, "ddp", "torchrun")
    assert first.process_groups[0].ranks == "0-3"
    host.now += SECOND
    assert host.due() == []
    host.hello(101, 1)
    (second,) = host.due()
    assert [r.rank for r in second.ranks] == [0, 1]
    assert second.started_at_us == first.started_at_us == NOW_US
    host.now += INTERVAL
    (again,) = host.due()
    assert again.announced_at_us == host.now
    assert again.ranks == second.ranks


def test_the_end_is_announced_once() -> None:
    host = Host()
    host.hello()
    host.look()
    host.due()
    host.state.event(Event(GOODBYE, 100, 0, MONO_NS, 0, 0))
    assert [a.ended for a in host.due()] == [True]
    host.now += 10 * INTERVAL
    assert host.due() == []


@pytest.mark.parametrize("goodbyes", [0, 1], ids=["all were killed", "one said goodbye, one was killed"])
def test_a_launch_that_was_killed_is_announced_as_ended_when_it_is_given_up(goodbyes: int) -> None:
    host = Host()
    for rank in (0, 1):
        host.hello(100 + rank, rank)
    host.look()
    host.tick()
    for pid in range(100, 100 + goodbyes):
        host.state.event(Event(GOODBYE, pid, 0, MONO_NS, 0, 0))
    for pid in range(100 + goodbyes, 102):
        host.state.gone(pid)
    assert host.tick() == []
    host.now += GONE_LINGER_US - 1
    assert host.tick() == [], "until then a stall may be declared"
    host.now += 1
    (end,) = host.tick()
    assert (end.ended, [r.rank for r in end.ranks], end.announced_at_us) == (True, [0, 1], host.now)
    assert host.state.runs == {}
    host.now += INTERVAL
    assert host.tick() == []


def test_a_killed_launch_that_comes_back_has_not_ended() -> None:
    host = Host()
    host.hello()
    host.look()
    host.tick()
    host.state.gone(100)
    host.tick()
    host.now += GONE_LINGER_US - 1
    host.hello(200)
    host.now += SECOND
    assert [a.ended for a in host.tick()] == [False]


def test_without_a_look_at_the_topic_the_announcement_waits_but_not_for_ever() -> None:
    host = Host()
    host.hello()
    assert host.due() == []
    host.now += FIRST_LOOK_US
    assert len(host.due()) == 1


CASES: list[tuple[str, Row, int, str]] = [
    ("spoke long after we began", other(announced=6), 10, "refused"),
    ("was just killed, so it may still look alive", other(announced=-1), 10, "waits"),
    ("spoke within the time that dying takes", other(announced=4), 10, "waits"),
    ("has been silent for two intervals", other(announced=-55), 10, "announced"),
    ("ended in an orderly way", other(announced=6, ended=True), 10, "announced"),
    ("began later: it is refused, not we", other(started=1, announced=6), 10, "announced"),
    ("began at the same time: the name of the run decides", other("run-0", started=0, announced=6), 10, "refused"),
    ("began at the same time, the other way round", other("run-2", started=0, announced=6), 10, "announced"),
    ("was this very host's former launch", other(host="h", announced=-1), 10, "announced"),
    ("another agent uses this host's name", other(host="h", announced=6), 10, "refused"),
]


@pytest.mark.parametrize(("rival", "after_s", "outcome"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_another_launch_of_the_name(rival: Row, after_s: int, outcome: str) -> None:
    host = Host()
    host.hello()
    host.now += after_s * SECOND
    host.look(rival)
    found = host.due()
    assert (len(found) == 1) == (outcome == "announced")
    assert host.state.runs["job", "run-1"].refused == (outcome == "refused")
    if outcome == "refused":
        (error,) = host.announcer.errors
        assert all(part in error for part in ("job", rival.run_id, "run-1", rival.host, "EROICA_JOB"))
        host.due()
        assert len(host.announcer.errors) == 1, "said once"
    else:
        assert host.announcer.errors == []


def test_a_waiting_launch_is_announced_when_the_other_stays_silent() -> None:
    host = Host()
    host.hello()
    host.look(other(announced=-1))
    assert host.due() == []
    host.now += 61 * SECOND
    assert len(host.due()) == 1


def test_a_refused_launch_looks_again_and_is_announced_when_the_other_ends() -> None:
    host = Host()
    host.hello()
    host.now += 10 * SECOND
    host.look(other(announced=8))
    assert host.due() == []
    host.now += 20 * SECOND
    host.look(other(announced=25, ended=True))
    assert len(host.due()) == 1
    assert not host.state.runs["job", "run-1"].refused


def test_a_launch_that_was_announced_before_the_other_was_seen_is_taken_back() -> None:
    host = Host()
    host.hello()
    host.look()
    assert [a.ended for a in host.due()] == [False]
    host.now += OVERLAP_US + 6 * SECOND
    host.look(other(announced=9))
    assert [a.ended for a in host.due()] == [True]
    assert host.due() == []


def test_two_launches_of_one_name_on_one_host() -> None:
    host = Host()
    host.hello(100, run_id="run-old")
    host.look()
    host.due()
    host.now += 10 * SECOND
    host.hello(200, run_id="run-new")
    host.look()
    host.now += OVERLAP_US + SECOND
    host.due()
    assert [run.refused for run in host.state.runs.values()] == [False, True]
    assert "run-old" in host.announcer.errors[0] and "run-new" in host.announcer.errors[0]
    host.state.gone(100)
    assert [a.run_id for a in host.due()] == ["run-new"]


class Beside:
    """Two launches of one name on one host, told turn by turn as the agent does; ``words`` are those on the key, in order."""

    def __init__(self) -> None:
        self.host = Host()
        self.words: list[tuple[str, bool]] = []
        self.newest: Row | None = None

    def do(self, deed: str) -> None:
        """``begins RUN``, ``says goodbye RUN``, ``is killed RUN``, or a number of seconds that pass."""
        if deed.isdigit():
            for _ in range(int(deed)):
                self.turn()
                self.host.now += SECOND
            return
        what, _, run = deed.rpartition(" ")
        pid = {"old": 100, "new": 200}[run]
        if what == "begins":
            self.host.hello(pid, run_id=run)
        elif what == "says goodbye":
            self.host.state.event(Event(GOODBYE, pid, 0, MONO_NS, 0, 0))
        else:
            assert what == "is killed"
            self.host.state.gone(pid)

    def turn(self) -> None:
        for word in self.host.due():
            self.words.append((word.run_id, word.ended))
            self.newest = row_of(word)
        self.host.state.batches(self.host.now, MONO_NS)
        self.host.look(*([self.newest] if self.newest else []))


OLD, OLD_ENDS, NEW, NEW_ENDS = ("old", False), ("old", True), ("new", False), ("new", True)
BOTH_BEGIN = ["begins old", "10", "begins new"]
TURNS: list[tuple[str, list[str], list[tuple[str, bool]]]] = [
    ("the later one lives on", [*BOTH_BEGIN, "15"], [OLD]),
    ("the later one leaves while it waits", [*BOTH_BEGIN, "2", "says goodbye new", "15"], [OLD]),
    ("the later one leaves when it is refused", [*BOTH_BEGIN, "8", "says goodbye new", "9"], [OLD]),
    ("the later one is killed when it is refused", [*BOTH_BEGIN, "8", "is killed new", "9"], [OLD]),
    ("both leave", [*BOTH_BEGIN, "8", "says goodbye new", "says goodbye old", "9"], [OLD, OLD_ENDS]),
    ("the earlier one ends while the later one waits", [*BOTH_BEGIN, "2", "says goodbye old", "9"], [OLD, OLD_ENDS, NEW]),
    ("the earlier one ends later", [*BOTH_BEGIN, "9", "says goodbye old", "9"], [OLD, OLD_ENDS, NEW]),
    ("begun anew after an orderly end", ["begins old", "10", "says goodbye old", "begins new", "9"], [OLD, OLD_ENDS, NEW]),
    ("begun anew after its death", ["begins old", "10", "is killed old", "begins new", "9"], [OLD, OLD_ENDS, NEW]),
    ("begun anew, its death seen later", [*BOTH_BEGIN, "2", "is killed old", "9"], [OLD, NEW, OLD_ENDS, NEW]),
    ("the new one of the two ends", [*BOTH_BEGIN, "says goodbye old", "9", "says goodbye new", "9"],
     [OLD, OLD_ENDS, NEW, NEW_ENDS]),
]  # fmt: skip


@pytest.mark.parametrize(("deeds", "words"), [case[1:] for case in TURNS], ids=[case[0] for case in TURNS])
def test_what_is_said_under_the_one_key_of_two_launches(deeds: list[str], words: list[tuple[str, bool]]) -> None:
    beside = Beside()
    for deed in deeds:
        beside.do(deed)
    assert beside.words == words


def test_after_a_launch_was_taken_back_the_one_that_lives_has_the_last_word() -> None:
    host = Host()
    host.hello(200, run_id="new")
    host.look()
    assert [(a.run_id, a.ended) for a in host.due()] == [NEW]
    host.now += SECOND
    host.hello(100, run_id="old")
    # The agent was restarted: the topic says that this launch is the older one.
    host.look(Row("job", "old", "h", NOW_US - 500 * SECOND, NOW_US - SECOND, False))
    assert [(a.run_id, a.ended) for a in host.due()] == [OLD]
    host.now += OVERLAP_US + SECOND
    assert [(a.run_id, a.ended) for a in host.due()] == [NEW_ENDS, OLD]
    assert host.due() == []


def test_a_launch_that_dies_after_a_refused_one_left_is_no_orderly_end() -> None:
    beside = Beside()
    for deed in (*BOTH_BEGIN, "8", "is killed new", "2", "is killed old", "2"):
        beside.do(deed)
    (batch,) = [output.message for output in beside.host.state.batches(beside.host.now, MONO_NS)]
    assert isinstance(batch, IterationBatch)
    assert (batch.run_id, batch.ranks[0].ended, batch.ranks[0].last_event) == ("old", False, PROCESS_GONE)


def test_an_agent_that_was_restarted_does_not_make_its_launch_younger() -> None:
    host = Host()
    host.hello()
    host.look(Row("job", "run-1", "h", NOW_US - 500 * SECOND, NOW_US - SECOND, False))
    assert host.due()[0].started_at_us == NOW_US - 500 * SECOND


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"groups": [{"name": "0", "desc": "default_pg", "ranks": list(range(8))}]}, "7|8"),
        ({"groups": [{"name": "3", "desc": "mesh_tp", "ranks": [0, 7]}]}, "7"),
    ],
)
def test_a_world_that_contradicts_its_groups_is_not_announced_and_said_once(fields: dict[str, Any], says: str) -> None:
    host = Host()
    host.hello(**fields)
    host.look()
    assert host.due() == host.due() == []
    (error,) = host.announcer.errors
    assert any(number in error for number in says.split("|"))
    assert "job job, run run-1" in error
    assert host.announcer.problem_of(host.state.runs["job", "run-1"]) == error
    assert host.state.batches(host.now, MONO_NS), "training goes on and is reported"


def test_processes_that_name_different_world_sizes() -> None:
    host = Host()
    host.hello(100, 0)
    host.hello(101, 1, world_size=8, groups=[])
    host.look()
    assert host.due() == []
    assert "world sizes 4 and 8" in host.announcer.errors[0]


def test_the_topic_is_looked_at_rarely() -> None:
    host = Host()
    host.hello()
    looks = 0
    for _ in range(600):
        looks += bool(host.announcer.jobs_to_look_up(host.state.runs.values(), host.now))
        host.due()
        host.now += SECOND
    assert looks == 2
