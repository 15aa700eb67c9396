"""Function patterns of many ranks at once: totals, quantiles, and β, μ, σ that fit them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.schemas.ranks import RankArray
from eroica.schemas.summaries import Category, FunctionPattern
from eroica.simulator.channels import Channel
from eroica.simulator.effects import BoolArray, Effects, FloatArray
from eroica.simulator.engine import Engine, Run
from eroica.simulator.functions import FAMILIES, Function, kernel_name

__all__ = ["FunctionRows", "Patterns"]

MIN_BETA = 0.002
"""Functions below this share of the window are left out of a summary."""
SM_BUSY = 0.94
NVLINK_BUSY = 0.82
NIC_BUSY = 0.86
STEADY = 0.02
"""Deviation of a steadily used resource within an execution."""
BURSTY = 0.3
"""Of a link whose ring waits for a slower one: full rate, then nothing ([P], ring signature)."""
_TAIL = {"p90": 1.3, "p99": 2.3, "max": 2.8}
"""How many of a function's own deviations its upper quantiles lie above the median."""


@dataclass(frozen=True)
class FunctionRows:
    """One function on some ranks; columns of shape (ranks,)."""

    name: str
    category: Category
    stack: str
    resource: str
    count: list[int]
    table: list[list[float]]
    """Rows: beta, mu, sigma, total, exclusive, mean, p50, p90, p99, max, var."""
    total_us: FloatArray

    def pattern(self, i: int, stacks: dict[str, int]) -> FunctionPattern | None:
        """The pattern of rank number *i*; ``None`` where the function holds too little of the window to be told."""
        if self.table[i][0] < MIN_BETA:
            return None
        beta, mu, sigma, total, exclusive, mean, p50, p90, p99, high, var = self.table[i]
        return FunctionPattern(
            name=self.name,
            category=self.category,
            stack=stacks.setdefault(self.stack, len(stacks)) if self.stack else -1,
            beta=beta,
            mu=mu,
            sigma=sigma,
            resource=self.resource,
            count=self.count[i],
            total_us=total,
            exclusive_us=exclusive,
            mean_us=mean,
            p50_us=p50,
            p90_us=p90,
            p99_us=p99,
            max_us=high,
            var_us2=var,
        )


