"""What slows a recorded job, by what mending it would give back.

Causes are tried from the narrowest to the widest, each on top of those before it: whole replicas and single workers against
the same stages of the other replicas, a stage that is heavy in every replica, what one worker did once, micro-batches of
unequal length, collections of garbage, transfers. The loss is T − T_ideal of ``whatif``, so that a cause's share is M_W
where it is the slowest workers and M_S where it is the last stage (OSDI '25, Eq. 5).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eroica.topology.mended import CauseKind, MendedCause
from eroica.topology.slow_transfers import Communicators, Worker
from eroica.topology.stepgraph import FloatArray
from eroica.topology.timeline import COMMUNICATION, COMPUTE, POINT_TO_POINT, SYNCHRONISED, Meeting
from eroica.topology.unequal import lengths_of, odd_steps
from eroica.topology.whatif import WhatIf

__all__ = ["COMPUTE", "STRAGGLING", "MendedCause", "mended_causes", "stage_loads"]

BoolArray = npt.NDArray[np.bool_]

STRAGGLING = 1.1
"""S from which a job counts as straggling (OSDI '25, §3)."""
SLOW = 1.10
"""Compute against that of the peers from which a worker or stage is slow."""
ALIKE = 1.05
"""A stage is heavy by itself only if it is in every replica."""
STEPS = 0.6
"""Share of the steps in which a worker must be slow."""
CHANCE = 4.5
"""How far out it must be, in standard errors of workers from step to step."""
OFTEN = 3
"""Who alone is slow in so many steps is so now and again, and not once."""
WORTH = 0.2
"""A cause gives back at least this share of the loss."""
SPARE = 0.02
"""A suspect without which as much comes back, to this share, is none."""
LENGTHS = 0.9
"""Correlation of the forward and the backward of a micro-batch from which its length explains both (OSDI '25, §5.3)."""
EVEN = 1.5
"""A replica is slow as a whole if its stages' excesses differ by no more than this factor."""
MOST = 0.8
"""Slow transfers are at fault if they alone give back this share of what all transfers do."""
FAMILIES = (POINT_TO_POINT, SYNCHRONISED)
"""Kinds of transfers that are told apart where those of one give most of it back."""
PAUSE = "gc"


def stage_loads(whatif: WhatIf) -> FloatArray:
    """Compute of each worker in each step, shape (stages, lanes, steps)."""
    return _loads(whatif, _of_kinds(whatif, COMPUTE))


def _loads(whatif: WhatIf, which: BoolArray) -> FloatArray:
    stage = whatif.graph.stage
    return np.stack([whatif.times[which & (stage == s)].sum(axis=0) for s in range(int(stage.max()) + 1)])


def mended_causes(whatif: WhatIf, meetings: Sequence[Meeting] = ()) -> list[MendedCause]:
    """The causes of a straggling job, those that give back most first; empty if S is below ``STRAGGLING``.

    :param meetings: which operations end together, so that slow transfers can be told by what they have in common.
    """
    report_step, ideal = whatif.mean_step(whatif.times), whatif.mean_step(whatif.ideal)
    if report_step < STRAGGLING * ideal:
        return []
    search = _Search(whatif, meetings, report_step, ideal)
    search.replicas()
    search.workers()
    search.stages()
    search.single_steps()
    search.lengths()
    search.pauses()
    search.transfers()
    return sorted(search.found, key=lambda c: -c.recovered)


class _Search:
    def __init__(self, whatif: WhatIf, meetings: Sequence[Meeting], step: float, ideal: float) -> None:
        self.whatif, self.meetings, self.lost = whatif, meetings, step - ideal
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

    @staticmethod
    def _peers(load: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """A load against the same stage of the other replicas: the median step's ratio, the share of steps in which it is
        slow, and whether it is; shape (stages, lanes).
        """
        lanes = load.shape[1]
        others = np.stack([np.median(np.delete(load, d, axis=1), axis=1) for d in range(lanes)], axis=1)
        ratio = np.divide(load, others, out=np.ones_like(load), where=others > 0)
        middle, agree = np.median(ratio, axis=2), (ratio >= SLOW).mean(axis=2)
        # Workers whose ratios go up and down from step to step are somewhere by chance, too.
        logs = np.log(np.where(ratio > 0, ratio, 1.0))
        chance = CHANCE * float(np.median(logs.std(axis=2))) / np.sqrt(load.shape[2])
        return middle, agree, (middle >= SLOW) & (agree >= STEPS) & (np.log(np.maximum(middle, SLOW)) >= chance)

    def replicas(self) -> None:
        """Replicas all of whose stages are slow alike: their data pass all of them, and so do the hosts that they share.

        That all their workers are sick at once, and by the same factor, is less likely.
        """
        stages, lanes, _ = self.load.shape
        if lanes < 2 or stages < 2:
            return
        middle, agree, slow = self._peers(self.load)
        even = (middle.max(axis=0) - 1) <= EVEN * (middle.min(axis=0) - 1)
        whole = np.flatnonzero(slow.all(axis=0) & even)
        if not whole.size:
            return
        times = self._ideal_where(np.isin(np.arange(lanes), whole)[None, :, None])
        share, step = self._try(times)
        if share < WORTH:
            return
        self.slow[:, whole] = True
        out, least = float(np.median(middle[:, whole])), float(agree[:, whole].min())
        lanes_of = tuple(int(d) for d in whole)
        self._take(times, MendedCause("data_imbalance", (), -1, share, step, out, least, lanes - 1, replicas=lanes_of))

    def workers(self) -> None:
        """Workers that compute longer than the same stage of the other replicas, in most steps; or do longer what else they do
        by themselves, such as the optimizer.
        """
        stages, lanes, _ = self.load.shape
        if lanes < 2:
            return
        kinds = self.whatif.graph.kinds
        other = tuple(k for k in kinds if k not in (*COMPUTE, PAUSE) and k not in COMMUNICATION)
        for some in (COMPUTE, other):
            which = _of_kinds(self.whatif, some)
            load = _loads(self.whatif, which)
            middle, agree, slow = self._peers(load)
            candidates = [(d, s) for s in range(stages) for d in range(lanes) if slow[s, d] and not self.slow[s, d]]
            if candidates:
                of = np.ones_like(which) if some is COMPUTE else which
                self._slow_workers(candidates, middle, agree, of, () if some is COMPUTE else some)

    def _slow_workers(
        self, candidates: list[Worker], middle: FloatArray, agree: FloatArray, which: BoolArray, kinds: tuple[str, ...]
    ) -> None:
        """Keeps those of *candidates* that give something back, and takes them if that is worth it."""

        def mended(workers: list[Worker]) -> FloatArray:
            return self._ideal_where(self.whatif.workers(tuple(workers)) & which[:, None, None])

        share = self._try(mended(candidates))[0]
        for one in sorted(candidates, key=lambda w: middle[w[1], w[0]]):
            fewer = [w for w in candidates if w != one]
            if fewer and self._try(mended(fewer))[0] >= share - SPARE:
                candidates = fewer
        times = mended(candidates)
        share, step = self._try(times)
        if share < WORTH:
            return
        if not kinds:
            for d, s in candidates:
                self.slow[s, d] = True
        worst = max(float(middle[s, d]) for d, s in candidates)
        least = min(float(agree[s, d]) for d, s in candidates)
        chosen = tuple(sorted(candidates, key=lambda w: -middle[w[1], w[0]]))
        lanes = self.load.shape[1]
        self._take(times, MendedCause("worker", chosen, -1, share, step, worst, least, lanes - 1, kinds=kinds))

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

    def single_steps(self) -> None:
        """Workers that were slow once, as no data make them."""
        odd = odd_steps(self.whatif.graph, self.times, self.load) & ~self.slow[:, :, None]
        if not odd.any():
            return
        graph, computes = self.whatif.graph, _of_kinds(self.whatif, COMPUTE)
        mask = odd[graph.stage] & computes[:, None, None]
        usual = np.median(self.times, axis=(1, 2), keepdims=True)
        times = np.where(mask, np.minimum(self.times, usual), self.times)
        share, step = self._try(times)
        if share < WORTH:
            return
        expected = np.broadcast_to(np.median(self.load, axis=(1, 2))[:, None, None], odd.shape)
        out = float((self.load[odd] / expected[odd]).max())
        lost = np.where(odd, self.load, 0.0).sum(axis=2)
        workers = tuple(sorted({(int(d), int(s)) for s, d, _ in np.argwhere(odd)}, key=lambda w: -lost[w[1], w[0]]))
        steps = tuple(np.flatnonzero(odd.any(axis=(0, 1))).tolist())
        agree, peers = len(steps) / odd.shape[2], self.load.shape[1] - 1
        kind: CauseKind = "worker" if len(workers) == 1 and len(steps) >= OFTEN and agree >= WORTH else "software_pause"
        self._take(times, MendedCause(kind, workers, -1, share, step, out, agree, peers, steps=steps))

    def lengths(self) -> None:
        """Micro-batches of unequal length: the forward and the backward of one grow together, in all stages."""
        graph = self.whatif.graph
        times = self.times.copy()
        for kind in COMPUTE:
            for s in range(int(graph.stage.max()) + 1):
                mine = _of_kinds(self.whatif, (kind,)) & (graph.stage == s)
                if mine.any():
                    times[mine] = self.times[mine].mean()
        share, step = self._try(times)
        if share < WORTH:
            return
        lengths = lengths_of(graph, self.times)
        if lengths.together < LENGTHS or not lengths.stages_agree:
            return
        lane, at = ((lengths.single[0],), (lengths.single[1],)) if lengths.single else ((), ())
        out = 1.0 + lengths.spread
        self._take(times, MendedCause("data_imbalance", (), -1, share, step, out, lengths.together, 0, replicas=lane, steps=at))

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
        """Transfers: those of a link, or of what slow ones have in common, if these alone give it back; else all."""
        mask = self._kinds(tuple(COMMUNICATION))
        times = self._ideal_where(mask)
        share, step = self._try(times)
        if share < WORTH:
            return
        late = (self.whatif.step_times(self.times) - self.whatif.step_times(times)) >= WORTH * self.lost
        agree = float(late.mean())
        steps = tuple(np.flatnonzero(late).tolist()) if agree < STEPS else ()
        of = Communicators(self.whatif.graph, self.meetings, self.times[:, :, late] if late.any() else self.times)

        def mended(some: Sequence[int]) -> FloatArray:
            return self._ideal_where(mask & of.mask(some))

        some, place = of.at_fault(lambda few: self._try(mended(few))[0] >= MOST * share)
        if some:
            times = mended(some)
            share, step = self._try(times)
            out, agree = float(of.middle[some].max()), agree * of.agreement(some)
            kind: CauseKind = "fabric" if place.stages else "link"
            cause = MendedCause(
                kind, place.workers, -1, share, step, out, agree, len(of.all) - len(some), steps=steps, where=place
            )
        else:
            fewer = next((k for k in FAMILIES if self._try(self._ideal_where(mask & self._kinds(k)))[0] >= MOST * share), ())
            cause = MendedCause("fabric", (), -1, share, step, 1.0, agree, 0, kinds=fewer, steps=steps)
        self._take(times, cause)

    def _kinds(self, kinds: tuple[str, ...]) -> BoolArray:
        return _of_kinds(self.whatif, kinds)[:, None, None]


def _of_kinds(whatif: WhatIf, kinds: tuple[str, ...]) -> BoolArray:
    """Which operations are of *kinds*, shape (ops,)."""
    wanted = [k for k, name in enumerate(whatif.graph.kinds) if name in kinds]
    return np.asarray(np.isin(whatif.graph.kind, wanted))
