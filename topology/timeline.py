"""The dependency graph of a recorded pipeline step, from the order in which one replica's operations started.

Follows the dependency model of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI '25,
§4.1): compute in one stream, each direction of point-to-point in its own, gradients and parameters in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eroica.schemas.errors import InvalidInput
from eroica.topology.stepgraph import FloatArray, GraphBuilder, Op, StepGraph

__all__ = ["COMMUNICATION", "COMPUTE", "POINT_TO_POINT", "SYNCHRONISED", "Meeting", "Row", "build_graph", "meeting_transfer"]

SYNCHRONISED = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
"""Collectives over the data-parallel ranks of a stage."""
COMMUNICATION = frozenset(
    {
        "forward-send",
        "forward-recv",
        "backward-send",
        "backward-recv",
        "layernorm-grads-all-reduce",
        "embedding-grads-all-reduce",
        "optimizer-clip-main-grad",
        *SYNCHRONISED,
    }
)
"""Kinds that the published analysis idealises to their median."""
COMPUTE = ("forward-compute", "backward-compute")
POINT_TO_POINT = ("forward-send", "forward-recv", "backward-send", "backward-recv")
CLOCK_SLACK_S = 5e-5
"""Clocks within a replica agree to this."""
NEGATIVE_TRANSFER_S = 1e-2
"""A transfer that seems to end this long before its last member started is a clock error and counts as none."""


@dataclass(frozen=True, slots=True)
class Row:
    """An operation of the template replica."""

    stage: int
    kind: str
    seq: int
    chunk: int
    global_chunk: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Meeting:
    """Operations (by number) that end together; ``across`` all lanes or within each."""

    members: tuple[int, ...]
    across: bool


def meeting_transfer(meetings: Sequence[Meeting], start: FloatArray, duration: FloatArray) -> FloatArray:
    """Times with the waiting taken off: a member's transfer lasts from the latest start of its meeting to its own end.

    Arrays of shape (ops, lanes, steps).
    """
    out: FloatArray = duration.copy()
    for meeting in meetings:
        which = list(meeting.members)
        latest = start[which].max(axis=(0, 1) if meeting.across else 0)
        transfer = start[which] + duration[which] - latest
        out[which] = np.where(transfer <= -NEGATIVE_TRANSFER_S, 0.0, transfer)
    return out


def build_graph(rows: Sequence[Row], lanes: int, stages: int = 0) -> tuple[StepGraph, list[Meeting]]:
    """The graph, its operations numbered as *rows*, and its meetings.

    :param stages: how many the job has, if more than *rows* are of: transfers with the others then meet nobody.
    :raises InvalidInput: if the rows are not a pipeline step.
    """
    return _Recorded(rows, lanes, stages).build()


class _Recorded:
    def __init__(self, rows: Sequence[Row], lanes: int, stages: int) -> None:
        self.rows = rows
        self.lanes = lanes
        self.stages = max(r.stage for r in rows) + 1
        self.of_job = max(stages, self.stages)
        self.number = {(r.stage, r.kind, r.seq): i for i, r in enumerate(rows)}
        self.chunks = max(r.chunk for r in rows) + 1
        self.graph = GraphBuilder(lanes, {"dp": np.zeros(lanes, dtype=np.int64)})
        for r in rows:
            self.graph.add(Op(r.stage, r.kind, r.seq, r.chunk))
        self.meetings: list[Meeting] = []

    def build(self) -> tuple[StepGraph, list[Meeting]]:
        overlapped = any(r.kind == "separate-grads-all-reduce" for r in self.rows)
        replicated = self.lanes > 1 or any(r.kind in SYNCHRONISED for r in self.rows)
        sends: dict[tuple[str, int], list[int]] = {}
        for stage in range(self.stages):
            compute = self._of(stage, *COMPUTE)
            if not compute:
                raise InvalidInput(f"stage {stage} computes nothing in the first step")
            self._chain(compute)
            for kind in POINT_TO_POINT:
                self._chain(self._of(stage, kind))
            self._first_backward(stage, compute)
            for direction in ("forward", "backward"):
                for way in ("send", "recv"):
                    sends[f"{direction}-{way}", stage] = self._match(stage, direction, way)
            if replicated:
                self._parameters(stage, overlapped)
            self._finish(stage, compute, overlapped, replicated)
        self._pair(sends)
        self._collectives()
        return self.graph.build(), self.meetings

    def _of(self, stage: int, *kinds: str) -> list[int]:
        return [i for i, r in enumerate(self.rows) if r.stage == stage and r.kind in kinds]

    def _chain(self, ops: Sequence[int]) -> None:
        for before, op in pairwise(ops):
            self.graph.wait(op, [before])

    def _meet(self, members: Sequence[int], across: bool = False) -> None:
        self.meetings.append(Meeting(tuple(members), across))
        self.graph.meet(members, "dp" if across else "")

    def _first_backward(self, stage: int, compute: Sequence[int]) -> None:
        """The first backward transfer is posted after the forward before the last one ahead of the first backward."""
        first = next((p for p, i in enumerate(compute) if self.rows[i].kind == "backward-compute"), 0)
        if first < 2:
            return
        for kind in ("backward-recv", "backward-send"):
            op = self.number.get((stage, kind, 0))
            if op is not None:
                self.graph.wait(op, [compute[first - 2]])

    def _match(self, stage: int, direction: str, way: str) -> list[int]:
        """Tie transfers to the computations they serve; returns those that really move data, in order.

        Recorders list transfers that were never launched: receives after the last computation, sends before the end of
        the first, and with several chunks those beyond the model's ends. Where exactly those that have a peer are listed, they
        are taken as they stand.
        """
        compute = self._of(stage, f"{direction}-compute")
        if not compute:
            return []
        reaching = [i for i in compute if self._has_peer(direction, way, self.rows[i].global_chunk)]
        listed = self._of(stage, f"{direction}-{way}")
        if len(listed) == len(reaching) < len(compute):
            for op, partner in zip(listed, reaching, strict=True):
                place = compute.index(partner)
                self._tie(op, partner, compute[place - 1] if place else None, way)
            return listed
        last_start = max(self.rows[i].start for i in compute) + CLOCK_SLACK_S
        first_end = min(self.rows[i].end for i in compute) - CLOCK_SLACK_S
        candidates = self._of(stage, f"{direction}-{way}")
        real = [i for i in candidates if (self.rows[i].start <= last_start if way == "recv" else self.rows[i].end >= first_end)]
        skip = 0
        if len(real) != len(compute):
            if real and len(real) + 1 != len(compute):
                raise InvalidInput(f"stage {stage} has {len(real)} {direction}-{way} for {len(compute)} {direction} computations")
            skip = 1 if way == "recv" else 0
        moving = []
        for position, op in enumerate(real):
            ahead = self.number.get((stage, f"{direction}-compute", position + skip))
            if ahead is None:
                raise InvalidInput(f"stage {stage} lacks {direction}-compute {position + skip}")
            self._tie(op, ahead, self.number.get((stage, f"{direction}-compute", position + skip - 1)), way)
            if self._has_peer(direction, way, self.rows[ahead].global_chunk):
                moving.append(op)
        for op in set(candidates) - set(moving):
            self._meet([op])
        return moving

    def _tie(self, op: int, partner: int, before: int | None, way: str) -> None:
        """A send follows its computation; a receive comes before it, and is posted after the one before."""
        if way == "send":
            self.graph.wait(op, [partner])
            return
        self.graph.wait(partner, [op])
        if before is not None:
            self.graph.wait(op, [before])

    def _has_peer(self, direction: str, way: str, global_chunk: int) -> bool:
        step = 1 if (direction == "forward") == (way == "send") else -1
        return 0 <= global_chunk + step < self.chunks * self.of_job

    def _pair(self, transfers: dict[tuple[str, int], list[int]]) -> None:
        for direction, step in (("forward", 1), ("backward", -1)):
            for stage in range(self.of_job):
                peer = (stage + step) % self.of_job
                sent, received = (transfers.get((f"{direction}-{w}", s), []) for w, s in (("send", stage), ("recv", peer)))
                if max(stage, peer) >= self.stages:
                    for op in (*sent, *received):
                        self._meet([op])
                    continue
                if len(sent) != len(received):
                    raise InvalidInput(
                        f"stage {stage} sends {len(sent)} times {direction}, but stage {peer} receives {len(received)} times"
                    )
                for a, b in zip(sent, received, strict=True):
                    self._meet([a, b])

    def _parameters(self, stage: int, overlapped: bool) -> None:
        """Parameters are gathered before a chunk's first forward; gradients are reduced after its last backward."""
        self._chain(self._of(stage, "params-all-gather", "grads-reduce-scatter"))
        gathers = {self.rows[i].chunk: i for i in self._of(stage, "params-all-gather")}
        forwards = self._of(stage, "forward-compute")
        for chunk, gather in gathers.items():
            first = next((i for i in forwards if self.rows[i].chunk == chunk), None)
            if first is not None:
                self.graph.wait(first, [gather])
        if not overlapped:
            return
        backwards = self._of(stage, "backward-compute")
        seen: set[int] = set()
        for reduce in self._of(stage, "grads-reduce-scatter"):
            chunk = self.rows[reduce].chunk
            mine = [i for i in backwards if self.rows[i].chunk == chunk]
            if chunk not in seen and mine:
                self.graph.wait(reduce, [max(mine, key=lambda i: self.rows[i].end)])
            seen.add(chunk)

    def _finish(self, stage: int, compute: Sequence[int], overlapped: bool, replicated: bool) -> None:
        """What follows the last backward, one after the other."""
        reduces = self._of(stage, "grads-reduce-scatter")
        last = max(compute, key=lambda i: self.rows[i].end)
        collected = self._of(stage, "gc")
        for op in collected:
            self.graph.wait(op, [last])
        tail = [*self._of(stage, "layernorm-grads-all-reduce"), *self._of(stage, "embedding-grads-all-reduce")]
        if replicated:
            tail += self._of(stage, "separate-grads-all-reduce") if overlapped else reduces
        tail += [*self._of(stage, "optimizer-clip-main-grad"), *self._of(stage, "optimizer")]
        self._chain(tail)
        if tail:
            self.graph.wait(tail[0], [*(collected or [last]), *(reduces[-1:] if overlapped else [])])

    def _collectives(self) -> None:
        for i, r in enumerate(self.rows):
            if r.kind in SYNCHRONISED:
                self._meet([i], across=True)
        for kind, across in (("embedding-grads-all-reduce", False), ("optimizer-clip-main-grad", True)):
            members = [i for i, r in enumerate(self.rows) if r.kind == kind]
            for seq in sorted({self.rows[i].seq for i in members}):
                self._meet([i for i in members if self.rows[i].seq == seq], across)