class Patterns:
    """Patterns of a run."""

    def __init__(self, engine: Engine, run: Run, effects: Effects, sampling: bool) -> None:
        self._engine, self._run, self._effects, self._sampling = engine, run, effects, sampling
        self._family = engine.family_weights(effects)
        self._weights = [(f, engine.weights(f, effects)) for f in engine.functions]

    def work(self, stage: int, lanes: RankArray, ks: RankArray, window_us: FloatArray) -> list[FunctionRows]:
        """Functions of the ranks' own work in steps *ks*."""
        out = []
        ranks = self._engine.work.rank_of[stage, lanes]
        for number, family in enumerate(FAMILIES):
            ops = np.flatnonzero((self._engine.work.step.graph.stage == stage) & (self._engine.family == number))
            own = self._run.own[np.ix_(ops, lanes, ks)].astype(np.float64)
            nominal = self._engine.nominal[ops]
            # How an operation's time compares with its nominal one: what all its calls have in common.
            stretch = np.divide(own, nominal[:, None, None], out=np.zeros_like(own), where=nominal[:, None, None] > 0)
            common = _spread(stretch, np.ones((ranks.size, ks.size)))
            per_step = own.sum(axis=0)
            for function, weight in self._weights:
                if function.family != family:
                    continue
                part = _columns(weight, ranks, ks) / _columns(self._family[number], ranks, ks)
                steady = bool((part == part[:, :1]).all())
                spread = common * part[:, 0] if steady else _spread(stretch, part)
                out.append(self._one(function, per_step, spread, part, float(nominal.sum()), ranks, ks, window_us))
        return out

    def _one(
        self,
        function: Function,
        per_step: FloatArray,
        spread: FloatArray,
        part: FloatArray,
        nominal_us: float,
        ranks: RankArray,
        ks: RankArray,
        window_us: FloatArray,
    ) -> FunctionRows:
        total = (per_step * part).sum(axis=1)
        # An operation's calls grow and shrink with it; how many there are does not.
        calls = max(1, round(nominal_us * function.share * ks.size / function.call_us))
        p50, p90, p99, high, deviation = spread * (nominal_us * ks.size / calls)
        mu, sigma, resource = self._utilisation(function, ranks, ks)
        between = function.spread if calls > 1 else 0.0
        mean = total / calls
        table = np.stack(
            [
                (total / window_us).round(5),
                mu.round(4),
                sigma.round(4),
                total.round(1),
                total.round(1),
                mean.round(1),
                p50.round(1),
                (p90 * (1 + _TAIL["p90"] * between)).round(1),
                (p99 * (1 + _TAIL["p99"] * between)).round(1),
                (high * (1 + _TAIL["max"] * between)).round(1),
                (deviation**2 + (between * mean) ** 2).round(1),
            ],
            axis=1,
        )
        return FunctionRows(
            function.name, function.category, function.stack, resource, [calls] * ranks.size, table.tolist(), total
        )

    def _utilisation(self, function: Function, ranks: RankArray, ks: RankArray) -> tuple[FloatArray, FloatArray, str]:
        ones = np.ones(ranks.size)
        if function.category == "python" or not self._sampling:
            idle = function.bound in ("storage", "queue")
            return ones * (0.12 if idle and self._sampling else 1.0), ones * 0.0, "cpu" if self._sampling else "critical_share"
        if function.category == "memory" or self._effects.clock is None:
            return ones * SM_BUSY, ones * STEADY, "sm_clock"
        clock = _columns(self._effects.clock, ranks, ks)
        return SM_BUSY * clock.mean(axis=1), STEADY + clock.std(axis=1), "sm_clock"

    def traffic(
        self, stage: int, lanes: RankArray, ks: RankArray, window_us: FloatArray, channels: list[Channel], exposed: FloatArray
    ) -> list[FunctionRows]:
        """Collectives by kernel name. *exposed* has the shape of the operations, lanes and steps of the stage's traffic."""
        work = self._engine.work
        ranks = work.rank_of[stage, lanes]
        by_name: dict[str, list[tuple[int, str, int, int, BoolArray]]] = {}
        at = 0
        for channel in channels:
            for place in channel.places:
                axis = work.traffic[place.op].axis
                size = 2 if axis == "pp" else work.groups[axis].largest()
                if axis == "pp":
                    across = work.hosts.host_of[ranks] != work.hosts.host_of[work.rank_of[channel.peer, lanes]]
                else:
                    across = work.crossing[axis][ranks]
                for crossing in (False, True):
                    mask = across == crossing
                    if mask.any():
                        name = kernel_name(place.name, crossing)
                        by_name.setdefault(name, []).append((at, place.name, place.bytes, size, mask))
                at += 1
        ops = np.array([p.op for c in channels for p in c.places], dtype=np.int64)
        return [self._kernel(name, rows, ops, lanes, ranks, ks, window_us, exposed) for name, rows in sorted(by_name.items())]

    def _kernel(
        self,
        name: str,
        rows: list[tuple[int, str, int, int, BoolArray]],
        ops: RankArray,
        lanes: RankArray,
        ranks: RankArray,
        ks: RankArray,
        window_us: FloatArray,
        exposed: FloatArray,
    ) -> FunctionRows:
        at = np.array([r[0] for r in rows])
        mask = np.stack([r[4] for r in rows])[:, :, None]
        duration = self._run.duration[np.ix_(ops[at], lanes, ks)].astype(np.float64)
        gigabits = np.array([bus_factor(r[1], r[3]) * r[2] * 8e-3 for r in rows])[:, None, None]
        weight = np.where(mask, duration, 0.0)
        flat = np.moveaxis(np.where(mask, duration, np.nan), 1, 0).reshape(lanes.size, -1)
        count = mask.sum(axis=(0, 2)) * ks.size
        total = weight.sum(axis=(0, 2))
        some = np.maximum(total, 1e-9)
        if self._sampling:
            mu, sigma, resource = self._link_use(ops[at], not name.endswith("SIMPLE"), lanes, ranks, ks, weight, some)
        else:
            rate = np.divide(gigabits, duration, out=np.zeros_like(duration), where=duration > 0)
            mu = (weight * rate).sum(axis=(0, 2)) / some
            sigma = np.sqrt(((rate - mu[None, :, None]) ** 2 * weight).sum(axis=(0, 2)) / some)
            resource = "bus_gbps"
        quantile = _quantiles(flat, count)
        free = np.where(mask, exposed[at], 0.0).sum(axis=(0, 2))
        mean = total / np.maximum(count, 1)
        variance = np.where(mask, (duration - mean[None, :, None]) ** 2, 0.0).sum(axis=(0, 2)) / np.maximum(count, 1)
        columns = [(free / window_us).round(5), mu.round(4), sigma.round(4), total, free, mean, *quantile, variance]
        table = np.stack([*columns[:3], *(c.round(1) for c in columns[3:])], axis=1)
        return FunctionRows(name, "collective", "", resource, count.tolist(), table.tolist(), total)

    def _link_use(
        self,
        ops: RankArray,
        crossing: bool,
        lanes: RankArray,
        ranks: RankArray,
        ks: RankArray,
        weight: FloatArray,
        some: FloatArray,
    ) -> tuple[FloatArray, FloatArray, str]:
        """What a sampler sees: use of the link while it transfers, and whether steadily."""
        work = self._engine.work
        own = self._run.own[np.ix_(ops, lanes, ks)].astype(np.float64)
        nominal = self._engine.nominal[ops][:, None, None]
        use = np.clip(np.divide(nominal, own, out=np.ones_like(own), where=own > 0), 0.0, 1.0)
        mu = (NIC_BUSY if crossing else NVLINK_BUSY) * (weight * use).sum(axis=(0, 2)) / some
        bursty = np.zeros(lanes.size, dtype=bool)
        for link in self._effects.links:
            struck = np.zeros(lanes.size, dtype=bool)
            for op in ops.tolist():
                axis = work.traffic[op].axis
                if axis != "pp":
                    struck |= link.hits(work, axis)[ranks]
            steady = link.culprit[ranks] if link.culprit is not None else np.zeros(lanes.size, dtype=bool)
            bursty |= struck & ~steady
        return mu, np.where(bursty, BURSTY, STEADY), "nic" if crossing else "nvlink"


