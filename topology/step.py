"""The step graph of a plan: compute in one stream, each direction of point-to-point in its own, parameters and gradients
in another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.topology.lanes import Lanes
from eroica.topology.pipeline import KINDS
from eroica.topology.schedules import Action, ActionKind, Schedule
from eroica.topology.stepgraph import FloatArray, GraphBuilder, Op, StepGraph
from eroica.topology.strategy import Block, Costs, Plan

__all__ = ["LOADING", "REPLICAS", "WORLD", "Step", "build_step"]

WORLD = "world"
LOADING = "loading"
"""Kind of the operation that opens a rank's step where the plan has one."""
REPLICAS = "grads-replica-all-reduce"
"""Kind of the all-reduce over replicas of what a group has reduced already (HSDP)."""
_GIVING: tuple[ActionKind, ActionKind, ActionKind] = ("F", "B", "I")
"""Actions whose result a neighbouring stage waits for: forward, whole backward, first half of the backward."""


@dataclass(frozen=True)
class Step:
    """A plan's step on the lanes of a layout."""

    graph: StepGraph
    times: FloatArray
    """Shape (ops,): nominal time of each operation, the same on all lanes."""
    lanes: Lanes

    def nominal(self, steps: int = 1) -> FloatArray:
        """Nominal times for ``StepGraph.evaluate``, shape (ops, lanes, steps)."""
        times: FloatArray = np.tile(self.times[:, None, None], (1, self.lanes.count, steps))
        return times

    def length(self) -> float:
        """Nominal length of the step."""
        return float(self.graph.evaluate(self.nominal()).step_times()[0])


def build_step(plan: Plan, lanes: Lanes, costs: Costs) -> Step:
    """The step graph of *plan* on *lanes*.

    :raises TopologyError: if the plan does not fit the layout, or its order deadlocks.
    """
    return _StepBuilder(plan, lanes, costs).build()


