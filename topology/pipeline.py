"""A schedule as a graph: checked for completeness and deadlock, timed, and held against the known bubble formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.topology.schedules import Action, Schedule
from eroica.topology.stepgraph import FloatArray, GraphBuilder, Op, StepGraph

__all__ = ["KINDS", "ChunkTimes", "check_schedule", "expected_bubble", "measured_bubble", "peak_in_flight", "schedule_graph"]

KINDS: Mapping[str, str] = {
    "F": "forward-compute",
    "B": "backward-compute",
    "I": "backward-input-compute",
    "W": "backward-weight-compute",
}
"""Action → kind of operation."""


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """Times of one chunk and micro-batch, in any one unit: forward, and the two halves of the backward."""

    forward: float
    backward_input: float
    backward_weight: float
    overlapped: float | None = None
    """A forward and a backward that overlap, together; their sum if nothing is gained."""

    def of(self, kind: str) -> float:
        """The time of an action of *kind*."""
        halves = {"I": self.backward_input, "W": self.backward_weight}
        return self.forward if kind == "F" else halves.get(kind, self.backward_input + self.backward_weight)


def schedule_graph(schedule: Schedule) -> StepGraph:
    """The compute of a schedule on one lane, without transfer times; operations in the order of ranks and their
    actions.

    :raises TopologyError: if the order deadlocks, or an action has nothing to wait for.
    """
    builder = GraphBuilder(1)
    number: dict[Action, int] = {}
    for rank, order in enumerate(schedule.orders):
        for action in order:
            number[action] = builder.add(Op(rank, KINDS[action.kind], action.micro, action.stage // schedule.ranks))
        for before, after in pairwise(order):
            builder.wait(number[after], [number[before]])
    partner = {backward: forward for forward, backward in schedule.overlapped.items()}
    for action, op in number.items():
        for needed in _needs(schedule, action):
            found = next((n for n in needed if n in number), None)
            if found is None:
                raise TopologyError(f"{action} waits for {needed[0]}, which nobody computes", where=schedule.name)
            # What an overlapped forward computes leaves with its backward, and it starts when both can.
            builder.wait(op, [number[schedule.overlapped.get(found, found)]])
            if action in partner and partner[action] != found:
                builder.wait(number[partner[action]], [number[schedule.overlapped.get(found, found)]])
    return builder.build()


def check_schedule(schedule: Schedule) -> None:
    """Every micro-batch passes every stage once forward and once backward, on the rank that holds it, in an order that
    ends.

    :raises TopologyError: naming the first action that is missing, double, misplaced, early or deadlocked.
    """
    for rank, order in enumerate(schedule.orders):
        seen: Counter[Action] = Counter(order)
        twice = next((a for a, n in seen.items() if n > 1), None)
        if twice is not None:
            raise TopologyError(f"rank {rank} computes {twice} twice", where=schedule.name)
        for action in order:
            if schedule.rank_of(action.stage) != rank:
                raise TopologyError(f"rank {rank} computes {action}, which it does not hold", where=schedule.name)
        mine = [s for s in range(schedule.stages) if schedule.rank_of(s) == rank]
        for stage in mine:
            for micro in range(schedule.micro_batches):
                halves = Action(stage, "I", micro) in seen, Action(stage, "W", micro) in seen
                if Action(stage, "F", micro) not in seen:
                    raise TopologyError(f"rank {rank} never computes F{micro} of stage {stage}", where=schedule.name)
                if halves[0] != halves[1] or halves[0] == (Action(stage, "B", micro) in seen):
                    raise TopologyError(f"rank {rank} has no one backward of {micro} of stage {stage}", where=schedule.name)
        _in_order(schedule, rank, order)
    schedule_graph(schedule)


def _in_order(schedule: Schedule, rank: int, order: tuple[Action, ...]) -> None:
    """Within a rank an action may not stand before one that it needs."""
    place = {action: i for i, action in enumerate(order)}
    for action in order:
        for needed in _needs(schedule, action):
            for n in needed:
                if n in place and place[n] > place[action]:
                    raise TopologyError(f"rank {rank} computes {action} before {n}", where=schedule.name)


def _needs(schedule: Schedule, action: Action) -> list[tuple[Action, ...]]:
    """What an action waits for: one of each tuple."""
    stage, kind, micro = action
    if kind == "F":
        return [(Action(stage - 1, "F", micro),)] if stage else []
    if kind == "W":
        return [(Action(stage, "I", micro),)]
    own = (Action(stage, "F", micro),)
    if stage == schedule.stages - 1:
        return [own]
    return [own, (Action(stage + 1, "I", micro), Action(stage + 1, "B", micro))]


def peak_in_flight(schedule: Schedule) -> list[int]:
    """Most (micro-batch, chunk) activations each rank holds at once: from the forward until the gradients of weights
    are done.
    """
    peaks = []
    for order in schedule.orders:
        held = peak = 0
        for action in order:
            held += {"F": 1, "I": 0}.get(action.kind, -1)
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


def measured_bubble(schedule: Schedule, times: ChunkTimes) -> float:
    """Idle time of the rank that idles most, between its own first and last action, in the unit of *times*."""
    graph = schedule_graph(schedule)
    cost = _costs(schedule, times)
    timing = graph.evaluate(cost)
    idle = []
    for rank in range(schedule.ranks):
        mine = graph.stage == rank
        span = float(timing.end[mine].max() - timing.start[mine].min())
        idle.append(span - float(cost[mine].sum()))
    return max(idle)


def _costs(schedule: Schedule, times: ChunkTimes) -> FloatArray:
    """Time of each action, shape (ops, 1, 1); of an overlapped pair the backward takes what the forward leaves."""
    paired = set(schedule.overlapped.values())
    rest = 0.0 if times.overlapped is None else times.overlapped - times.forward
    out = [
        rest if action in paired and times.overlapped is not None else times.of(action.kind)
        for order in schedule.orders
        for action in order
    ]
    return np.array(out, dtype=np.float64)[:, None, None]


def expected_bubble(schedule: Schedule, times: ChunkTimes) -> float | None:
    """The published bubble in the unit of *times*; ``None`` outside of what the formula covers.

    GPipe, 1F1B: (P−1)(F+B); interleaved and looped: the same with the times of a chunk (SC '21, §2.2), for
    micro-batches in multiples of P; ZB-H1: (P−1)(F+I−W) (Zero Bubble, §2.3, Table 2) for W ≤ F, W ≤ I and m ≥ 2P−1;
    ZB-V: none where F = I = W and m ≥ 2P−1; DualPipeV: (P−1)(F&B+B−3W) (DualPipe, 2025; P ranks hold its 2P stages)
    where F = I ≥ W and F&B = F + B.
    """
    hops = schedule.ranks - 1
    f, i, w = times.forward, times.backward_input, times.backward_weight
    m, p = schedule.micro_batches, schedule.ranks
    if schedule.name in ("gpipe", "1f1b"):
        return hops * (f + i + w)
    if schedule.name in ("interleaved-1f1b", "looped-bfs"):
        return hops * (f + i + w) if m % p == 0 else None
    if schedule.name == "zbh1":
        return hops * (f + i - w) if w <= min(f, i) and m >= 2 * p - 1 else None
    if schedule.name == "zbv":
        return 0.0 if f == i == w and m >= 2 * p - 1 else None
    if schedule.name == "dualpipe-v" and f == i >= w and times.overlapped is None:
        return hops * ((f + i + w) + (i + w) - 3 * w)
    return None
