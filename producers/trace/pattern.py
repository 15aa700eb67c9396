"""β, μ, σ of functions ([P] §4) and the critical execution duration ([P] Alg. 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.producers.trace.collectives import Operation, bus_factor
from eroica.producers.trace.columns import RUNTIME, Floats, Ints, Trace
from eroica.producers.trace.critical_path import CLASS_NAMES, COLLECTIVE, COMPUTE, HOST, CriticalPath
from eroica.producers.trace.intervals import quantile, union
from eroica.producers.trace.phases import join
from eroica.producers.trace.steps import Steps
from eroica.schemas.sketch import bins_of, sketch_of_bins
from eroica.schemas.summaries import FunctionPattern

HEAVY_SHARE = 0.8
"""Share of the total utilisation that the critical execution duration holds ([P] Alg. 1)."""
HIDDEN_SHARE = 0.01
"""A host function whose self time is at least this share of the window stays in the summary even where the device's work hides
it: the host may launch a collective late all the same."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Readings of one resource, ascending in time. ``ts_us`` on the trace's origin, ``value`` as utilisation 0..1."""

    resource: str
    """``sm_clock``, ``cpu``, ``nvlink``, ``nic``."""
    ts_us: Floats
    value: Floats


_SAMPLED_BY = {COMPUTE: ("sm_clock",), COLLECTIVE: ("nvlink", "nic"), HOST: ("cpu",)}


def critical_execution(value: Floats) -> slice:
    """The critical execution duration of one execution's samples, as a slice of them.

    [P] Alg. 1: the smallest g for which some sub-interval holds at least :data:`HEAVY_SHARE` of the total with no run of
    more than g zeros. Computed as: cut at runs of more than g zeros, trim zeros, take the heaviest piece; g by bisection,
    since a larger g only joins pieces. An execution of zeros alone is empty.

    :param value: utilisation, ≥ 0, shape (n,).
    """
    busy = np.flatnonzero(value > 0)
    if busy.size == 0:
        return slice(0, 0)
    gaps = np.diff(busy) - 1
    candidates = np.array(sorted({0, *gaps.tolist()}))
    total = float(value.sum())
    low, high = 0, candidates.size - 1
    while low < high:
        middle = (low + high) // 2
        if _heaviest(value, busy, gaps, int(candidates[middle]))[1] >= HEAVY_SHARE * total * (1 - 1e-12):
            high = middle
        else:
            low = middle + 1
    return _heaviest(value, busy, gaps, int(candidates[low]))[0]


def patterns(
    trace: Trace,
    steps: Steps,
    path: CriticalPath,
    operations: list[Operation],
    samples: tuple[Samples, ...],
    min_beta: float,
) -> tuple[list[FunctionPattern], list[str], int]:
    """Patterns of all functions with β ≥ *min_beta*, falling β; their call stacks, each once; and how many functions were below.

    μ and σ come from samples where there are any for the class; for collectives else from each execution's bus bandwidth
    (``bus_gbps``); else they are the share of an execution that lies on the critical path (``critical_share``).
    """
    ex = path.executions
    size = len(ex.functions)
    order = np.argsort(ex.function.astype(np.int16 if size < 2**15 else np.int64), kind="stable")  # 16 bits: a radix sort
    bounds = np.searchsorted(ex.function[order], np.arange(size + 1))
    window = max(steps.window_us, 1e-9)
    times = np.bincount(ex.function, ex.exclusive_us, size)
    for f in _concurrent(trace, path, order).tolist():
        times[f] = _on_path(trace, steps, path, ex.functions[f][0], order[bounds[f] : bounds[f + 1]], float(times[f]))
    by_row = {o.row: o for o in operations}
    stacks: dict[str, int] = {}
    ranked = sorted(range(size), key=lambda f: (-times[f], ex.functions[f]))
    hidden = _hidden(trace, path, order[bounds[:-1].clip(max=max(order.size - 1, 0))], window)
    kept = [f for f in ranked if times[f] / window >= min_beta or hidden[f]]
    if not kept:
        return [], [], size
    rows = np.concatenate([order[bounds[f] : bounds[f + 1]] for f in kept])
    lengths = np.diff(bounds)[kept]
    figures = _distributions(ex.duration_us[rows], lengths)
    shares = _critical_shares(ex.duration_us[rows], ex.exclusive_us[rows], lengths)
    found = []
    for f, distribution, share in zip(kept, figures, shares, strict=True):
        kind, name, stack = ex.functions[f]
        known = None
        if samples or kind == COLLECTIVE:
            known = _utilisation(trace, kind, ex.row[order[bounds[f] : bounds[f + 1]]], by_row, samples)
        mu, sigma, resource = known or (*share, "critical_share")
        found.append(
            FunctionPattern(
                name=name,
                category=CLASS_NAMES[kind],  # type: ignore[arg-type]
                stack=stacks.setdefault(stack, len(stacks)) if stack else -1,
                beta=round(float(times[f]) / window, 5),
                mu=round(mu, 4),
                sigma=round(sigma, 4),
                resource=resource,
                exclusive_us=round(float(times[f]), 1),
                **distribution,
            )
        )
    return found, list(stacks), size - len(kept)


