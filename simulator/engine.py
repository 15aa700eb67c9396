"""Runs a job step by step: nominal times × what is broken × noise, then the longest path. Waiting is never set, it follows.

A step begins on each rank where its last one ended, so what a rank loses after the step's last meeting makes it late in the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from eroica.schemas.ranks import RankArray
from eroica.simulator.effects import BoolArray, Effects, FloatArray
from eroica.simulator.functions import FAMILIES, Function, family_of, functions_of
from eroica.simulator.scenario import Noise
from eroica.simulator.workload import Traffic, Workload

__all__ = ["NO_NOISE", "Engine", "Run"]

F32 = npt.NDArray[np.float32]
MEMBER_SIGMA = 0.002
"""Members of a collective end together but for this share of the transfer (fit: docs/simulator.md)."""
NO_NOISE = Noise(compute=0, rank=0, transfer=0, latency_us=0, latency_sigma=0, host=0, spikes=0, surges=0)
SURGE = (3.0, 80.0)
"""How many times as long a surge takes; the longest of the published timelines took 28 and 82 times its median."""
SURGE_SHARE = 0.13
"""Of a step: no surge of theirs added more."""
_BURN_IN = 1
"""Steps before those that count, so that the first one begins like any other."""


@dataclass
class Run:
    """Profiled steps. Arrays over operations have shape (ops, lanes, steps), µs."""

    start: F32
    """From the start of the rank's own step."""
    duration: F32
    """Waiting and pauses included."""
    own: F32
    """Without them: work, or transfer."""
    step_start: FloatArray
    """Shape (world, steps), from the start of the rank's first step."""
    step_us: FloatArray
    """Shape (world, steps)."""
    begin_us: float
    """When the first step began on the first rank."""

    @cached_property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.step_us.shape[1])

    def mean_step_us(self) -> float:
        """Mean length of a step."""
        return float(self.step_us.mean())