def bus_factor(op: str, size: int) -> float:
    """Traffic of a collective against its bytes (nccl-tests, PERFORMANCE.md)."""
    if size < 2:
        return 0.0
    factors = {"all_reduce": 2 * (size - 1) / size, "broadcast": 1.0, "send": 1.0, "recv": 1.0}
    return factors.get(op, (size - 1) / size)


def _columns(weight: FloatArray, ranks: RankArray, ks: RankArray) -> FloatArray:
    """Of an array of shape (world, steps) or (1, 1), the part for *ranks* and *ks*."""
    if weight.shape == (1, 1):
        return np.broadcast_to(weight, (ranks.size, ks.size))
    return np.asarray(weight[np.ix_(ranks, ks)])


def _spread(stretch: FloatArray, part: FloatArray) -> FloatArray:
    """p50, p90, p99, max and standard deviation of ``stretch × part`` for each rank, shape (5, ranks)."""
    flat = np.moveaxis(stretch * part[None], 1, 0).reshape(part.shape[0], -1)
    quantiles = _quantiles(flat, np.full(part.shape[0], flat.shape[1]))
    return np.stack([*quantiles, flat.std(axis=1)])


def _quantiles(flat: FloatArray, count: RankArray) -> list[FloatArray]:
    """p50, p90, p99 and max of each row, NaN left out; 0 for a row without any."""
    ordered = np.sort(flat, axis=1)
    last = np.maximum(count - 1, 0)
    rows = np.arange(flat.shape[0])
    out = []
    for q in (0.5, 0.9, 0.99, 1.0):
        place = q * last
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, last)
        value = ordered[rows, low] + (ordered[rows, high] - ordered[rows, low]) * (place - low)
        out.append(np.where(count > 0, value, 0.0))
    return out