def _hidden(trace: Trace, path: CriticalPath, first: Ints, window: float) -> npt.NDArray[np.bool_]:
    """Host functions that take long, whether or not they are on the critical path; *first*: an execution of each. Calls into the
    device's runtime are none, since they wait for the device.
    """
    ex = path.executions
    long = np.bincount(ex.function, ex.duration_us, len(ex.functions)) >= HIDDEN_SHARE * window
    on_host = np.array([kind == HOST for kind, _, _ in ex.functions], np.bool_)
    no_call: npt.NDArray[np.bool_] = trace.category[ex.row[first]] != RUNTIME
    return long & on_host & no_call


def _concurrent(trace: Trace, path: CriticalPath, order: Ints) -> Ints:
    """Functions whose executions run at once (on two streams); *order* has each function's executions ascending by start."""
    ex = path.executions
    function, row = ex.function[order], ex.row[order]
    again = (function[1:] == function[:-1]) & (trace.ts_us[row[1:]] < trace.end_us[row[:-1]])
    on_host = np.array([kind == HOST or (kind == COMPUTE and path.cpu_only) for kind, _, _ in ex.functions], np.bool_)
    return np.flatnonzero((np.bincount(function[1:][again], minlength=len(ex.functions)) > 0) & ~on_host)


def _on_path(trace: Trace, steps: Steps, path: CriticalPath, kind: int, mine: Ints, added: float) -> float:
    """Time that a function holds whose executions run at once: that time counts once; *added*: all of it."""
    ex = path.executions
    start = np.clip(trace.ts_us[ex.row[mine]], *steps.window)
    end = np.clip(trace.end_us[ex.row[mine]], *steps.window)
    together = union(start, end)
    if together.total() >= float((end - start).sum()) * (1 - 1e-9):
        return added
    if kind == COMPUTE:
        return together.total()
    return together.minus(path.compute if kind != COLLECTIVE else join(path.compute, path.memory)).total()


def _utilisation(
    trace: Trace, kind: int, rows: Ints, by_row: dict[int, Operation], samples: tuple[Samples, ...]
) -> tuple[float, float, str] | None:
    """Mean, deviation and resource of a function that was sampled, or whose bandwidth is known; None for any other."""
    for series in samples:
        if series.resource in _SAMPLED_BY.get(kind, ()) and (sampled := _sampled(trace, rows, series)) is not None:
            return *sampled, series.resource
    if kind == COLLECTIVE:
        known = [by_row[r] for r in rows.tolist() if r in by_row and by_row[r].bytes > 0 and by_row[r].size > 1]
        if known:
            took = np.array([o.duration_us for o in known])
            moved = np.array([o.bytes * bus_factor(o.op, o.size) for o in known])
            rate = np.divide(moved * 8e-3, took, out=np.zeros(took.size), where=took > 0)
            return *_weighted(rate, took), "bus_gbps"
    return None


