"""Timelines of made-up pipeline jobs, by a plain event-by-event simulation of 1F1B that shares no code with ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    link: Callable[[int, int], float] = field(default=lambda _d, _s: 1.0)
    """(replica, stage) → factor on what it sends."""
    pause: Callable[[int, int, int], float] = field(default=lambda _d, _s, _k: 0.0)
    """(replica, stage, step) → seconds of garbage collection."""

    def rows(self) -> list[dict[str, Any]]:
        """All operations of all workers."""
        out: list[dict[str, Any]] = []
        for step in range(self.steps):
            ends = [self._replica(out, d, step) for d in range(self.dp)]
            for s in range(self.pp):
                latest = max(end[s] for end in ends)
                for d in range(self.dp):
                    self._put(out, d, s, step, "grads-reduce-scatter", ends[d][s], latest + 0.05, 0)
                    self._put(out, d, s, step, "optimizer", latest + 0.05, latest + 0.1, 0)
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
                        arrives = done[kind, before, m][1] + self.transfer * self.link(d, before)
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
                        sent = free[s] + self.transfer * self.link(d, s)
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