class Engine:
    """A workload ready to run, any number of times."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        graph = work.step.graph
        self.functions: tuple[Function, ...] = functions_of(work.scenario.job.model.experts)
        self.family = np.array([FAMILIES.index(f) if (f := family_of(o.kind)) else -1 for o in graph.ops])
        self.nominal: FloatArray = work.step.times
        self.rank_of_op: RankArray = work.rank_of[graph.stage]
        """Shape (ops, lanes)."""
        self._loading = self.family == FAMILIES.index("loading")
        self._compute = np.array([o.kind.endswith("-compute") for o in graph.ops])
        self._leader = {axis: work.step.lanes.partition(_full(work, axis)) for axis in work.groups if axis != "world"}
        self._partner = self._receivers()
        self._groups = self._meeting_groups()

    @cached_property
    def _nominal_us(self) -> float:
        """Length of a step without noise and faults."""
        return self.work.step.length()

    def weights(self, function: Function, effects: Effects) -> FloatArray:
        """Share of *function* in the nominal time of its family, what is broken included; shape (world, steps) or (1, 1)."""
        factor: FloatArray = np.full((1, 1), function.share)
        if function.bound in effects.resources:
            factor = factor * effects.resources[function.bound]
        if function.name in effects.functions:
            factor = factor * effects.functions[function.name]
        return factor

    def family_weights(self, effects: Effects) -> list[FloatArray]:
        """For each family, the sum of its functions' weights."""
        return [
            np.asarray(sum((self.weights(f, effects) for f in self.functions if f.family == family), np.zeros((1, 1))))
            for family in FAMILIES
        ]

    def run(self, effects: Effects, noise: Noise, seed: int, machines: int | None = None) -> Run:
        """Run the profiled steps. Deterministic.

        :param machines: seed of what lasts, how each rank differs from its peers: one for all runs on the same machines.
        """
        graph, work = self.work.step.graph, self.work
        steps, shape = effects.steps, self.rank_of_op.shape
        weights = self.family_weights(effects)
        bias = 1.0 + noise.rank * np.random.default_rng([seed if machines is None else machines, 0]).standard_normal(work.world)
        start = np.empty((*shape, steps), dtype=np.float32)
        duration, own = np.empty_like(start), np.empty_like(start)
        begins, ends = np.empty((work.world, steps)), np.empty((work.world, steps))
        offset, begin = np.zeros(work.world), 0.0
        first_begin = 0.0
        for number in range(-_BURN_IN, steps):
            k = max(number, 0)
            rng = np.random.default_rng([seed, 1, number + _BURN_IN])
            times = self._times(effects, weights, noise, bias, k, rng)
            base = times.astype(np.float32)
            self._pause(times, effects, k, rng)
            times[self._loading] += offset[self.rank_of_op[self._loading]]
            timing = graph.evaluate(times[:, :, None])
            began, ended = timing.start[:, :, 0], timing.end[:, :, 0]
            began[self._loading] = offset[self.rank_of_op[self._loading]]
            if number >= 0:
                if number == 0:
                    first_begin = begin
                start[:, :, k] = began - offset[self.rank_of_op]
                duration[:, :, k] = ended - began
                own[:, :, k] = base
                begins[:, k] = begin - first_begin + offset
            finish = np.full(work.world, -np.inf)
            np.maximum.at(finish, self.rank_of_op, ended)
            if number >= 0:
                ends[:, k] = begin - first_begin + finish
            earliest = float(finish.min())
            offset, begin = finish - earliest, begin + earliest
        return Run(start, duration, own, begins - begins[:, :1], ends - begins, float(first_begin))

    def mean_step_us(self, effects: Effects) -> float:
        """Mean length of a step without noise, each step by itself."""
        if effects.steps > 1 and effects.steady():
            effects = effects.one_step()
        weights = self.family_weights(effects)
        ones = np.ones(self.work.world)
        lengths = []
        for k in range(effects.steps):
            rng = np.random.default_rng([0, 1, k])
            times = self._times(effects, weights, NO_NOISE, ones, k, rng)
            self._pause(times, effects, k, rng)
            lengths.append(float(self.work.step.graph.evaluate(times[:, :, None]).step_times()[0]))
        return float(np.mean(lengths))

    def _times(
        self, effects: Effects, weights: list[FloatArray], noise: Noise, bias: FloatArray, k: int, rng: np.random.Generator
    ) -> FloatArray:
        """Work and transfers of step *k*, shape (ops, lanes), pauses apart."""
        ranks = self.rank_of_op
        times = np.repeat(self.nominal[:, None], ranks.shape[1], axis=1)
        sigma = np.where(self._loading, noise.host, noise.compute)[:, None].astype(np.float32)
        silent = noise is NO_NOISE
        draw = np.zeros(ranks.shape, np.float32) if silent else rng.standard_normal(ranks.shape, dtype=np.float32)
        device = bias / self.work.speed
        for family, weight in enumerate(weights):
            mine = self.family == family
            column = weight[:, min(k, weight.shape[1] - 1)]
            factor = np.broadcast_to(column, self.work.world) * (1.0 if FAMILIES[family] == "loading" else device)
            times[mine] *= factor[ranks[mine]]
        working = self.family >= 0
        scale = np.exp(sigma * draw) if sigma.any() else np.ones((1, 1), np.float32)
        if noise.spikes:
            spike = rng.random(ranks.shape, dtype=np.float32)
            scale = scale * np.where(spike < noise.spikes, 1.0 + spike / noise.spikes, 1.0)
        times[working] *= np.broadcast_to(scale, ranks.shape)[working]
        self._transfer(times, effects, noise, draw, k, rng)
        return times

    def _transfer(self, times: FloatArray, effects: Effects, noise: Noise, draw: F32, k: int, rng: np.random.Generator) -> None:
        lanes = times.shape[1]
        hits = [{axis: link.hits(self.work, axis) for axis in self.work.groups} for link in effects.links]
        extra = np.zeros(times.shape, np.float32)
        if noise.latency_us:
            extra = noise.latency_us * np.exp(noise.latency_sigma * rng.standard_normal(times.shape, dtype=np.float32))
        surges = self._surges(noise, rng)
        for op, traffic in self.work.traffic.items():
            if traffic.op == "recv":
                continue
            leader = self._leads(traffic, lanes)
            shared = times[op] * np.exp(noise.transfer * draw[op])[leader] + extra[op][leader]
            for lane, factor in surges.get(op, ()):
                group = leader == leader[lane]
                shared[group] = np.minimum(shared[group] * factor, shared[group] + SURGE_SHARE * self._nominal_us)
            mine = self.rank_of_op[op]
            for link, hit in zip(effects.links, hits, strict=True):
                if traffic.axis == "pp":
                    struck: BoolArray = link.hits_pair(self.work, mine, self.work.rank_of[traffic.peer_stage])
                else:
                    struck = hit[traffic.axis][mine]
                shared = np.where(struck, shared * link.factor[k], shared)
            times[op] = shared
            if op in self._partner:
                times[self._partner[op]] = shared
        if noise.transfer:
            communicating = self.family < 0
            wobble = np.abs(draw[communicating]) * MEMBER_SIGMA
            times[communicating] *= 1.0 + wobble

    def _leads(self, traffic: Traffic, lanes: int) -> RankArray:
        """The lane whose draw counts for each lane's group, shape (lanes,)."""
        alone = np.arange(lanes) if traffic.axis == "pp" else np.zeros(lanes, np.int64)
        return self._leader.get(traffic.axis, alone)

    def _meeting_groups(self) -> tuple[list[int], FloatArray]:
        """The operations that transfer, and how many groups do so in each."""
        lanes = self.rank_of_op.shape[1]
        ops = [op for op, traffic in self.work.traffic.items() if traffic.op != "recv"]
        counts = [float(np.unique(self._leads(self.work.traffic[op], lanes)).size) for op in ops]
        return ops, np.array(counts)

    def _surges(self, noise: Noise, rng: np.random.Generator) -> dict[int, list[tuple[int, float]]]:
        """Operation → (a lane of the group, factor) of the transfers that surge in this step."""
        ops, counts = self._groups
        total = int(counts.sum())
        if not noise.surges or total == 0:
            return {}
        out: dict[int, list[tuple[int, float]]] = {}
        number = int(rng.binomial(total, noise.surges))
        which = rng.choice(len(ops), number, p=counts / counts.sum())
        factors = np.exp(rng.uniform(np.log(SURGE[0]), np.log(SURGE[1]), number))
        for op, lane, factor in zip(which.tolist(), rng.integers(self.rank_of_op.shape[1], size=number), factors, strict=True):
            out.setdefault(ops[op], []).append((int(lane), float(factor)))
        return out

    def _pause(self, times: FloatArray, effects: Effects, k: int, rng: np.random.Generator) -> None:
        for pause in effects.pauses:
            us = pause.us[:, k]
            if not us.any():
                continue
            for stage in range(self.work.rank_of.shape[0]):
                mine = us[self.work.rank_of[stage]]
                here = self.work.step.graph.stage == stage
                lanes = np.arange(mine.size)
                if pause.where == "spread":
                    ops = np.flatnonzero(here & self._compute)
                    times[ops] += mine / ops.size
                    continue
                family = FAMILIES.index("forward" if pause.where == "one" else pause.where)
                ops = np.flatnonzero(here & (self.family == family))
                times[ops[rng.integers(ops.size, size=mine.size)], lanes] += mine

    def _receivers(self) -> dict[int, int]:
        """Send → its receive: they are one transfer. They stand next to each other in the graph."""
        ops = self.work.step.graph.ops
        return {
            op: op + 1
            for op, traffic in self.work.traffic.items()
            if traffic.op == "send" and op + 1 < len(ops) and ops[op + 1].kind.endswith("-recv")
        }


def _full(work: Workload, axis: str) -> str:
    return next(k for k in work.layout.kinds if k.split(".")[-1] == axis)