def _critical_shares(duration: Floats, exclusive: Floats, lengths: Ints) -> list[tuple[float, float]]:
    """Of each function the duration-weighted mean share of an execution on the critical path, and its deviation.

    :param lengths: how many of the executions, which are in order, each function has; above 0.
    """
    share = np.divide(exclusive, duration, out=np.zeros_like(duration), where=duration > 0)
    np.minimum(np.maximum(share, 0.0, out=share), 1.0, out=share)
    first = np.cumsum(lengths) - lengths
    total = np.add.reduceat(duration, first)
    scale = 1 / np.where(total > 0, total, 1.0)
    mean = np.add.reduceat(share * duration, first) * scale
    share -= np.repeat(mean, lengths)
    spread = np.add.reduceat(share * share * duration, first) * scale
    return list(zip(mean.tolist(), np.sqrt(spread).tolist(), strict=True))


def _sampled(trace: Trace, rows: Ints, series: Samples) -> tuple[float, float] | None:
    """Duration-weighted mean over the critical execution durations, and the weighted mean of the executions' own deviations."""
    low = np.searchsorted(series.ts_us, trace.ts_us[rows], "left")
    high = np.searchsorted(series.ts_us, trace.end_us[rows], "left")
    means, deviations, weights = [], [], []
    for a, b, duration in zip(low.tolist(), high.tolist(), trace.dur_us[rows].tolist(), strict=True):
        if b - a < 2:  # no spread from one sample
            continue
        values = series.value[a:b]
        part = values[critical_execution(values)]
        if part.size:
            means.append(float(part.mean()))
            deviations.append(float(part.std()))
            weights.append(duration * part.size / values.size)
    if not weights:
        return None
    return float(np.average(means, weights=weights)), float(np.average(deviations, weights=weights))


def _weighted(value: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted mean and standard deviation."""
    total = float(weight.sum())
    if total <= 0:
        return 0.0, 0.0
    mean = float((value * weight).sum()) / total
    return mean, float(np.sqrt(max(0.0, float(((value - mean) ** 2 * weight).sum()) / total)))


def _distributions(duration: Floats, lengths: Ints) -> list[dict[str, Any]]:
    """Fields of :class:`FunctionPattern` that tell how long executions take; arguments as for :func:`_critical_shares`."""
    end = np.cumsum(lengths)
    first = end - lengths
    total = np.add.reduceat(duration, first)
    mean = total / lengths
    apart = duration - np.repeat(mean, lengths)
    variance = np.add.reduceat(apart * apart, first) / lengths
    bins = bins_of(duration)
    found: list[dict[str, Any]] = []
    for a, b, t, m, v in zip(first.tolist(), end.tolist(), total.tolist(), mean.tolist(), variance.tolist(), strict=True):
        ordered = np.sort(duration[a:b])
        found.append(
            {
                "count": b - a,
                "total_us": round(t, 1),
                "mean_us": round(m, 1),
                "p50_us": round(quantile(ordered, 0.5), 1),
                "p90_us": round(quantile(ordered, 0.9), 1),
                "p99_us": round(quantile(ordered, 0.99), 1),
                "max_us": round(float(ordered[-1]), 1),
                "var_us2": round(v, 1),
                "sketch": sketch_of_bins(bins[a:b]) if b - a > 1 else None,
            }
        )
    return found


def _heaviest(value: Floats, busy: Ints, gaps: Ints, allowed: int) -> tuple[slice, float]:
    first = np.concatenate(([0], np.flatnonzero(gaps > allowed) + 1))
    sums = np.add.reduceat(value[busy], first)
    best = int(sums.argmax())
    last = (int(first[best + 1]) if best + 1 < first.size else busy.size) - 1
    return slice(int(busy[first[best]]), int(busy[last]) + 1), float(sums[best])
