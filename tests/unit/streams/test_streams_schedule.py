"""A healthy profile is asked for when a job runs steadily, and never where it could be in the way of an alarm."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from streams_kit import SECOND, T0, partial

from eroica.schemas.codec import encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.iterations import StepPartial
from eroica.schemas.settings import DetectSettings
from eroica.streams.job import JobCore

pytestmark = pytest.mark.unit

HOUR_MS = 3_600_000
SMALL = DetectSettings(
    window=10, recent=100, warmup=5, spike_window=20, spike_min_history=10, lead_ms=1_000, scheduled_after=100,
    scheduled_every_ms=HOUR_MS,
)  # fmt: skip
STEADY, SLOW = [100_000] * 300, [200_000] * 100


def run_of(values: list[int], *, start: int = 0, at: int = T0, run: str = "r") -> list[StepPartial]:
    partials, now = [], at
    for i in range(0, len(values), 10):
        now += sum(values[i : i + 10])
        partials.append(partial(start + i, values[i : i + 10], at=now, run=run))
    return partials


def asked(core: JobCore, partials: list[StepPartial]) -> list[ProfileRequest]:
    found = [o.message for one in partials for o in core.feed(one)]
    assert all(isinstance(message, ProfileRequest) for message in found)
    return found  # type: ignore[return-value]


def reasons(values: list[int], settings: DetectSettings = SMALL) -> list[str]:
    return [r.reason for r in asked(JobCore(settings), run_of(values))]


def by_hand(step: int, at_us: int, reason: str = "manual", request: str = "req-hand") -> ProfileRequest:
    return ProfileRequest(
        request=request, job="j", run_id="r", reason=reason, start_step=step, steps=5, world_size=4, classes={"all": "0-3"},  # type: ignore[arg-type]
        issued_at_us=at_us, deadline_ms=60_000,
    )  # fmt: skip


def test_a_steady_job_is_profiled_once_like_after_any_trigger() -> None:
    [request] = asked(JobCore(SMALL), run_of(STEADY))
    assert (request.reason, request.mode, request.steps) == ("scheduled", "profile", 5)
    step = (request.issued_at_us - T0) // 100_000
    assert 5 + 10 + 100 <= step <= 130, "warm-up, a window, and as many iterations without trouble as were set"
    assert "on schedule" in request.detail and request.figures == {"observed_us": 100_000.0}


def spiky(*at: int) -> list[int]:
    values = [100_000] * 200
    for step in at:
        values[step] = 500_000
    return values


@pytest.mark.parametrize(
    ("name", "values", "more", "wanted"),
    [
        ("switched off", STEADY, {"scheduled_every_ms": 0}, []),
        ("too short", STEADY[:110], {}, []),
        ("slow before it was steady", [100_000] * 60 + SLOW, {}, ["degradation"]),
        ("just after an alarm", [100_000] * 60 + [200_000] * 60 + STEADY, {}, ["degradation"]),
        (
            "well after an alarm",
            [100_000] * 60 + [200_000] * 60 + STEADY * 2,
            {"cooldown_ms": 20_000},
            ["degradation", "scheduled"],
        ),
        ("slow for good", [100_000] * 60 + [200_000] * 900, {}, ["degradation"]),
        ("a slowdown that is not confirmed yet", [100_000] * 105 + [200_000] * 10, {}, []),
        ("a spike is no trouble", spiky(50), {}, ["scheduled"]),
        ("but it is not asked while another would make an alarm", spiky(112)[:130], {}, []),
        ("a stutter", spiky(100, 107, 116), {}, ["spike"]),
        ("no room in the budget beside alarms", STEADY, {"budget_min_steps": 14}, []),
        ("room for two alarms more", STEADY, {"budget_min_steps": 15}, ["scheduled"]),
    ],
)
def test_when(name: str, values: list[int], more: dict[str, object], wanted: list[str]) -> None:
    assert reasons(values, SMALL.model_copy(update=more)) == wanted, name


def test_again_once_in_each_period_of_the_jobs_own_time() -> None:
    rich = SMALL.model_copy(update={"budget_share": 0.05, "cooldown_ms": 0})
    values = [100_000] * 5 * 36_000
    found = asked(JobCore(rich), run_of(values))
    assert {r.reason for r in found} == {"scheduled"}
    times = [r.issued_at_us for r in found]
    assert 5 <= len(found) <= 6 and len({r.request for r in found}) == len(found)
    assert all(b - a >= HOUR_MS * 500 for a, b in pairwise(times))
    assert all(abs(b - a - HOUR_MS * 1_000) < SECOND for a, b in pairwise(times[1:]))


@pytest.mark.parametrize("after", [0, 1, 5, 20, 60])
def test_an_alarm_is_no_later_than_the_steps_of_the_profile(after: int) -> None:
    """A slowdown begins so many steps after the request: the profile's own steps are innocent, nothing else is held back."""
    healthy = [100_000] * (121 + after)
    off = SMALL.model_copy(update={"scheduled_every_ms": 0})
    [alone] = asked(JobCore(off), run_of(healthy + SLOW))
    first, alarm = asked(JobCore(SMALL), run_of(healthy + SLOW))
    assert (first.reason, alone.reason, alarm.reason) == ("scheduled", "degradation", "degradation")
    assert 0 <= alarm.figures["step"] - alone.figures["step"] <= 5 + 6
    assert msgspec.structs.replace(
        alarm, request="", figures={}, detail="", issued_at_us=0, start_step=0
    ) == msgspec.structs.replace(alone, request="", figures={}, detail="", issued_at_us=0, start_step=0)


