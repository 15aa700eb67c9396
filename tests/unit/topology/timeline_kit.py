"""Timelines of made-up pipeline jobs: 1F1B event by event, sharing no code with ours; other schedules by the step graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eroica.topology import build_layout
from eroica.topology.lanes import Lanes
from eroica.topology.step import build_step
from eroica.topology.strategy import Block, LinkCosts, Plan

Rows = list[dict[str, Any]]
Cost = Callable[[int, int, int, int], float]
"""(replica, stage, step, micro-batch) → factor on its compute."""


@dataclass
class Job:
    """A job to be recorded. Times in seconds."""

    dp: int = 2
    pp: int = 2
    tp: int = 1
    micro: int = 4
    steps: int = 3
    forward: float = 1.0
    transfer: float = 0.01
    cost: Cost = field(default=lambda _d, _s, _k, _m: 1.0)
    link: Callable[[int, int, int, int], float] = field(default=lambda _d, _s, _to, _k: 1.0)
    """(replica, stage, stage that receives, step) → factor on what it sends."""
    ring: Callable[[int, int], float] = field(default=lambda _s, _k: 1.0)
    """(stage, step) → factor on the collectives of its replicas."""
    optimizer: Callable[[int, int, int], float] = field(default=lambda _d, _s, _k: 1.0)
    """(replica, stage, step) → factor on its optimizer."""
    pause: Callable[[int, int, int], float] = field(default=lambda _d, _s, _k: 0.0)
    """(replica, stage, step) → seconds of garbage collection."""

    def rows(self) -> list[dict[str, Any]]:
        """All operations of all workers."""
        out: list[dict[str, Any]] = []
        for step in range(self.steps):
            ends = [self._replica(out, d, step) for d in range(self.dp)]
            for s in range(self.pp):
                latest = max(end[s] for end in ends)
                reduced = latest + 0.05 * self.ring(s, step)
                for d in range(self.dp):
                    self._put(out, d, s, step, "grads-reduce-scatter", ends[d][s], reduced, 0)
                    self._put(out, d, s, step, "optimizer", reduced, reduced + 0.05 * self.optimizer(d, s, step), 0)
        return out

    def _order(self, s: int) -> list[tuple[str, int]]:
        ahead = min(self.pp - 1 - s, self.micro)
        order = [("F", m) for m in range(ahead)]
        for m in range(self.micro - ahead):
            order += [("F", ahead + m), ("B", m)]
        return order + [("B", m) for m in range(self.micro - ahead, self.micro)]

    def _replica(self, out: list[dict[str, Any]], d: int, step: int) -> list[float]:
        """One replica's step; when each stage is done with its compute."""
        begin = step * 1000.0
        free = [begin] * self.pp
        done: dict[tuple[str, int, int], tuple[float, float]] = {}
        place = [0] * self.pp
        posted = {("F", s): begin for s in range(self.pp)} | {("B", s): begin for s in range(self.pp)}
        orders = [self._order(s) for s in range(self.pp)]
        counts: dict[tuple[int, str], int] = {}
        while any(place[s] < len(orders[s]) for s in range(self.pp)):
            moved = False
            for s in range(self.pp):
                while place[s] < len(orders[s]):
                    kind, m = orders[s][place[s]]
                    before = s - 1 if kind == "F" else s + 1
                    arrives = begin
                    if 0 <= before < self.pp:
                        if (kind, before, m) not in done:
                            break
                        arrives = done[kind, before, m][1] + self.transfer * self.link(d, before, s, step)
                        name = "forward" if kind == "F" else "backward"
                        start = max(posted[kind, s], begin)
                        self._number(out, counts, d, s, step, f"{name}-recv", min(start, arrives), arrives)
                    cost = self.forward * (1 if kind == "F" else 2) * self.cost(d, s, step, m)
                    start = max(free[s], arrives)
                    free[s] = start + cost
                    done[kind, s, m] = (start, free[s])
                    name = "forward" if kind == "F" else "backward"
                    self._number(out, counts, d, s, step, f"{name}-compute", start, free[s])
                    posted[kind, s] = free[s]
                    after = s + 1 if kind == "F" else s - 1
                    if 0 <= after < self.pp:
                        sent = free[s] + self.transfer * self.link(d, s, after, step)
                        self._number(out, counts, d, s, step, f"{name}-send", free[s], sent)
                    place[s] += 1
                    moved = True
            assert moved, "the order deadlocks"
        for s in range(self.pp):
            pause = self.pause(d, s, step)
            if pause:
                self._put(out, d, s, step, "gc", free[s], free[s] + pause, 0)
                free[s] += pause
        return free

    def _number(
        self,
        out: list[dict[str, Any]],
        counts: dict[tuple[int, str], int],
        d: int,
        s: int,
        step: int,
        kind: str,
        a: float,
        b: float,
    ) -> None:
        seq = counts.get((s, kind), 0)
        counts[s, kind] = seq + 1
        self._put(out, d, s, step, kind, a, b, seq)

    def _put(self, out: list[dict[str, Any]], d: int, s: int, step: int, kind: str, start: float, end: float, seq: int) -> None:
        computes = kind.endswith("-compute")
        out.append(
            {
                "dp_rank": d,
                "stage": s,
                "rank": (s * self.dp + d) * self.tp,
                "step": step,
                "optype": kind,
                "start_ts": start,
                "duration": end - start,
                "seq_id": seq,
                "mc": 0 if computes else -1,
                "mb_id": seq if computes else -1,
                "gmc": s if computes else -1,
            }
        )


def recorded(pp: int, dp: int, chunks: int, micro: int, schedule: str, slow: tuple[int, int, float]) -> tuple[Rows, float]:
    """A job with several model chunks a stage, as a recorder that lists only transfers with a peer writes it; and its mean step.

    *slow*: replica, stage, factor on its compute.
    """
    layout = build_layout("megatron", pp * dp, {"pp": pp, "vpp": chunks})
    blocks = [Block("layer", 1.0, parameter_bytes=8.0, activation_bytes=1.0)] * (pp * chunks)
    plan = Plan.of(blocks, optimizer=0.5).place(pp, chunks).split(micro).order(schedule).shard("dp", 1)
    step = build_step(plan, Lanes.of(layout), LinkCosts(0.01, {"dp": 80.0, "pp": 100.0}))
    times = step.nominal(3)
    times *= np.exp(0.01 * np.random.default_rng(0).standard_normal(times.shape))
    lane, stage, factor = slow
    computes = [i for i, o in enumerate(step.graph.ops) if o.kind.endswith("compute")]
    for i in computes:
        if step.graph.ops[i].stage == stage:
            times[i, lane] *= factor
    timing = step.graph.evaluate(times)
    rows = []
    for i, o in enumerate(step.graph.ops):
        inner = o.kind.endswith("compute")
        for d in range(dp):
            for k in range(3):
                start, end = float(timing.start[i, d, k]), float(timing.end[i, d, k])
                rows.append(
                    {
                        "dp_rank": d, "stage": o.stage, "rank": o.stage * dp + d, "step": k, "optype": o.kind,
                        "start_ts": 1000 * k + start, "duration": end - start, "seq_id": o.index,
                        "mc": o.chunk if inner or o.kind.startswith(("params", "grads")) else -1,
                        "gmc": o.chunk * pp + o.stage if inner else -1,
                    }
                )  # fmt: skip
    return rows, float(timing.step_times().mean())
