"""Hop 1: which steps close, with which values, whatever the order in which hosts speak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams_kit import SECOND, T0, batch, iterations

from eroica.schemas.errors import InvalidInput
from eroica.schemas.iterations import IterationBatch, RankIterations, StepPartial
from eroica.schemas.settings import DetectSettings
from eroica.streams.grid import StepGrid
from eroica.streams.shard import ShardCore

pytestmark = pytest.mark.unit


def feed_all(core: ShardCore, batches: list[IterationBatch]) -> list[StepPartial]:
    partials = []
    for one in batches:
        for output in core.feed(one):
            assert output.topic == "partials" and output.key == "j"
            assert isinstance(output.message, StepPartial)
            partials.append(output.message)
    return partials


def steps_of(partials: list[StepPartial]) -> dict[int, tuple[int, float, int, int]]:
    """Step → (count, mean, max, rank); fails on a step told twice or out of order."""
    steps: dict[int, tuple[int, float, int, int]] = {}
    for p in partials:
        for i, row in enumerate(zip(p.count, p.mean_us, p.max_us, p.max_rank, strict=True)):
            step = p.first_step + i
            assert not steps or step > max(steps)
            steps[step] = row
    return steps


def test_a_step_closes_once_every_rank_has_reported_it() -> None:
    core = ShardCore(DetectSettings())
    first = core.feed(batch([iterations(0, 7, [10, 20]), iterations(1, 7, [30, 40])], host="a"))
    assert first == []
    done = feed_all(core, [batch([iterations(2, 7, [50, 60]), iterations(3, 7, [90, 80])], host="b")])
    assert steps_of(done) == {7: (4, 45.0, 90, 3), 8: (4, 50.0, 80, 3)}


def test_a_lost_step_of_one_rank_closes_by_the_grace() -> None:
    core = ShardCore(DetectSettings(shard_grace_steps=4))
    ranks = [iterations(r, 0, [10] * 3) for r in range(4)]
    others = [iterations(r, 3, [20] * 5) for r in range(3)]
    partials = feed_all(core, [batch(ranks), batch([*others, iterations(3, 4, [30] * 4)], at=T0 + 1)])
    steps = steps_of(partials)
    assert steps[3] == (3, 20.0, 20, 0), "rank 3 never told step 3, and all are four steps further"
    assert steps[2][0] == 4 and 4 not in steps


def test_a_grace_step_waits_while_the_slowest_rank_may_still_tell() -> None:
    core = ShardCore(DetectSettings(shard_grace_steps=4))
    ahead = [iterations(r, 0, [20] * 100) for r in range(3)]
    assert core.feed(batch(ahead)) == []
    steps = steps_of(feed_all(core, [batch([iterations(3, 0, [40] * 2)], host="b")]))
    assert sorted(steps) == [0, 1]


def test_late_values_are_counted_and_change_nothing() -> None:
    core = ShardCore(DetectSettings())
    everyone = [iterations(r, 0, [10, 10]) for r in range(4)]
    assert len(core.feed(batch(everyone))) == 1
    assert core.feed(batch([iterations(0, 0, [999, 999])], at=T0 + 1)) == []
    assert core.counters.late == 2


def silent_after(seconds: int) -> list[IterationBatch]:
    """Host b says nothing after the start; host a goes on, a batch a second."""
    start = [
        batch([iterations(0, 0, [10]), iterations(1, 0, [10])], host="a"),
        batch([iterations(2, 0, [10]), iterations(3, 0, [10])], host="b"),
    ]
    more = [
        batch([iterations(0, s, [10]), iterations(1, s, [10])], host="a", at=T0 + s * SECOND, seq=s)
        for s in range(1, seconds + 1)
    ]
    return [*start, *more]


def test_a_silent_host_is_absent_by_the_others_event_time_and_holds_nobody() -> None:
    core = ShardCore(DetectSettings(silence_ms=20_000))
    before = feed_all(core, silent_after(19))
    assert sorted(steps_of(before)) == [0] and before[-1].absent == ""
    core = ShardCore(DetectSettings(silence_ms=20_000))
    after = feed_all(core, silent_after(30))
    assert after[-1].absent == "2-3"
    assert steps_of(after)[26][:2] == (2, 10.0)


def test_an_absent_rank_that_returns_counts_again() -> None:
    core = ShardCore(DetectSettings(silence_ms=20_000))
    feed_all(core, silent_after(30))
    back = batch([iterations(r, 31, [10] * 9) for r in (2, 3)], host="b", at=T0 + 31 * SECOND)
    also = batch([iterations(r, 31, [10] * 9) for r in (0, 1)], host="a", at=T0 + 32 * SECOND)
    partials = feed_all(core, [back, also])
    assert partials[-1].absent == ""
    assert steps_of(partials)[31][0] == 4


def test_a_pause_of_all_is_nobodys_silence() -> None:
    core = ShardCore(DetectSettings(silence_ms=20_000))
    feed_all(core, silent_after(3))
    gone = 600 * SECOND
    a = batch([iterations(0, 4, [10]), iterations(1, 4, [10])], host="a", at=T0 + gone)
    b = batch([iterations(2, 1, [10] * 4), iterations(3, 1, [10] * 4)], host="b", at=T0 + gone + SECOND // 2)
    partials = feed_all(core, [a, b])
    assert [p.absent for p in partials] == ["", ""][: len(partials)]
    assert {count for count, *_ in steps_of(partials).values()} == {4}


def test_idleness_is_that_of_the_least_idle_rank() -> None:
    core = ShardCore(DetectSettings())
    feed_all(core, [batch([iterations(r, 0, [10]) for r in range(4)])])
    idle = [RankIterations(rank=r, idle_us=(40 + r) * SECOND, last_event="loader_enter") for r in range(4)]
    told = feed_all(core, [batch(idle, at=T0 + 45 * SECOND)])
    assert (told[0].count, told[0].min_idle_us, told[0].idle_rank, told[0].last_event) == ([], 40 * SECOND, 3, "loader_enter")


def test_ended_ranks_are_neither_idle_nor_waited_for() -> None:
    core = ShardCore(DetectSettings())
    feed_all(core, [batch([iterations(r, 0, [10]) for r in range(4)])])
    bye = [iterations(r, 1, [10] if r else [10, 10], ended=True) for r in range(4)]
    told = feed_all(core, [batch(bye, at=T0 + 2 * SECOND)])
    assert told[-1].ended and told[-1].min_idle_us == 0
    assert sorted(steps_of(told)) == [1, 2]


def test_marks_travel_with_their_step() -> None:
    core = ShardCore(DetectSettings())
    ranks = [iterations(r, 0, [10] * 3, marks={"checkpoint": 1} if r == 2 else {}) for r in range(4)]
    assert feed_all(core, [batch(ranks)])[0].marked == [1]


def test_a_jump_of_all_ranks_is_followed_and_of_one_is_not() -> None:
    core = ShardCore(DetectSettings())
    feed_all(core, [batch([iterations(r, 0, [10] * 5) for r in range(4)])])
    feed_all(core, [batch([iterations(0, 10**12, [10])], at=T0 + 1)])
    assert sorted(steps_of(feed_all(core, [batch([iterations(r, 5, [10]) for r in range(4)], at=T0 + 2)]))) == [5]
    far = [iterations(r, 50_000, [10] * 40) for r in range(1, 4)]
    feed_all(core, [batch(far, at=T0 + 3), batch([iterations(0, 50_000, [10] * 40)], at=T0 + 4)])
    on = feed_all(core, [batch([iterations(r, 50_040, [10] * 40) for r in range(4)], at=T0 + 5)])
    assert steps_of(on)[50_075] == (4, 10.0, 10, 0)


@pytest.mark.parametrize(
    "bad",
    [
        batch([iterations(4, 0, [1])]),
        batch([iterations(-1, 0, [1])]),
        batch([iterations(0, -1, [1])]),
        batch([iterations(0, 0, [-5])]),
        batch([iterations(0, 0, [2**80])]),
        batch([iterations(0, 0, [1], idle_us=-1)]),
        batch([], shard=1),
        batch([], shard=-1),
        batch([], per_shard=0),
        batch([], world=8),
        batch([], at=-1),
        batch([iterations(0, 0, [1])], world=10**7, per_shard=10**7, run="other"),
    ],
)
def test_what_cannot_be_is_refused_whole(bad: IterationBatch) -> None:
    core = ShardCore(DetectSettings())
    core.feed(batch([iterations(0, 0, [1])]))
    with pytest.raises(InvalidInput):
        core.feed(bad)
    rest = feed_all(core, [batch([iterations(r, 0, [1]) for r in range(1, 4)], at=T0 + 1)])
    assert steps_of(rest) == {0: (4, 1.0, 1, 0)}


def test_memory_of_a_lagging_rank_is_bounded() -> None:
    grid = StepGrid(2)
    late, ahead = grid.put(0, 0, np.ones((1, 100_000), dtype=np.int64))
    assert late == 0 and ahead == 100_000 - 8_192
    assert grid.put(1, 0, np.ones((1, 10), dtype=np.int64)) == (0, 0)
    assert grid.full_until() == 10


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[list[IterationBatch], list[IterationBatch]]:
    """Batches of four ranks on two hosts in order, and the same with repetitions, neighbours swapped."""
    grace = 4
    batches: list[IterationBatch] = []
    steps = [0, 0]
    for turn in range(draw(st.integers(3, 12))):
        for host, ranks in enumerate(((0, 1), (2, 3))):
            n = draw(st.integers(0, grace // 2))
            values = [[draw(st.integers(1, 10**6)) for _ in range(n)] for _ in ranks]
            parts = [iterations(r, steps[host], v) for r, v in zip(ranks, values, strict=True)]
            batches.append(batch(parts, host="ab"[host], seq=turn, at=T0 + turn * SECOND + host))
            steps[host] += n
    mixed = list(batches)
    for _ in range(draw(st.integers(0, 6))):
        mixed.insert(draw(st.integers(0, len(mixed))), mixed[draw(st.integers(0, len(mixed) - 1))])
    other = list(batches)
    for i in range(0, len(other) - 1, 2):
        if draw(st.booleans()):
            other[i], other[i + 1] = other[i + 1], other[i]
    repeated = [one for b in other for one in ([b, b] if draw(st.booleans()) else [b])]
    return batches, repeated


@given(shuffled())
@settings(max_examples=150)
def test_repetition_and_reordering_within_the_grace_change_no_step(
    case: tuple[list[IterationBatch], list[IterationBatch]],
) -> None:
    ordered, mixed = case
    closing = [
        batch([iterations(r, 100, [5], ended=True) for r in range(4)], host=h, at=T0 + 100 * SECOND, seq=100) for h in "ab"
    ]
    detect = DetectSettings()
    plain = steps_of(feed_all(ShardCore(detect), [*ordered, *closing]))
    assert steps_of(feed_all(ShardCore(detect), [*mixed, *closing])) == plain


def test_a_flood_of_run_ids_is_held_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, and by what their ranks take; who goes on speaking is kept."""
    for bound, value in (("MAX_SHARDS", 50), ("MAX_HELD_CELLS", 64 * 1_000 * 20)):
        with monkeypatch.context() as patch:
            patch.setattr(f"eroica.streams.shard.{bound}", value)
            core = ShardCore(DetectSettings())
            for i in range(300):
                core.feed(batch([iterations(0, 0, [10])], run=f"x{i}", world=1_000, per_shard=1_000))
                told = feed_all(core, [batch([iterations(r, i, [10]) for r in range(4)], at=T0 + i)])
                assert steps_of(told) == {i: (4, 10.0, 10, 0)}
            assert core.counters.forgotten >= 240
            assert len(core._shards) <= 50
