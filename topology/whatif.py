"""What a step would take if something were mended.

Definitions of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI '25): the ideal step
gives each operation the mean (compute) or median (communication) time of its kind; S = T / T_ideal (Eq. 1); the
slowdown of a part keeps that part as it was in an otherwise ideal step (Eq. 2); a worker's slowdown is the lesser of
its replica's and its stage's (Eq. 4); M_W and M_S are the shares of (T − T_ideal) that return when the slowest 3 % of
workers, or the last stage, become ideal (Eq. 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.topology.stepgraph import FloatArray, StepGraph

__all__ = ["SLOWEST_SHARE", "WhatIf", "WhatIfReport"]

SLOWEST_SHARE = 0.03
"""Share of workers whose mending M_W measures (OSDI '25, Eq. 5)."""

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class WhatIfReport:
    """Impact figures of a job. Times are means over the steps, in the unit of the times given."""

    step: float
    ideal_step: float
    slowdown: float
    """S = step / ideal step."""
    waste: float
    """Share of the time that is lost: 1 − 1/S."""
    recovered_by_slowest_3pct: float
    """M_W: near 1 if a few workers cause all; may exceed 1, or be negative, where the others differ from the ideal
    too.
    """
    recovered_by_last_stage: float
    """M_S."""
    by_lane: FloatArray
    """Shape (lanes,): slowdown with only this replica as it was."""
    by_stage: FloatArray
    """Shape (stages,)."""
    by_kind: Mapping[str, float]
    """Slowdown with only this kind of operation as it was."""
    by_worker: FloatArray
    """Shape (lanes, stages): min(by_lane, by_stage)."""
    slowest: tuple[tuple[int, int], ...]
    """(lane, stage) of the slowest 3 %, worst first."""


class WhatIf:
    """Asks "what if" of a step graph and the times that its operations took.

    :param times: shape (ops, lanes, steps); compute times, and transfer times (without waiting) of members of meetings.
    :param communication: kinds that are idealised to their median instead of their mean; by default those that meet.
    :raises ValueError: if no time passes.
    """

    def __init__(self, graph: StepGraph, times: FloatArray, communication: frozenset[str] | None = None) -> None:
        if communication is None:
            communication = frozenset(graph.kinds[k] for k in np.unique(graph.kind[graph.meets]).tolist())
        self.graph = graph
        self.times = times
        self.ideal = ideal_times(graph, times, communication)
        self._step = self.mean_step(times)
        self._ideal_step = self.mean_step(self.ideal)
        if self._ideal_step <= 0:
            raise ValueError("no time passes in the step")

    def mean_step(self, times: FloatArray) -> float:
        """Mean step time of these times."""
        return float(self.graph.evaluate(times).step_times().mean())

    def step_times(self, times: FloatArray) -> FloatArray:
        """Length of each step with these times, shape (steps,)."""
        return self.graph.evaluate(times).step_times()

    def step_with_only(self, mask: BoolArray) -> float:
        """Mean step time if all were ideal but where *mask* (broadcast to the shape of the times) holds."""
        return self.mean_step(np.where(mask, self.times, self.ideal))

    def recovered_by(self, mask: BoolArray) -> float:
        """Share of the loss that returns if what *mask* selects became ideal; 0 if nothing is lost."""
        lost = self._step - self._ideal_step
        if lost == 0:
            return 0.0
        return (self._step - self.mean_step(np.where(mask, self.ideal, self.times))) / lost

    def workers(self, chosen: tuple[tuple[int, int], ...]) -> BoolArray:
        """Mask of the operations of (lane, stage) pairs, shape (ops, lanes, 1)."""
        mask = np.zeros((len(self.graph.ops), self.graph.lanes, 1), dtype=bool)
        for lane, stage in chosen:
            mask[self.graph.stage == stage, lane] = True
        return mask

    def stage(self, stage: int) -> BoolArray:
        """Mask of the operations of a stage, shape (ops, 1, 1)."""
        mask: BoolArray = (self.graph.stage == stage)[:, None, None]
        return mask

    def report(self) -> WhatIfReport:
        """All impact figures."""
        graph, ideal = self.graph, self._ideal_step
        stages = int(graph.stage.max()) + 1
        lanes = np.arange(graph.lanes)
        by_lane = np.array([self.step_with_only((lanes == d)[None, :, None]) for d in lanes]) / ideal
        by_stage = np.array([self.step_with_only(self.stage(s)) for s in range(stages)]) / ideal
        by_kind = {kind: self.step_with_only((graph.kind == k)[:, None, None]) / ideal for k, kind in enumerate(graph.kinds)}
        by_worker = np.minimum(by_lane[:, None], by_stage[None, :])
        slowest = _slowest(by_worker)
        return WhatIfReport(
            step=self._step,
            ideal_step=ideal,
            slowdown=self._step / ideal,
            waste=1 - ideal / self._step,
            recovered_by_slowest_3pct=self.recovered_by(self.workers(slowest)),
            recovered_by_last_stage=self.recovered_by(self.stage(stages - 1)),
            by_lane=by_lane,
            by_stage=by_stage,
            by_kind=by_kind,
            by_worker=by_worker,
            slowest=slowest,
        )


def ideal_times(graph: StepGraph, times: FloatArray, communication: frozenset[str]) -> FloatArray:
    """Each operation at the mean (compute) or median (communication) of its kind over all stages, lanes and steps."""
    out = np.empty_like(times)
    for k, kind in enumerate(graph.kinds):
        mine = graph.kind == k
        out[mine] = np.median(times[mine]) if kind in communication else times[mine].mean()
    return out


def _slowest(by_worker: FloatArray) -> tuple[tuple[int, int], ...]:
    """The worst ⌈3 %⌉ of workers; equals by rank, stages outermost."""
    lanes, stages = by_worker.shape
    count = int(np.ceil(lanes * stages * SLOWEST_SHARE - 1e-9))
    ranked = by_worker.T.reshape(-1)
    order = np.argsort(-ranked, kind="stable")[:count]
    return tuple((int(r) % lanes, int(r) // lanes) for r in order)