def test_what_a_profile_slows_down_is_no_complaint() -> None:
    values = list(STEADY)
    [request] = asked(JobCore(SMALL), run_of(values))
    for step in range(request.start_step, request.start_step + 5):
        values[step] = 900_000
    assert reasons(values) == ["scheduled"]


@pytest.mark.parametrize("reason", ["manual", "degradation", "blocked"])
def test_a_request_of_others_puts_it_off(reason: str) -> None:
    core = JobCore(SMALL.model_copy(update={"cooldown_ms": 5_000}))
    assert asked(core, run_of(STEADY[:100])) == []
    core.feed_request(by_hand(100, T0 + 10 * SECOND, reason))
    [request] = asked(core, run_of(STEADY, start=100, at=T0 + 10 * SECOND))
    assert request.reason == "scheduled" and request.issued_at_us >= T0 + 20 * SECOND


def test_after_a_restart_it_is_not_asked_again() -> None:
    [first] = asked(JobCore(SMALL), run_of(STEADY))
    on = T0 + 1_800 * SECOND
    knows = JobCore(SMALL)
    asked(knows, run_of(STEADY[:100], start=20_000, at=on))
    for _ in range(3):
        knows.feed_request(first)
    assert asked(knows, run_of(STEADY, start=20_100, at=on + 10 * SECOND)) == []
    before = JobCore(SMALL)
    before.feed_request(first)
    assert asked(before, run_of(STEADY, start=20_000, at=on)) == [], "told before the first step"
    # Without any memory it comes to the same request, which whoever has seen it passes over, unless another slot has begun.
    ids = {r.request for minutes in (2, 5, 9) for r in asked(JobCore(SMALL), run_of(STEADY, at=T0 + minutes * 60 * SECOND))}
    assert len(ids | {first.request}) <= 2
    # What was told after the fact makes no slow step innocent.
    assert [r.reason for r in asked(knows, run_of(SLOW, start=20_400, at=on + 40 * SECOND))] == ["degradation"]


def test_another_launch_is_profiled_anew_and_the_same_bytes_come_from_the_same_steps() -> None:
    core = JobCore(SMALL)
    [a] = asked(core, run_of(STEADY))
    [b] = asked(core, run_of(STEADY, at=T0 + 60 * SECOND, run="r2"))
    assert a.request != b.request
    [again] = asked(JobCore(SMALL), [p for one in run_of(STEADY) for p in (one, one)])
    assert encode(again) == encode(a)


def test_a_clock_that_is_set_back_ends_no_schedule() -> None:
    core = JobCore(SMALL)
    future = by_hand(50, T0 + 10**13, "scheduled", "req-future")
    asked(core, run_of(STEADY[:50]))
    core.feed_request(future)
    assert [r.reason for r in asked(core, run_of(STEADY, start=50, at=T0 + 5 * SECOND))] == ["scheduled"]