class _StepBuilder:
    def __init__(self, plan: Plan, lanes: Lanes, costs: Costs) -> None:
        self.plan, self.lanes, self.costs = plan, lanes, costs
        self.schedule: Schedule = plan.make_schedule()
        if self.schedule.ranks != lanes.stages:
            raise TopologyError(f"the plan has {self.schedule.ranks} pipeline ranks, the layout {lanes.stages}")
        self.blocks = plan.stages()
        axes = {e.axis for b in plan.blocks for e in b.exchanges}
        if plan.sharing is not None:
            axes |= {plan.sharing.axis} | ({plan.sharing.replicas} if plan.sharing.replicas else set())
        self.members: dict[str, int] = {}
        partitions = {WORLD: np.zeros(lanes.count, dtype=np.int64)}
        for axis in sorted(axes):
            kind = self._kind(axis)
            self.members[axis] = lanes.layout.groups(kind).largest()
            partitions[axis] = lanes.partition(kind)
        self.graph = GraphBuilder(lanes.count, partitions)
        self.times: list[float] = []
        self.done: dict[Action, list[int]] = {}
        self.starts: dict[Action, list[int]] = {}
        self.partner = {backward: forward for forward, backward in self.schedule.overlapped.items()}
        self.gathered: set[tuple[int, str]] = set()
        self.streams: dict[tuple[int, str], int] = {}
        self.count: dict[tuple[int, str], int] = {}
        self.opening: list[list[int]] = []
        self.tail: list[list[int]] = [[] for _ in range(self.schedule.ranks)]

    def _kind(self, axis: str) -> str:
        names = [k for k in self.lanes.layout.kinds if k.split(".")[-1] == axis]
        if not names:
            raise TopologyError(f"the layout has no group kind {axis!r}", do=f"it has {', '.join(self.lanes.layout.kinds)}")
        return names[0]

    def build(self) -> Step:
        for rank, order in enumerate(self.schedule.orders):
            final = set({a.stage: a for a in order if a.kind in "BW"}.values())
            before: list[int] = []
            if self.plan.loading is not None:
                before = [self._add(rank, LOADING, self.plan.loading, [])]
            self.opening.append(before)
            early = before
            for action in order:
                early, before = before, self._action(rank, action, before, early, action in final)
            self.tail[rank] = before
        self._transfers()
        self._finish()
        return Step(self.graph.build(), np.array(self.times, dtype=np.float64), self.lanes)

    def _add(self, rank: int, kind: str, time: float, after: list[int], chunk: int = 0) -> int:
        index = self.count.get((rank, kind), 0)
        self.count[rank, kind] = index + 1
        self.times.append(time)
        return self.graph.add(Op(rank, kind, index, chunk), after)

    def _in_stream(
        self, rank: int, stream: str, name: str, kind: str, size: float, after: list[int], axis: str, chunk: int
    ) -> int:
        """A collective in a stream of its own: after what it needs and after its stream's last."""
        ahead = self.streams.get((rank, stream))
        time = self.costs.transfer(kind, size, self.members[axis], axis)
        op = self._add(rank, name, time, [*after, *([] if ahead is None else [ahead])], chunk)
        self.streams[rank, stream] = op
        self.graph.meet([op], across=axis)
        return op

    def _action(self, rank: int, action: Action, before: list[int], early: list[int], final: bool) -> list[int]:
        """Add an action after *before*; gathers ahead of it may start after *early*. Returns what the rank's next waits for."""
        blocks = self.blocks[action.stage]
        chunk = action.stage // self.schedule.ranks
        after = [*before, *self._gather(rank, action, early)]
        sharing = self.plan.sharing if final else None
        parts = 1 if sharing is None else sharing.buckets
        total = sum(_time(b, action.kind) for b in blocks)
        op = -1
        for _ in range(parts):
            op = self._add(rank, KINDS[action.kind], total / parts, after, chunk)
            self.starts.setdefault(action, [op])
            after = [op]
            if sharing is not None:
                kind = "reduce-scatter" if sharing.level else "all-reduce"
                size = sum(b.parameter_bytes for b in blocks) / parts
                self._in_stream(rank, "dp", f"grads-{kind}", kind, size, [op], sharing.axis, chunk)
                if sharing.replicas:
                    part = size / self.members[sharing.axis] if sharing.level else size
                    self._in_stream(rank, "dp", REPLICAS, "all-reduce", part, [op], sharing.replicas, chunk)
        if action.kind != "W":
            after = self._exchanges(rank, action, before, op)
        self.done[action] = after
        return after

    def _gather(self, rank: int, action: Action, early: list[int]) -> list[int]:
        """Gather sharded parameters where this action is the first to need them."""
        sharing = self.plan.sharing
        if sharing is None or not sharing.level:
            return []
        phase = "forward" if sharing.level < 3 or action.kind == "F" else "backward"
        if (action.stage, phase) in self.gathered:
            return []
        self.gathered.add((action.stage, phase))
        size = sum(b.parameter_bytes for b in self.blocks[action.stage])
        chunk = action.stage // self.schedule.ranks
        return [self._in_stream(rank, "dp", "params-all-gather", "all-gather", size, early, sharing.axis, chunk)]

    def _exchanges(self, rank: int, action: Action, before: list[int], op: int) -> list[int]:
        """Collectives inside an action, those of one kind and axis together."""
        sizes: dict[tuple[str, str], float] = {}
        for block in self.blocks[action.stage]:
            for e in block.exchanges:
                sizes[e.kind, e.axis] = sizes.get((e.kind, e.axis), 0.0) + e.size_bytes
        way = "forward" if action.kind == "F" else "backward"
        chunk = action.stage // self.schedule.ranks
        last, beside = op, []
        for (kind, axis), size in sorted(sizes.items()):
            name = f"{way}-{axis}-{kind}"
            if kind == "ring":
                ring = self._in_stream(rank, axis, name, kind, size, before, axis, chunk)
                self.starts[action].append(ring)
                beside.append(ring)
            else:
                time = self.costs.transfer(kind, size, self.members[axis], axis)
                last = self._add(rank, name, time, [last], chunk)
                self.graph.meet([last], across=axis)
        return [last, *beside]

    def _transfers(self) -> None:
        """Sends and receives between stages; a receive is posted after the rank's last computation in its direction."""
        for rank, order in enumerate(self.schedule.orders):
            latest: dict[str, list[int]] = {}
            for action in order:
                if action.kind == "W":
                    continue
                way = "forward" if action.kind == "F" else "backward"
                self._receive(rank, action, way, latest.get(way, self.opening[rank]))
                latest[way] = self.done[action]

    def _receive(self, rank: int, action: Action, way: str, posted: list[int]) -> None:
        origin = action.stage - 1 if way == "forward" else action.stage + 1
        if not 0 <= origin < self.schedule.stages:
            return
        forward, whole, half = (Action(origin, k, action.micro) for k in _GIVING)
        source = forward if way == "forward" else whole if whole in self.done else half
        leaving = self.done[self.schedule.overlapped.get(source, source)]
        sender = self.schedule.rank_of(origin)
        if sender == rank:
            self._hold(action, leaving)
            return
        size = self.blocks[min(origin, action.stage)][-1].activation_bytes
        time = self.costs.transfer("send", size, 2, "pp")
        ends = []
        sides = ((sender, "send", leaving, origin), (rank, "recv", posted, action.stage))
        for at, side, after, stage in sides:
            stream = at, f"{way}-{side}-{stage}"
            ahead = self.streams.get(stream)
            waits = [*after, *([] if ahead is None else [ahead])]
            ends.append(self._add(at, f"{way}-{side}", time, waits, stage // self.schedule.ranks))
            self.streams[stream] = ends[-1]
        self.graph.meet(ends)
        self._hold(action, [ends[1]])

    def _hold(self, action: Action, after: list[int]) -> None:
        """Let an action, what runs beside it, and a forward that it overlaps with, wait."""
        for start in [*self.starts[action], *self.starts.get(self.partner.get(action, action), [])]:
            self.graph.wait(start, after)

    def _finish(self) -> None:
        """Clip over the world, then the optimizer."""
        clips = []
        for rank in range(self.schedule.ranks):
            reduced = self.streams.get((rank, "dp"))
            after = [*self.tail[rank], *([] if reduced is None else [reduced])]
            clips.append(self._add(rank, "optimizer-clip-main-grad", 0.0, after))
        self.graph.meet(clips, across=WORLD)
        for rank, clip in enumerate(clips):
            self._add(rank, "optimizer", self.plan.optimizer, [clip])


def _time(block: Block, kind: str) -> float:
    forward, inputs, weights = block.times()
    return {"F": forward, "I": inputs, "W": weights}.get(kind, inputs + weights)
