"""Which requests are served, what a hook is told, and when a rank is given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agent_unit_kit import MONO_NS, NOW_US, hello, iteration, request

from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hoststate import HostState
from eroica.producers.agent.profiles import (
    FAREWELL_US,
    LARGE_TRACE_BYTES,
    MARGIN_US,
    Pending,
    Profiled,
    Profiles,
    deadline_us,
    failure,
    identity_of,
    parse_profiled,
    profile_command,
    without_stacks,
)
from eroica.producers.agent.requests import MAX_SEEN, RequestFilter, classes_of, starts_too_late
from eroica.producers.hook.command import parse_profile
from eroica.schemas.errors import SchemaError
from eroica.schemas.summaries import SummaryError

pytestmark = pytest.mark.unit
SECOND = 1_000_000


@pytest.mark.parametrize(
    ("issued_s_ago", "fields", "served"),
    [
        (0, {}, True),
        (-30, {}, True),
        (119, {}, True),
        (121, {}, False),
        (121, {"deadline_ms": 100_000}, True),
        (86_400, {}, False),
    ],
)
def test_a_request_is_served_unless_it_is_past(issued_s_ago: int, fields: dict[str, Any], served: bool) -> None:
    counters = Counters()
    one = request(issued_at_us=NOW_US - issued_s_ago * SECOND, **{"deadline_ms": 10_000, **fields})
    assert RequestFilter(counters).accept(one, NOW_US) == served
    assert counters["requests_past"] == (not served)


def test_an_id_is_served_once_and_ids_take_bounded_memory() -> None:
    counters = Counters()
    once = RequestFilter(counters)
    assert once.accept(request(), NOW_US)
    assert not once.accept(request(steps=9), NOW_US)
    assert counters["requests_repeated"] == 1
    for number in range(3 * MAX_SEEN):
        once.accept(request(request=f"r{number}"), NOW_US)
    assert len(once._seen) == MAX_SEEN


def test_each_rank_is_in_its_class() -> None:
    one = request(classes={"pp0": "0-1", "pp1": "2,3"})
    assert classes_of(one, [3, 0, 9]) == {0: "pp0", 3: "pp1"}


@pytest.mark.parametrize("fields", [{"classes": {"all": "3-1"}}, {"classes": {"all": "x"}}, {"steps": 0}, {"duration_ms": 5}])
def test_a_request_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        classes_of(request(**fields), [0])


def test_the_hook_understands_the_command() -> None:
    message = profile_command(
        request(start_step=120, with_stack=False), "/dev/shm/x", max_duration_ms=60_000, expires_ms=9_000, max_trace_bytes=2**32
    )
    command = parse_profile(message)
    assert (command.request, command.start_step, command.steps, command.duration_ms) == ("req-1", 120, 3, 0)
    assert (command.max_duration_ms, command.with_stack, command.directory) == (60_000, False, "/dev/shm/x")
    assert (command.expires_ms, command.max_trace_bytes, command.attempt) == (9_000, 2**32, 1)


def test_a_profile_is_repeated_once_without_stacks_where_its_trace_was_large() -> None:
    asked = profile_command(
        request(start_step=120, with_stack=True), "/dev/shm/x", max_duration_ms=60_000, expires_ms=9_000, max_trace_bytes=2**32
    )
    first = replace(pending(), command=asked, allowed_us=9 * SECOND)
    assert without_stacks(first, LARGE_TRACE_BYTES - 1, "no", NOW_US) is None
    again = without_stacks(first, LARGE_TRACE_BYTES, "it took too long", NOW_US + SECOND)
    assert again is not None
    assert (again.deadline_us, again.sent) == (NOW_US + 10 * SECOND, False)
    assert again.notes == ("profiled again, without stacks: it took too long",)
    command = parse_profile(again.command)
    assert (command.with_stack, command.attempt, command.start_step, command.steps) == (False, 2, 120, 3)
    assert without_stacks(again, 2**40, "no", NOW_US) is None
    assert without_stacks(replace(first, command={**asked, "with_stack": False}), 2**40, "no", NOW_US) is None


def state_with_a_worker() -> HostState:
    state = HostState("h", 1_024, Counters())
    state.hello(hello(), NOW_US, MONO_NS)
    for step in range(100):
        state.event(iteration(100, step, duration_us=SECOND))
    return state


def pending(deadline: int = NOW_US + 10 * SECOND) -> Pending:
    run, worker = state_with_a_worker().runs["job", "run-1"], state_with_a_worker().runs["job", "run-1"].workers[0]
    return Pending(identity_of(run, worker, "req-1", "all", "h"), deadline, {})


@pytest.mark.parametrize(
    ("fields", "expected_s"),
    [
        ({"start_step": 110}, 12 + 3),
        ({"start_step": 0}, 2 + 3),
        ({"start_step": 0, "steps": 0, "duration_ms": 20_000}, 2 + 20),
        ({"start_step": 0, "steps": 1_000}, 2 + 60),
    ],
)
def test_the_deadline_follows_the_ranks_own_pace(fields: dict[str, Any], expected_s: int) -> None:
    worker = state_with_a_worker().runs["job", "run-1"].workers[0]
    assert deadline_us(request(**fields), worker, 60_000, NOW_US) == NOW_US + 2 * expected_s * SECOND + MARGIN_US


def test_a_profile_ends_in_exactly_one_way() -> None:
    profiles = Profiles()
    profiles.ask(pending())
    answer = Profiled(pid=100, request="req-1", path="/x")
    assert profiles.answered(Profiled(pid=101, request="req-1")) is None
    assert profiles.overdue(NOW_US) == []
    assert profiles.answered(answer) is not None
    assert profiles.answered(answer) is None
    assert profiles.overdue(NOW_US + 100 * SECOND) == []
    profiles.ask(pending())
    assert len(profiles.overdue(NOW_US + 10 * SECOND)) == 1
    assert profiles.answered(answer) is None
    assert len(profiles) == 0


def test_a_process_that_ended_has_little_time_left() -> None:
    profiles = Profiles()
    profiles.ask(pending(NOW_US + 100 * SECOND))
    profiles.farewell({100}, NOW_US)
    assert profiles.overdue(NOW_US + FAREWELL_US) == []
    profiles.farewell(set(), NOW_US)
    assert len(profiles.overdue(NOW_US + FAREWELL_US)) == 1


def test_a_failure_goes_where_the_summary_would_have_gone() -> None:
    output = failure(pending().who, "x" * 9_999, NOW_US)
    assert isinstance(output.message, SummaryError)
    assert (output.topic, output.key) == ("summaries", "job/req-1/all")
    assert len(output.message.error) == 500
    assert output.message.who.pid == 100


@pytest.mark.parametrize(
    "message",
    [{}, {"pid": 1}, {"pid": "1", "request": "r"}, {"pid": 1, "request": ""}, {"pid": 1, "request": "r", "late_by": -1},
     {"pid": 1, "request": "r", "path": "x" * 5_000}, {"pid": 1, "request": "r", "blocked_ms": "long"}],
)  # fmt: skip
def test_an_answer_that_cannot_be_is_none(message: dict[str, Any]) -> None:
    assert parse_profiled(message) is None


def test_classes_take_no_time_for_the_ranks_that_are_not_here() -> None:
    everyone = request(world_size=1_000_000, classes={f"c{i}": f"{1_000 * i}-{1_000 * i + 999}" for i in range(1_000)})
    assert classes_of(everyone, [0, 999_999]) == {0: "c0", 999_999: "c999"}


@pytest.mark.parametrize(
    "fields",
    [
        {"classes": {f"c{i}": "0-3" for i in range(30_000)}},
        {"classes": {"a": "0-3", "b": "2"}},
        {"classes": {"a": "0-4"}},
        {"world_size": 0},
        {"world_size": 10**9, "classes": {}},
        {"steps": 10**9},
        {"steps": -5},
        {"steps": 0, "duration_ms": 10**12},
    ],
)
def test_a_hostile_request_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        classes_of(request(**fields), [0])


@pytest.mark.parametrize(
    ("start", "mean_us", "late"),
    [(100, 1_000, False), (10**9, 1_000, True), (100, 0, False), (10**9, 0, True), (-1, 1_000, False), (5_000, 100_000, True)],
)
def test_a_start_that_nobody_waits_for_is_known(start: int, mean_us: int, late: bool) -> None:
    assert starts_too_late(request(start_step=start), last_step=10, mean_us=mean_us) is late
