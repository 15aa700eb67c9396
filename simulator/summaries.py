"""Behaviour summaries of all ranks of a run, block by block, so that memory does not grow with the world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eroica.schemas.control import ProfileRequest
from eroica.schemas.ranks import RankArray
from eroica.schemas.summaries import FunctionPattern, Pause, StepRecord, Summary
from eroica.simulator.channels import Channels
from eroica.simulator.effects import Effects, FloatArray
from eroica.simulator.engine import Engine, Run
from eroica.simulator.functions import FAMILIES
from eroica.simulator.identities import Identities
from eroica.simulator.patterns import FunctionRows, Patterns
from eroica.simulator.readings import metrics_of, readings
from eroica.simulator.receive import ReceiveMaker
from eroica.simulator.slots import SlotRows, slot_rows

__all__ = ["SummaryMaker", "Window"]

BLOCK = 512
"""Ranks whose arrays are in memory as Python numbers at once."""
_PHASES = {"loading": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}


@dataclass(frozen=True, slots=True)
class Window:
    """Which steps of the run a rank profiled."""

    first: int
    end: int


@dataclass(frozen=True)
class _Block:
    """What is known of some lanes of a stage in some steps."""

    stage: int
    lanes: RankArray
    ranks: RankArray
    ks: RankArray
    window_us: FloatArray
    slots: SlotRows
    phases: list[list[dict[str, float]]]
    step_start: list[list[float]]
    step_us: list[list[float]]
    functions: list[FunctionRows]
    figures: list[dict[str, float]]
    loading: FloatArray
    readings: list[list[float]]


class SummaryMaker:
    """Makes the summaries of one run for one request."""

    def __init__(self, engine: Engine, run: Run, effects: Effects, request: ProfileRequest, seed: int) -> None:
        scenario = engine.work.scenario
        self._engine, self._run, self._effects, self._request = engine, run, effects, request
        self._work = engine.work
        self._patterns = Patterns(engine, run, effects, scenario.profile.sampling)
        self.channels = Channels(engine.work, run.steps, scenario.profile.max_slot_values)
        self._readings = readings(effects, seed)
        self._receive = ReceiveMaker(engine, run, effects) if scenario.profile.receive_waits else None
        self.identities = Identities(engine.work, request)

    def summaries(self, ranks: RankArray, window: Window, clock_us: FloatArray, begin_us: float) -> Iterator[Summary]:
        """Summaries of *ranks* (ascending) that all profiled *window*.

        :param clock_us: offset of each rank's clock, shape (world,).
        :param begin_us: true time at which the run's first step began.
        """
        for at in range(0, ranks.size, BLOCK):
            some = ranks[at : at + BLOCK]
            stages = self._work.stage_of[some]
            # One stream of summaries a stage, drawn from in the order of the ranks: nothing is kept longer than needed.
            streams = {
                stage: self._of_block(self._block(stage, some[stages == stage], window), window, clock_us, begin_us)
                for stage in np.unique(stages).tolist()
            }
            for stage in stages.tolist():
                yield next(streams[stage])

    def _of_block(self, block: _Block, window: Window, clock_us: FloatArray, begin_us: float) -> Iterator[Summary]:
        first = self._request.start_step
        for i, (rank, lane) in enumerate(zip(block.ranks.tolist(), block.lanes.tolist(), strict=True)):
            stacks: dict[str, int] = {}
            patterns = [p for row in block.functions if (p := row.pattern(i, stacks)) is not None]
            ended = (
                begin_us + self._run.step_start[rank, window.end - 1] + self._run.step_us[rank, window.end - 1] + clock_us[rank]
            )
            pauses, paused = self._pauses(block, i, rank, stacks)
            cut = len(block.functions) - len(patterns)
            patterns = sorted([*patterns, *paused], key=lambda p: (-p.beta, p.name))
            yield Summary(
                who=self.identities.of(rank),
                first_step=first + window.first,
                last_step=first + window.end - 1,
                window_us=round(float(block.window_us[i]), 1),
                late_by_steps=window.first,
                ended_at_us=int(ended),
                steps=[
                    StepRecord(
                        step=first + int(k),
                        start_us=block.step_start[i][n],
                        duration_us=block.step_us[i][n],
                        phases_us=block.phases[i][n],
                    )
                    for n, k in enumerate(block.ks.tolist())
                ],
                functions=patterns,
                stacks=list(stacks),
                communicators=block.slots.communicators(self.channels, block.stage, lane, i),
                pauses=pauses,
                receive_waits=self._receive.waits(rank, block.ks) if self._receive is not None else [],
                metrics=metrics_of(block.readings[i]),
                figures=block.figures[i],
                lost={"functions_cut": cut} if cut else {},
            )

    def _pauses(self, block: _Block, i: int, rank: int, stacks: dict[str, int]) -> tuple[list[Pause], list[FunctionPattern]]:
        """Recorded pauses, and the functions in which they show; loading is always one."""
        loads = block.loading[i]
        pauses = [
            Pause(what="loader", count=loads.size, total_us=round(float(loads.sum()), 1), max_us=round(float(loads.max()), 1))
        ]
        functions = []
        for pause in self._effects.pauses:
            us = pause.us[rank, block.ks]
            us = us[us > 0]
            if us.size == 0:
                continue
            total, high = float(us.sum()), float(us.max()) / pause.calls
            count = int(us.size) * pause.calls
            pauses.append(Pause(what=pause.what, count=count, total_us=round(total, 1), max_us=round(high, 1)))
            each = us / pause.calls
            functions.append(
                FunctionPattern(
                    name=pause.function,
                    category="python",
                    stack=stacks.setdefault(pause.stack, len(stacks)),
                    beta=round(total / float(block.window_us[i]), 5),
                    mu=1.0,
                    resource="critical_share",
                    count=count,
                    total_us=round(total, 1),
                    exclusive_us=round(total, 1),
                    mean_us=round(float(each.mean()), 1),
                    p50_us=round(float(np.median(each)), 1),
                    p90_us=round(float(np.quantile(each, 0.9)), 1),
                    p99_us=round(float(np.quantile(each, 0.99)), 1),
                    max_us=round(float(each.max()), 1),
                    var_us2=round(float(each.var()), 1),
                )
            )
        return pauses, functions

    def _block(self, stage: int, ranks: RankArray, window: Window) -> _Block:
        run, work, graph = self._run, self._work, self._work.step.graph
        lanes = work.lane_of[ranks]
        ks = np.arange(window.first, window.end)
        channels = self.channels.by_stage[stage]
        ops = np.array([p.op for c in channels for p in c.places], dtype=np.int64)
        index = np.ix_(ops, lanes, ks)
        start, duration = run.start[index].astype(np.float64), run.duration[index].astype(np.float64)
        exposed = self._exposed(stage, ops, lanes, ks, start, duration)
        step_us = run.step_us[np.ix_(ranks, ks)]
        window_us = step_us.sum(axis=1)
        own = {}
        for number, family in enumerate(FAMILIES):
            mine = np.flatnonzero((graph.stage == stage) & (self._engine.family == number))
            own[_PHASES[family]] = run.duration[np.ix_(mine, lanes, ks)].astype(np.float64).sum(axis=0)
        waiting = exposed.sum(axis=0)
        waiting = np.minimum(waiting, np.maximum(step_us - sum(own.values()), 0.0))
        functions = self._patterns.work(stage, lanes, ks, window_us)
        functions += self._patterns.traffic(stage, lanes, ks, window_us, channels, exposed)
        origin = run.step_start[np.ix_(ranks, ks)]
        return _Block(
            stage=stage,
            lanes=lanes,
            ranks=ranks,
            ks=ks,
            window_us=window_us,
            slots=slot_rows(channels, [self._request.start_step + k for k in ks.tolist()], start, duration, exposed),
            phases=_phases(own, waiting, step_us),
            step_start=(origin - origin[:, :1]).round(1).tolist(),
            step_us=step_us.round(1).tolist(),
            functions=functions,
            figures=_figures(functions, duration, exposed, window_us),
            loading=own["data"],
            readings=self._readings[:, ranks].T.round(4).tolist(),
        )

    def _exposed(
        self, stage: int, ops: RankArray, lanes: RankArray, ks: RankArray, start: FloatArray, duration: FloatArray
    ) -> FloatArray:
        """Part of each execution that the rank's own compute does not hide."""
        graph, run = self._work.step.graph, self._run
        busy = [FAMILIES.index(f) for f in ("forward", "backward", "optimizer")]
        compute = np.flatnonzero((graph.stage == stage) & np.isin(self._engine.family, busy))
        index = np.ix_(compute, lanes, ks)
        low = run.start[index].astype(np.float64)
        high = low + run.duration[index]
        out: FloatArray = duration.copy()
        for i, op in enumerate(ops.tolist()):
            if self._work.traffic[op].beside:
                end = start[i] + duration[i]
                hidden = np.minimum(high, end) - np.maximum(low, start[i])
                out[i] -= np.clip(hidden, 0.0, None).sum(axis=0)
        return np.clip(out, 0.0, None)


