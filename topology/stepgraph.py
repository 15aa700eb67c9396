"""One training step as a graph of who waits for whom, and its length.

An operation belongs to a pipeline rank (``stage``) and runs on every *lane*: lane ``i`` of all stages together is one
pipeline, one replica of the model. Operations are work (end = start + time) or members of a meeting (a collective, or a
send with its receive), whose members all end when the last has come, plus each one's transfer time. A meeting joins
operations of several stages, and may join lanes too. So the graph is written once for all lanes, and its length is a
longest path that is computed level by level over all lanes and steps at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from eroica.schemas.errors import TopologyError
from eroica.schemas.ranks import RankArray

__all__ = ["FloatArray", "GraphBuilder", "Op", "StepGraph", "Timing"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Op:
    """An operation of one pipeline rank, the same on all lanes."""

    stage: int
    kind: str
    """``forward-compute``, ``backward-compute``, ``forward-send``, ``grads-reduce-scatter``, …"""
    index: int = 0
    """Its place among the operations of its kind and stage, or its micro-batch."""
    chunk: int = 0
    """Model chunk (virtual stage) that it works on."""

    def __str__(self) -> str:
        return f"{self.kind} {self.index} of stage {self.stage}" + (f" chunk {self.chunk}" if self.chunk else "")


@dataclass(frozen=True)
class Timing:
    """When everything happened, from the start of the step: arrays of shape (ops, lanes, steps)."""

    start: FloatArray
    end: FloatArray

    def step_times(self) -> FloatArray:
        """Length of each step, shape (steps,): from its first start to its last end."""
        first = self.start.min(axis=(0, 1))
        return np.asarray(self.end.max(axis=(0, 1)) - first, dtype=np.float64)


@dataclass(frozen=True)
class _Level:
    """Nodes whose predecessors all lie in lower levels."""

    nodes: RankArray
    preds: RankArray
    offsets: RankArray
    weighted: RankArray
    """Positions in ``nodes`` that take time, and the operations whose time it is."""
    ops: RankArray
    syncs: tuple[tuple[str, RankArray], ...]
    """Lane partition → positions in ``nodes`` that meet across it."""


@dataclass(frozen=True)
class _Partition:
    order: RankArray
    offsets: RankArray
    label: RankArray


class StepGraph:
    """A compiled step. Made by ``GraphBuilder.build``."""

    def __init__(
        self,
        ops: Sequence[Op],
        meets: npt.NDArray[np.bool_],
        levels: Sequence[_Level],
        start_node: RankArray,
        end_node: RankArray,
        partitions: Mapping[str, _Partition],
        lanes: int,
    ) -> None:
        self.ops: tuple[Op, ...] = tuple(ops)
        self.meets = meets
        """Shape (ops,): the operation is a member of a meeting; its time is the transfer, without the wait."""
        self.lanes = lanes
        self.stage: RankArray = np.fromiter((o.stage for o in ops), dtype=np.int64, count=len(ops))
        self.kinds: tuple[str, ...] = tuple(dict.fromkeys(o.kind for o in ops))
        self.kind: RankArray = np.fromiter((self.kinds.index(o.kind) for o in ops), dtype=np.int64, count=len(ops))
        self._levels = levels
        self._start_node, self._end_node = start_node, end_node
        self._partitions = partitions

    @property
    def depth(self) -> int:
        """Number of levels: what evaluation takes is proportional to it, whatever the number of lanes."""
        return len(self._levels)

    def evaluate(self, times: FloatArray) -> Timing:
        """Run the step.

        :param times: shape (ops, lanes, steps): time of work, transfer time of members of a meeting; any one unit.
        :raises ValueError: if the shape is another.
        """
        if times.ndim != 3 or times.shape[:2] != (len(self.ops), self.lanes):
            raise ValueError(f"times have shape {times.shape}, not ({len(self.ops)}, {self.lanes}, steps)")
        count = int(max(self._start_node.max(initial=-1), self._end_node.max(initial=-1))) + 1
        count = max(count, max((int(level.nodes.max()) for level in self._levels), default=-1) + 1)
        value = np.zeros((count, *times.shape[1:]), dtype=np.float64)
        for level in self._levels:
            if level.preds.size:
                here = np.maximum.reduceat(value[level.preds], level.offsets, axis=0)
            else:
                here = np.zeros((level.nodes.size, *times.shape[1:]), dtype=np.float64)
            if level.ops.size:
                here[level.weighted] += times[level.ops]
            for name, which in level.syncs:
                part = self._partitions[name]
                last = np.maximum.reduceat(here[which][:, part.order], part.offsets, axis=1)
                here[which] = last[:, part.label]
            value[level.nodes] = here
        end = value[self._end_node]
        start = np.where(self.meets[:, None, None], value[self._start_node], end - times)
        return Timing(start, end)


@dataclass
class GraphBuilder:
    """Writes a step down, operation by operation."""

    lanes: int
    partitions: Mapping[str, RankArray] = field(default_factory=dict)
    """Name → label of each lane, shape (lanes,): lanes of one label meet."""

    def __post_init__(self) -> None:
        self._ops: list[Op] = []
        self._preds: list[list[int]] = []
        self._meetings: list[tuple[tuple[int, ...], str]] = []
        self._meeting_of: dict[int, int] = {}

    def add(self, op: Op, after: Iterable[int] = ()) -> int:
        """Add an operation that starts when those of *after* have ended; returns its number."""
        self._ops.append(op)
        self._preds.append(list(after))
        return len(self._ops) - 1

    def wait(self, op: int, after: Iterable[int]) -> None:
        """Let *op* also wait for the end of those of *after*."""
        self._preds[op].extend(after)

    def meet(self, members: Sequence[int], across: str = "") -> None:
        """Let *members* end together, across the lanes of a partition too where one is named.

        :raises TopologyError: if a member meets twice, or the partition is unknown.
        """
        if across and across not in self.partitions:
            raise TopologyError(f"there is no partition of lanes {across!r}")
        for member in members:
            if member in self._meeting_of:
                raise TopologyError(f"{self._ops[member]} takes part in two meetings")
            self._meeting_of[member] = len(self._meetings)
        self._meetings.append((tuple(members), across))

    def build(self) -> StepGraph:
        """Compile.

        :raises TopologyError: if operations wait for each other in a circle, naming one: that is a deadlock.
        """
        preds, weight_op, start_node, end_node, syncs = self._nodes()
        depth = self._depths(preds, end_node)
        levels = _levels(preds, depth, weight_op, syncs)
        meets = np.zeros(len(self._ops), dtype=bool)
        meets[list(self._meeting_of)] = True
        parts = {name: _partition(label, self.lanes) for name, label in self.partitions.items()}
        return StepGraph(self._ops, meets, levels, np.array(start_node), np.array(end_node), parts, self.lanes)

    def _nodes(self) -> tuple[list[list[int]], list[int], list[int], list[int], dict[int, str]]:
        """Nodes of the longest path: an end for each operation, and for meetings a start of each member and the meeting
        itself.
        """
        n = len(self._ops)
        end_node = list(range(n))
        start_node = list(range(n))
        preds: list[list[int]] = [list(p) for p in self._preds]
        weight_op = list(range(n))
        syncs: dict[int, str] = {}
        for members, across in self._meetings:
            arrivals = []
            for member in members:
                start_node[member] = len(preds)
                arrivals.append(len(preds))
                preds.append(preds[member])
                weight_op.append(-1)
            meeting = len(preds)
            preds.append(arrivals)
            weight_op.append(-1)
            if across:
                syncs[meeting] = across
            for member in members:
                preds[member] = [meeting]
        return preds, weight_op, start_node, end_node, syncs

    def _depths(self, preds: list[list[int]], end_node: list[int]) -> RankArray:
        followers: list[list[int]] = [[] for _ in preds]
        waiting = [len(p) for p in preds]
        for node, before in enumerate(preds):
            for p in before:
                followers[p].append(node)
        depth = np.zeros(len(preds), dtype=np.int64)
        ready = [node for node, count in enumerate(waiting) if count == 0]
        done = 0
        while ready:
            node = ready.pop()
            done += 1
            for f in followers[node]:
                depth[f] = max(depth[f], depth[node] + 1)
                waiting[f] -= 1
                if waiting[f] == 0:
                    ready.append(f)
        if done < len(preds):
            stuck = next(i for i, node in enumerate(end_node) if waiting[node] > 0)
            raise TopologyError(f"a deadlock: {self._ops[stuck]} waits for itself", do="check the order of operations")
        return depth


def _levels(preds: list[list[int]], depth: RankArray, weight_op: list[int], syncs: dict[int, str]) -> list[_Level]:
    order = np.argsort(depth, kind="stable")
    cuts = np.flatnonzero(np.diff(depth[order])) + 1
    levels = []
    for nodes in np.split(order, cuts) if order.size else []:
        before = [preds[node] for node in nodes.tolist()]
        sizes = [len(b) for b in before]
        flat = np.array([p for b in before for p in b], dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(sizes)))[:-1].astype(np.int64)
        ops = np.array([weight_op[node] for node in nodes.tolist()], dtype=np.int64)
        weighted = np.flatnonzero(ops >= 0)
        by_name: dict[str, list[int]] = {}
        for position, node in enumerate(nodes.tolist()):
            if node in syncs:
                by_name.setdefault(syncs[node], []).append(position)
        across = tuple((name, np.array(which, dtype=np.int64)) for name, which in by_name.items())
        levels.append(_Level(nodes, flat, offsets, weighted, ops[weighted], across))
    return levels


def _partition(label: RankArray, lanes: int) -> _Partition:
    if label.shape != (lanes,):
        raise TopologyError(f"a partition of lanes has shape {label.shape}, not ({lanes},)")
    _, compact = np.unique(label, return_inverse=True)
    order = np.argsort(compact, kind="stable").astype(np.int64)
    offsets = np.concatenate(([0], np.flatnonzero(np.diff(compact[order])) + 1)).astype(np.int64)
    return _Partition(order, offsets, compact.astype(np.int64))
