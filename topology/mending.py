"""What slows a recorded job, by what mending it would give back.

Causes are tried from the narrowest to the widest, each on top of those before it: single workers against the same stage of
the other replicas, a stage that is heavy in every replica, micro-batches of unequal length, collections of garbage,
transfers. The loss is T − T_ideal of ``whatif``, so that a cause's share is M_W where it is the slowest workers and M_S
where it is the last stage (OSDI '25, Eq. 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from eroica.topology.stepgraph import FloatArray
from eroica.topology.whatif import WhatIf

__all__ = ["STRAGGLING", "MendedCause", "mended_causes", "stage_loads"]

CauseKind = Literal["worker", "pipeline_stage", "data_imbalance", "software_pause", "link", "fabric"]
BoolArray = npt.NDArray[np.bool_]

STRAGGLING = 1.1
"""S from which a job counts as straggling (OSDI '25, §3)."""
SLOW = 1.10
"""Compute against that of the peers from which a worker or stage is slow."""
ALIKE = 1.05
"""A stage is heavy by itself only if it is in every replica."""
STEPS = 0.6
"""Share of the steps in which a worker must be slow."""
WORTH = 0.2
"""A cause gives back at least this share of the loss."""
SPARE = 0.02
"""A suspect without which as much comes back, to this share, is none."""
LENGTHS = 0.9
"""Correlation of the forward and the backward of a micro-batch from which its length explains both (OSDI '25, §5.3)."""
FAR_LINK = 1.5
"""Transfers of a worker against the others' from which its link is slow."""
COMPUTE = ("forward-compute", "backward-compute")
POINT_TO_POINT = ("forward-send", "forward-recv", "backward-send", "backward-recv")
PAUSE = "gc"


@dataclass(frozen=True)
class MendedCause:
    """A cause and what comes back without it. Times in the unit of the timeline."""

    kind: CauseKind
    workers: tuple[tuple[int, int], ...]
    """(lane, stage) of suspects; empty if no single place is at fault."""
    stage: int
    """The heavy stage, else -1."""
    recovered: float
    """Share of the loss that comes back with this cause mended on top of those before it."""
    step: float
    """Mean step then."""
    ratio: float
    """How far out it is, against its peers (1 is as they are)."""
    agreement: float
    """Share of the steps in which it is so."""
    peers: int
    """How many it was compared with."""


def stage_loads(whatif: WhatIf) -> FloatArray:
    """Compute of each worker in each step, shape (stages, lanes, steps)."""
    graph = whatif.graph
    computes = _of_kinds(whatif, COMPUTE)
    return np.stack([whatif.times[computes & (graph.stage == s)].sum(axis=0) for s in range(int(graph.stage.max()) + 1)])


def mended_causes(whatif: WhatIf) -> list[MendedCause]:
    """The causes of a straggling job, those that give back most first; empty if S is below ``STRAGGLING``."""
    report_step, ideal = whatif.mean_step(whatif.times), whatif.mean_step(whatif.ideal)
    if report_step < STRAGGLING * ideal:
        return []
    search = _Search(whatif, report_step, ideal)
    search.workers()
    search.stages()
    search.lengths()
    search.pauses()
    search.transfers()
    return sorted(search.found, key=lambda c: -c.recovered)


class _Search:
    def __init__(self, whatif: WhatIf, step: float, ideal: float) -> None:
        self.whatif, self.lost = whatif, step - ideal
        self.times, self.step = whatif.times, step
        self.load = stage_loads(whatif)
        self.slow: BoolArray = np.zeros(self.load.shape[:2], dtype=bool)
        """Workers found slow, shape (stages, lanes)."""
        self.found: list[MendedCause] = []

    def _try(self, times: FloatArray) -> tuple[float, float]:
        """Share of the loss that these times give back, and the step."""
        step = self.whatif.mean_step(times)
        return (self.step - step) / self.lost, step

    def _take(self, times: FloatArray, cause: MendedCause) -> None:
        self.found.append(cause)
        self.times, self.step = times, cause.step

    def _ideal_where(self, mask: BoolArray) -> FloatArray:
        return np.where(mask, self.whatif.ideal, self.times)

    def workers(self) -> None:
        """Workers that compute longer than the same stage of the other replicas, in most steps."""
        stages, lanes, _ = self.load.shape
        if lanes < 2:
            return
        others = np.stack([np.median(np.delete(self.load, d, axis=1), axis=1) for d in range(lanes)], axis=1)
        ratio = np.divide(self.load, others, out=np.ones_like(self.load), where=others > 0)
        middle, agree = np.median(ratio, axis=2), (ratio >= SLOW).mean(axis=2)
        candidates = [(d, s) for s in range(stages) for d in range(lanes) if middle[s, d] >= SLOW and agree[s, d] >= STEPS]
        if not candidates:
            return
        share = self._try(self._ideal_where(self.whatif.workers(tuple(candidates))))[0]
        for one in sorted(candidates, key=lambda w: middle[w[1], w[0]]):
            fewer = [w for w in candidates if w != one]
            if fewer and self._try(self._ideal_where(self.whatif.workers(tuple(fewer))))[0] >= share - SPARE:
                candidates = fewer
        times = self._ideal_where(self.whatif.workers(tuple(candidates)))
        share, step = self._try(times)
        if share < WORTH:
            return
        for d, s in candidates:
            self.slow[s, d] = True
        worst = max(float(middle[s, d]) for d, s in candidates)
        least = min(float(agree[s, d]) for d, s in candidates)
        chosen = tuple(sorted(candidates, key=lambda w: -middle[w[1], w[0]]))
        self._take(times, MendedCause("worker", chosen, -1, share, step, worst, least, lanes - 1))

    def stages(self) -> None:
        """Stages that are heavier than the rest in every replica."""
        count = self.load.shape[0]
        if count < 2:
            return
        sound = ~self.slow | self.slow.all(axis=1, keepdims=True)
        each = np.stack([np.median(self.load[s, sound[s]], axis=0) for s in range(count)])
        for s in np.argsort(-each.mean(axis=1), kind="stable").tolist():
            rest = np.median(np.delete(each, s, axis=0), axis=0)
            ratio = np.divide(each[s], rest, out=np.ones_like(rest), where=rest > 0)
            lightest = float(np.median(self.load[s, sound[s]], axis=1).min())
            if float(np.median(ratio)) < SLOW or lightest < ALIKE * float(np.median(rest)):
                continue
            times = self._ideal_where(self.whatif.stage(s))
            share, step = self._try(times)
            if share >= WORTH:
                agree = float((ratio >= SLOW).mean())
                out = float(np.median(ratio))
                self._take(times, MendedCause("pipeline_stage", (), s, share, step, out, agree, self.load.shape[1]))

    def lengths(self) -> None:
        """Micro-batches of unequal length: the forward and the backward of one grow together."""
        graph = self.whatif.graph
        times = self.times.copy()
        for kind in COMPUTE:
            for s in range(int(graph.stage.max()) + 1):
                mine = _of_kinds(self.whatif, (kind,)) & (graph.stage == s)
                if mine.any():
                    times[mine] = self.times[mine].mean()
        share, step = self._try(times)
        together, spread = _forward_and_backward(self.whatif, self.times)
        if share >= WORTH and together >= LENGTHS:
            self._take(times, MendedCause("data_imbalance", (), -1, share, step, 1.0 + spread, together, 0))

    def pauses(self) -> None:
        """Collections of garbage."""
        mine = _of_kinds(self.whatif, (PAUSE,))
        if not mine.any() or not self.times[mine].any():
            return
        times = self.times.copy()
        times[mine] = 0.0
        share, step = self._try(times)
        if share >= WORTH:
            paused = self.times[mine] > 0
            self._take(times, MendedCause("software_pause", (), -1, share, step, 1.0, float(paused.any(axis=(0, 1)).mean()), 0))

    def transfers(self) -> None:
        """Transfers: of one worker if its alone give it back, else of all."""
        kinds = tuple(k for k in self.whatif.graph.kinds if k not in COMPUTE and k not in (PAUSE, "optimizer"))
        mask = _of_kinds(self.whatif, kinds)[:, None, None]
        times = self._ideal_where(mask)
        share, step = self._try(times)
        if share < WORTH:
            return
        link = self._link()
        if link is not None:
            worker, ratio, agree = link
            alone = self._ideal_where(mask & self.whatif.workers((worker,)))
            only, then = self._try(alone)
            if only >= 0.8 * share:
                self._take(alone, MendedCause("link", (worker,), -1, only, then, ratio, agree, self.slow.size - 1))
                return
        self._take(times, MendedCause("fabric", (), -1, share, step, 1.0, 1.0, 0))

    def _link(self) -> tuple[tuple[int, int], float, float] | None:
        """The worker with the slowest point-to-point transfers, if they stand out: (lane, stage), ratio, agreement."""
        graph = self.whatif.graph
        sends = _of_kinds(self.whatif, POINT_TO_POINT)
        if not sends.any() or self.slow.size < 3:
            return None
        stages = range(self.load.shape[0])
        means = [self.times[m].mean(axis=0) for s in stages if (m := sends & (graph.stage == s)).any()]
        each = np.stack(means).reshape(-1, self.times.shape[2])
        worst = int(each.mean(axis=1).argmax())
        rest = np.median(np.delete(each, worst, axis=0), axis=0)
        ratio = np.divide(each[worst], rest, out=np.ones_like(rest), where=rest > 0)
        if len(means) != len(stages) or float(np.median(ratio)) < FAR_LINK:
            return None
        lanes = self.load.shape[1]
        return (worst % lanes, worst // lanes), float(np.median(ratio)), float((ratio >= FAR_LINK).mean())


def _of_kinds(whatif: WhatIf, kinds: tuple[str, ...]) -> BoolArray:
    """Which operations are of *kinds*, shape (ops,)."""
    wanted = [k for k, name in enumerate(whatif.graph.kinds) if name in kinds]
    return np.asarray(np.isin(whatif.graph.kind, wanted))


def _forward_and_backward(whatif: WhatIf, times: FloatArray) -> tuple[float, float]:
    """Correlation of the forward and backward times of a micro-batch within a stage, and the spread of the forward ones.

    Each is taken relative to its stage's mean, so that heavy stages do not count as long micro-batches.
    """
    place: Mapping[tuple[int, str, int], int] = {(o.stage, o.kind, o.index): i for i, o in enumerate(whatif.graph.ops)}
    forward, backward = [], []
    for s in range(int(whatif.graph.stage.max()) + 1):
        micros = [m for (stage, kind, m) in place if stage == s and kind == COMPUTE[0] and (s, COMPUTE[1], m) in place]
        pairs = [(place[s, COMPUTE[0], m], place[s, COMPUTE[1], m]) for m in micros]
        if not pairs:
            continue
        one, two = times[[a for a, _ in pairs]], times[[b for _, b in pairs]]
        if one.mean() > 0 and two.mean() > 0:
            forward.append((one / one.mean()).reshape(-1))
            backward.append((two / two.mean()).reshape(-1))
    if not forward:
        return 0.0, 0.0
    f, b = np.concatenate(forward), np.concatenate(backward)
    if f.size < 2 or f.std() == 0 or b.std() == 0:
        return 0.0, float(f.std())
    return float(np.corrcoef(f, b)[0, 1]), float(f.std())