def _phases(own: dict[str, FloatArray], waiting: FloatArray, step_us: FloatArray) -> list[list[dict[str, float]]]:
    idle = np.maximum(step_us - sum(own.values()) - waiting, 0.0)
    columns = {**{name: v.round(1).tolist() for name, v in own.items()}, "comm_wait": waiting.round(1).tolist()}
    columns["idle"] = idle.round(1).tolist()
    ranks, steps = step_us.shape
    return [[{name: column[i][k] for name, column in columns.items()} for k in range(steps)] for i in range(ranks)]


def _figures(
    functions: list[FunctionRows], duration: FloatArray, exposed: FloatArray, window_us: FloatArray
) -> list[dict[str, float]]:
    shares = [
        sum((f.total_us for f in functions if f.category == category), np.zeros(window_us.size)) / window_us
        for category in ("compute", "memory")
    ]
    collective = duration.sum(axis=(0, 2)) / window_us
    free = exposed.sum(axis=(0, 2)) / window_us
    overlap = 1.0 - np.divide(free, collective, out=np.ones_like(free), where=collective > 0)
    table = np.stack([*shares, collective, free, overlap], axis=1).round(4).tolist()
    names = ("compute_share", "memory_share", "collective_share", "exposed_collective_share", "overlap_share")
    return [dict(zip(names, row, strict=True)) for row in table]
