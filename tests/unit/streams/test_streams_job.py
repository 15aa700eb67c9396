"""Hop 2: one request, whatever the interleaving, and none where there is no reason."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams_kit import SECOND, T0, partial

from eroica.schemas.codec import encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import InvalidInput
from eroica.schemas.iterations import StepPartial
from eroica.schemas.jobs import JobAnnouncement, RankInfo
from eroica.schemas.settings import DetectSettings
from eroica.streams.job import JobCore
from eroica.topology.jobview import JobView, merge_announcements

pytestmark = pytest.mark.unit

SMALL = DetectSettings(window=10, recent=100, confirm_windows=2, warmup=5, spike_window=20, spike_min_history=10, lead_ms=1_000)


def run_of(values: list[int], *, start: int = 0, at: int = T0, per_partial: int = 10, **more: object) -> list[StepPartial]:
    """Partials of one shard, a value a step, event time following the iterations."""
    partials, now = [], at
    for i in range(0, len(values), per_partial):
        part = values[i : i + per_partial]
        now += sum(part)
        partials.append(partial(start + i, part, at=now, **more))  # type: ignore[arg-type]
    return partials


def requests_of(core: JobCore, partials: list[StepPartial]) -> list[ProfileRequest]:
    found = []
    for one in partials:
        for output in core.feed(one):
            assert isinstance(output.message, ProfileRequest)
            assert output.topic == "control" and output.key == one.job and output.event_time_us == output.message.issued_at_us
            found.append(output.message)
    return found


HEALTHY, SLOW = [100_000] * 200, [200_000] * 100


def test_a_slowdown_becomes_one_request() -> None:
    [request] = requests_of(JobCore(SMALL), run_of(HEALTHY + SLOW))
    assert (request.reason, request.mode, request.steps, request.duration_ms) == ("degradation", "profile", 5, 0)
    trigger = int(request.figures["step"])
    assert 210 < trigger < 220
    assert request.start_step == trigger + math.ceil(1_000_000 / request.figures["observed_us"])
    assert request.classes == {"all": "0-3"} and request.topology_source == "unknown"
    assert request.issued_at_us >= T0 + 200 * 100_000
    assert "times the fastest window" in request.detail and f"at step {trigger}, 4 ranks" in request.detail


def test_the_same_trigger_gives_the_same_bytes_however_it_is_cut() -> None:
    partials = run_of(HEALTHY + SLOW)
    twice = [p for one in partials for p in (one, one)]
    (a,), (b,) = requests_of(JobCore(SMALL), partials), requests_of(JobCore(SMALL), twice)
    assert encode(a) == encode(b)


def test_cooldown_and_the_budget_of_profiled_steps_hold_back() -> None:
    slow = [200_000] * 4_000
    cool = SMALL.model_copy(update={"cooldown_ms": 100_000})
    reasons = requests_of(JobCore(cool), run_of(HEALTHY + slow))
    times = [r.issued_at_us for r in reasons]
    assert len(times) == 3 and min(np.diff(times)) >= 100 * SECOND
    assert "last time" in reasons[-1].detail and "last time" not in reasons[1].detail
    poor = cool.model_copy(update={"budget_min_steps": 5, "budget_share": 0.0001})
    core = JobCore(poor)
    assert len(requests_of(core, run_of(HEALTHY + slow))) == 1
    assert core.counters.held_back > 0


def test_a_lesser_reason_holds_back_no_more_serious_one() -> None:
    core = JobCore(SMALL)
    spikes = list(HEALTHY)
    for at in (150, 157, 166):
        spikes[at] = 500_000
    reasons = [r.reason for r in requests_of(core, run_of(spikes + SLOW))]
    reasons += [r.reason for r in requests_of(core, [partial(300, [], at=T0 + 90 * SECOND, min_idle_us=40 * SECOND)])]
    assert reasons == ["spike", "degradation", "blocked"]


def test_a_new_launch_is_another_life() -> None:
    core = JobCore(SMALL)
    assert len(requests_of(core, run_of(HEALTHY + SLOW))) == 1
    assert requests_of(core, run_of([200_000] * 300, run="r2", at=T0 + 3_600 * SECOND)) == []


def test_marked_profiled_and_warm_up_steps_are_innocent() -> None:
    slow_mark = run_of(HEALTHY)
    slow_mark += [
        partial(first, [900_000] * 10, at=T0 + first * SECOND, marked=list(range(first, first + 10)))
        for first in range(200, 250, 10)
    ]
    assert requests_of(JobCore(SMALL), slow_mark) == []
    assert requests_of(JobCore(SMALL), run_of([9_000_000] * 5 + HEALTHY)) == []
    core = JobCore(SMALL)
    partials = run_of(HEALTHY)
    assert requests_of(core, partials) == []
    core.feed_request(
        ProfileRequest(
            request="req-by-hand", job="j", run_id="r", reason="manual", start_step=205, steps=30, world_size=4,
            classes={"all": "0-3"}, issued_at_us=T0 + 20 * SECOND, deadline_ms=60_000,
        )
    )  # fmt: skip
    assert requests_of(core, run_of([100_000] * 5 + [400_000] * 30 + [100_000] * 50, start=200, at=T0 + 20 * SECOND)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"start_step": 10**9},
        {"steps": 10**9},
        {"steps": 100_000},
        {"steps": 0, "duration_ms": 10**12},
        {"classes": {"a": "0-3", "b": "3"}},
        {"world_size": 10**9},
    ],
)
def test_a_request_that_nobody_serves_makes_no_slow_step_innocent(fields: dict[str, object]) -> None:
    core = JobCore(SMALL.model_copy(update={"cooldown_ms": 0, "budget_share": 1.0}))
    assert requests_of(core, run_of(HEALTHY)) == []
    values: dict[str, object] = {
        "request": "req-hostile", "job": "j", "run_id": "r", "reason": "manual", "start_step": 205, "steps": 30, "world_size": 4,
        "classes": {"all": "0-3"}, "issued_at_us": T0 + 20 * SECOND, "deadline_ms": 60_000, **fields,
    }  # fmt: skip
    core.feed_request(ProfileRequest(**values))  # type: ignore[arg-type]
    later = requests_of(core, run_of([200_000] * 1_000, start=200, at=T0 + 20 * SECOND))
    assert later and later[0].reason == "degradation", "innocent is at most the minute that agents record"


def idle(seconds: float, step: int, *, shard: int = 0, world: int = 4, **more: object) -> StepPartial:
    since = T0 + 20 * SECOND
    return partial(
        step, [], at=since + round(seconds * SECOND), shard=shard, world=world,
        min_idle_us=round(seconds * SECOND), idle_rank=shard * 4 + 2, last_event="loader_enter", **more,
    )  # fmt: skip


def test_a_standstill_of_all_is_blocked_and_asks_for_stacks() -> None:
    core = JobCore(SMALL)
    requests_of(core, run_of(HEALTHY))
    assert requests_of(core, [idle(29, 200)]) == []
    [request] = requests_of(core, [idle(31, 200), idle(40, 200), idle(4_000, 200)])
    assert (request.reason, request.mode, request.steps, request.duration_ms) == ("blocked", "stacks", 0, 0)
    assert request.issued_at_us == T0 + 50 * SECOND, "the moment at which the limit was reached, not at which it was noticed"
    assert "rank 2" in request.detail and "loader_enter" in request.detail


@pytest.mark.parametrize(
    ("name", "partials"),
    [
        ("ended", [idle(60, 200, ended=True)]),
        ("moving again", [partial(200, [100_000], at=T0 + 80 * SECOND)]),
        ("nobody left to ask", [idle(60, 200, absent="0-3")]),
    ],
)
def test_what_is_not_blocked(name: str, partials: list[StepPartial]) -> None:
    core = JobCore(SMALL)
    requests_of(core, run_of(HEALTHY))
    assert requests_of(core, partials) == [], name


def test_long_iterations_are_not_blocked_before_their_factor() -> None:
    core = JobCore(SMALL)
    requests_of(core, run_of([20_000_000] * 60))
    last = T0 + 60 * 20 * SECOND
    wait = [partial(60, [], at=last + s * SECOND, min_idle_us=s * SECOND) for s in (35, 70, 99, 101)]
    assert [len(requests_of(core, [w])) for w in wait] == [0, 0, 0, 1]


def test_a_job_blocked_before_its_first_iterations_gets_ten_times_the_floor() -> None:
    core = JobCore(SMALL)
    told = [partial(0, [], at=T0 + s * SECOND, min_idle_us=s * SECOND) for s in (1, 60, 299, 301)]
    assert [len(requests_of(core, [w])) for w in told] == [0, 0, 0, 1]


def two_shards(values: list[int], step: int = 0, at: int = T0) -> tuple[list[StepPartial], list[StepPartial]]:
    return tuple(  # type: ignore[return-value]
        run_of(values, start=step, at=at + shard, shard=shard, world=8, per_partial=7 + 4 * shard) for shard in (0, 1)
    )


@given(st.data())
@settings(max_examples=40)
def test_the_interleaving_of_shards_decides_nothing(data: st.DataObject) -> None:
    a, b = two_shards(HEALTHY[:60] + [100_000, 300_000, 100_000] * 4 + HEALTHY[:50] + SLOW)
    mixed: list[StepPartial] = []
    left, right = list(a), list(b)
    while left or right:
        take_left = bool(left) and (not right or data.draw(st.booleans()))
        mixed.append((left if take_left else right).pop(0))
    plain, other = requests_of(JobCore(SMALL), [*a, *b]), requests_of(JobCore(SMALL), mixed)
    assert plain and [encode(r) for r in plain] == [encode(r) for r in other]


def test_a_shard_that_falls_silent_stops_holding_the_job() -> None:
    core = JobCore(SMALL)
    a, b = two_shards(HEALTHY)
    requests_of(core, [x for pair in zip(a, b, strict=False) for x in pair])
    alone = run_of(HEALTHY + SLOW * 10, start=200, at=T0 + 20 * SECOND, shard=0, world=8)
    [request] = requests_of(core, alone)
    assert request.reason == "degradation"


def view(world: int, run_id: str = "r", hosts: int = 1) -> JobView:
    per = world // hosts
    return merge_announcements(
        JobAnnouncement(
            job="j", run_id=run_id, host=f"h{h}", world_size=world,
            ranks=[RankInfo(rank=r, coords={"pp": r % 2, "dp": r // 2}) for r in range(h * per, (h + 1) * per)],
        )
        for h in range(hosts)
    )  # fmt: skip


def test_classes_come_from_what_is_known_of_the_job() -> None:
    core = JobCore(SMALL)
    core.feed_job(view(4))
    [request] = requests_of(core, run_of(HEALTHY + SLOW))
    assert sorted(request.classes.values()) == ["0,2", "1,3"]
    assert request.topology_source == view(4).topology_source


@pytest.mark.parametrize(
    ("known", "note"),
    [
        (view(4, run_id="an older launch"), ""),
        (replace(view(4), missing=np.array([3])), ""),
        (view(6), "contradicts"),
    ],
)
def test_an_unfit_view_falls_back_to_one_class(known: JobView, note: str) -> None:
    core = JobCore(SMALL)
    core.feed_job(known)
    [request] = requests_of(core, run_of(HEALTHY + SLOW))
    assert request.classes == {"all": "0-3"}
    assert note in request.detail


@pytest.mark.parametrize(
    "bad",
    [
        partial(0, [1], world=8),
        partial(0, [1], per_shard=0),
        partial(0, [1], shard=7),
        msgspec.structs.replace(partial(0, [1, 2]), count=[4]),
    ],
)
def test_a_partial_that_cannot_be_is_refused(bad: StepPartial) -> None:
    core = JobCore(SMALL)
    core.feed(partial(0, [1]))
    with pytest.raises(InvalidInput):
        core.feed(bad)


EARLY = [100_000] * 60 + [112_000] * 40
"""A little slower, soon after the start: reason enough for a request, and a spurious one."""


@pytest.mark.parametrize(
    ("name", "later", "requests"),
    [
        ("no worse", [112_000] * 600, 1),
        ("a little worse", [125_000] * 600, 1),
        ("much worse", [300_000] * 600, 2),
        ("worse and worse", [200_000] * 300 + [400_000] * 300, 3),
        ("recovered, then much worse", [100_000] * 100 + [300_000] * 400, 2),
        ("recovered, then as before", [100_000] * 100 + [112_000] * 400, 1),
        ("three long ones", ([112_000] * 50 + [5_000_000] * 3) * 4, 1),
    ],
)
def test_a_level_clearly_worse_than_the_one_asked_about_overrides_the_cooldown(
    name: str, later: list[int], requests: int
) -> None:
    found = requests_of(JobCore(SMALL), run_of(EARLY + later))
    assert [r.reason for r in found if r.reason != "spike"] == ["degradation"] * requests, name
    assert all("times what was asked about before" in r.detail for r in found[1:] if r.reason == "degradation")
    levels = [r.figures["observed_us"] for r in found if r.reason == "degradation"]
    assert all(b > 1.25 * a for a, b in pairwise(levels))


def test_the_budget_holds_for_worse_levels_too() -> None:
    poor = SMALL.model_copy(update={"budget_min_steps": 5})
    assert len(requests_of(JobCore(poor), run_of(EARLY + [300_000] * 600))) == 1


def test_a_slowdown_after_a_standstill_is_asked_about_when_it_is_clear() -> None:
    core = JobCore(SMALL)
    requests_of(core, run_of(HEALTHY))
    assert [r.reason for r in requests_of(core, [idle(31, 200)])] == ["blocked"]
    on = T0 + 60 * SECOND
    assert requests_of(core, run_of([112_000] * 100, start=200, at=on)) == []
    assert len(requests_of(core, run_of([300_000] * 100, start=300, at=on + 12 * SECOND))) == 1


YEAR = 365 * 24 * 3_600 * SECOND


def test_one_clock_of_another_year_freezes_neither_cooldown_nor_silence() -> None:
    """Shard 1 of three says once, or always, that it is next year."""
    for always in (False, True):
        core = JobCore(SMALL.model_copy(update={"cooldown_ms": 60_000}))
        values = HEALTHY + [300_000] * 600
        shards = [run_of(values, at=T0 + s, shard=s, world=12) for s in range(3)]
        far = [
            msgspec.structs.replace(p, event_time_us=p.event_time_us + YEAR) if always or i == 5 else p
            for i, p in enumerate(shards[1])
        ]
        found = [r for row in zip(shards[0], far, shards[2], strict=True) for r in requests_of(core, list(row))]
        assert len(found) == 3, "asked about three times, a cool-down apart"
        assert all(T0 <= r.issued_at_us < T0 + YEAR // 2 for r in found)
        assert min(np.diff([r.issued_at_us for r in found])) >= 60 * SECOND


def test_the_only_clock_is_believed_and_may_be_set_back() -> None:
    core = JobCore(SMALL.model_copy(update={"cooldown_ms": 60_000}))
    assert len(requests_of(core, run_of(HEALTHY + [300_000] * 20, at=T0 + YEAR))) == 1
    later = requests_of(core, run_of([300_000] * 600, start=220, at=T0 + 40 * SECOND))
    assert len(later) == 2 and all(r.issued_at_us < T0 + YEAR // 2 for r in later)


def test_a_flood_of_run_ids_is_held_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, and by what waits in them; a job that goes on speaking is kept, with what is known of it."""
    for bound, value in (("MAX_RUNS", 20), ("MAX_HELD", 5_000)):
        with monkeypatch.context() as patch:
            patch.setattr(f"eroica.streams.job.{bound}", value)
            core = JobCore(SMALL)
            core.feed_job(view(4))
            found = []
            for i, one in enumerate(run_of(HEALTHY + SLOW)):
                core.feed(partial(0, [100.0] * 300, run=f"x{i}", job=f"x{i}", world=800))
                found += requests_of(core, [one])
            assert [sorted(r.classes.values()) for r in found] == [["0,2", "1,3"]]
            assert core.counters.forgotten >= 9
            assert core.jobs().count("j") == 1 and len(core.jobs()) <= 21
