from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.schemas.errors import TopologyError, UsageError
from eroica.topology.pipeline import (
    ChunkTimes,
    check_schedule,
    expected_bubble,
    measured_bubble,
    peak_in_flight,
    schedule_graph,
)
from eroica.topology.schedules import SCHEDULES, Action, Schedule, make_schedule

pytestmark = pytest.mark.unit


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    ranks, extra = draw(st.integers(1, 8)), draw(st.integers(0, 12))
    rounds = draw(st.integers(1, 4))
    micro = ranks * rounds if name == "interleaved-1f1b" else max(1, SCHEDULES[name].least * ranks) + extra
    chunks = 0 if SCHEDULES[name].chunks else draw(st.integers(1, 4))
    return make_schedule(name, ranks, micro, chunks)


@given(schedules())
@settings(max_examples=200)
def test_every_micro_batch_passes_once_each_way_and_nothing_deadlocks(schedule: Schedule) -> None:
    check_schedule(schedule)
    forward = [a for order in schedule.orders for a in order if a.kind == "F"]
    assert len(forward) == len(set(forward)) == schedule.stages * schedule.micro_batches


@given(schedules(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=300)
def test_bubbles_equal_the_published_formulas(schedule: Schedule, f: int, i: int, w: int) -> None:
    for times in (ChunkTimes(f, i, w), ChunkTimes(f, f, f), ChunkTimes(f, f, min(f, w))):
        told = expected_bubble(schedule, times)
        if told is not None:
            assert measured_bubble(schedule, times) == pytest.approx(told)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_the_formula_covers_equal_chunks(name: str) -> None:
    schedule = make_schedule(name, 4, 16)
    times = ChunkTimes(1, 1, 1)
    told = expected_bubble(schedule, times)
    assert told is not None
    assert measured_bubble(schedule, times) == pytest.approx(told)


def test_bubble_fraction_of_one_f_one_b() -> None:
    schedule = make_schedule("1f1b", 4, 12)
    bubble, work = measured_bubble(schedule, ChunkTimes(1, 1, 1)), 12 * 3
    assert bubble / (bubble + work) == pytest.approx(3 / (12 + 3))


def test_what_overlapping_gains_shortens_the_step_and_the_bubble() -> None:
    schedule = make_schedule("dualpipe-v", 4, 16)
    gained, serial = ChunkTimes(2, 2, 1, overlapped=4), ChunkTimes(2, 2, 1)
    assert expected_bubble(schedule, gained) is None
    assert measured_bubble(schedule, gained) < measured_bubble(schedule, serial)


BOUNDS = {
    "gpipe": lambda p, s: s.micro_batches,
    "1f1b": lambda p, s: min(s.micro_batches, s.ranks - p),
    "interleaved-1f1b": lambda p, s: min((s.chunks - 1) * s.ranks + 2 * (s.ranks - 1 - p) + 1, s.micro_batches * s.chunks),
    "looped-bfs": lambda p, s: s.micro_batches * s.chunks,
    "zbh1": lambda p, s: s.ranks,
    "zbv": lambda p, s: 2 * s.ranks,
    "dualpipe-v": lambda p, s: 2 * s.ranks + 1,
}


@given(schedules())
@settings(max_examples=200)
def test_activations_in_flight_stay_within_the_known_bound(schedule: Schedule) -> None:
    for rank, peak in enumerate(peak_in_flight(schedule)):
        assert peak <= BOUNDS[schedule.name](rank, schedule)


@pytest.mark.parametrize(
    ("name", "peaks"),
    [
        ("gpipe", [16, 16, 16, 16]),
        ("1f1b", [4, 3, 2, 1]),
        ("interleaved-1f1b", [11, 9, 7, 5]),
        ("zbh1", [4, 4, 4, 4]),
        ("zbv", [8, 8, 8, 8]),
        ("dualpipe-v", [9, 9, 9, 9]),
    ],
)
def test_peaks_of_four_ranks(name: str, peaks: list[int]) -> None:
    assert peak_in_flight(make_schedule(name, 4, 16)) == peaks


def test_stages_sit_in_a_loop_or_a_v() -> None:
    assert [make_schedule("interleaved-1f1b", 2, 4).rank_of(s) for s in range(4)] == [0, 1, 0, 1]
    assert [make_schedule("zbv", 2, 4).rank_of(s) for s in range(4)] == [0, 1, 1, 0]


def spoiled(change: Any) -> Schedule:
    schedule = make_schedule("1f1b", 2, 2)
    orders = [list(order) for order in schedule.orders]
    change(orders)
    return replace(schedule, orders=tuple(tuple(order) for order in orders))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda o: o[0].append(o[0][0]), "rank 0 computes F0 of stage 0 twice"),
        (lambda o: o[1].pop(0), "rank 1 never computes F0 of stage 1"),
        (lambda o: o[1].pop(), "rank 1 has no one backward of 1 of stage 1"),
        (lambda o: o[1].append(Action(1, "W", 0)), "no one backward of 0"),
        (lambda o: o[0].append(Action(1, "F", 0)), "which it does not hold"),
        (lambda o: o[1].reverse(), "rank 1 computes B1 of stage 1 before F1 of stage 1"),
        (lambda o: o[0].insert(0, o[0].pop(o[0].index(Action(0, "B", 0)))), "computes B0 of stage 0 before F0"),
    ],
)
def test_broken_orders_are_refused(change: Any, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        check_schedule(spoiled(change))


def test_an_order_that_deadlocks_across_ranks_is_refused() -> None:
    def starve(orders: list[list[Action]]) -> None:
        """Rank 0 wants a gradient before it sends the second micro-batch; rank 1 wants both first."""
        orders[0][:] = [Action(0, "F", 0), Action(0, "B", 0), Action(0, "F", 1), Action(0, "B", 1)]
        orders[1][:] = [Action(1, "F", 0), Action(1, "F", 1), Action(1, "B", 0), Action(1, "B", 1)]

    with pytest.raises(TopologyError, match="a deadlock"):
        check_schedule(spoiled(starve))


@pytest.mark.parametrize(
    ("args", "error", "says"),
    [
        (("pipedream", 4, 8), UsageError, "not a known schedule"),
        (("1f1b", 4, 8, 2), TopologyError, "holds 1 chunks a rank, not 2"),
        (("1f1b", 0, 8), TopologyError, "at least one rank"),
        (("dualpipe-v", 4, 7), TopologyError, "needs at least 8 micro-batches"),
        (("interleaved-1f1b", 4, 9, 2), TopologyError, "cannot be divided into 2 equal rounds"),
        (("gpipe", 10_000, 10_000), TopologyError, "more than"),
    ],
)
def test_sizes_that_cannot_run_are_refused(args: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make_schedule(*args)


TORCH_NAMES = {
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "zbh1": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}


def torch_order(name: str, ranks: int, micro: int, chunks: int) -> list[list[tuple[int, str, int]]]:
    """The order that PyTorch's own schedule of this name gives, without its stages and process groups."""
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules", reason="torch is not installed")
    cls = getattr(pipelining, TORCH_NAMES[name], None)
    if cls is None or not hasattr(cls, "_calculate_single_rank_operations"):
        pytest.skip(f"this torch has no {TORCH_NAMES[name]}")
    rounds = max(1, micro // ranks)
    fake = SimpleNamespace(
        pp_group_size=ranks,
        _n_microbatches=micro,
        n_local_stages=chunks,
        num_stages=ranks * chunks,
        microbatches_per_round=micro // rounds,
    )
    out = []
    for rank in range(ranks):
        actions = []
        for action in cls._calculate_single_rank_operations(fake, rank):
            parts = [] if action is None else getattr(action, "sub_actions", None) or [action]
            actions += [(part.stage_index, part.computation_type.value, part.microbatch_index) for part in parts]
        out.append(actions)
    return out


@pytest.mark.parametrize("name", sorted(TORCH_NAMES))
@pytest.mark.parametrize(("ranks", "micro"), [(1, 2), (2, 4), (4, 8), (4, 16), (3, 6), (5, 20)])
def test_orders_equal_those_of_pytorch(name: str, ranks: int, micro: int) -> None:
    schedule = make_schedule(name, ranks, micro)
    mine = [[(a.stage, a.kind, a.micro) for a in order] for order in schedule.orders]
    assert mine == torch_order(name, ranks, micro, schedule.chunks)


def test_times_are_what_a_person_draws() -> None:
    timing = schedule_graph(make_schedule("gpipe", 2, 2)).evaluate(np.ones((8, 1, 1)))
    assert timing.start[:, 0, 0].tolist() == [0, 1, 3, 4, 1, 2, 3, 4] or timing.start[:, 0, 0].tolist() == [
        0,
        1,
        4,
        5,
        1,
        2,
        3,
        4,
    ]
    assert timing.step_times().tolist() == [6.0]
