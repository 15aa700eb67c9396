"""The steps of a trace: by ProfilerStep, else by annotations of program, loader or optimizer, else by rhythm, else one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.producers.trace.columns import (
    ANNOTATION,
    CPU_OP,
    GPU_ANNOTATION,
    KERNEL,
    MEMCPY,
    MEMSET,
    PYTHON,
    RUNTIME,
    Floats,
    Ints,
    Trace,
)
from eroica.producers.trace.naming import loop_step, step_number
from eroica.producers.trace.rhythm import find_rhythm

MIN_ANNOTATED = 2
"""Annotations that must look like steps to count as such."""
ROUNDING_US = 0.5
"""Times since the epoch, µs as 64-bit floats, are told to a quarter of a µs: a step may seem to begin before the last ends."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in time order; ``number`` is the framework's where it told one, else from 0.

    ``window`` runs from the first start to the last end, extended to the end of device work that was launched inside.
    """

    number: Ints
    start_us: Floats
    end_us: Floats
    window: tuple[float, float]
    source: str
    """``profiler_step``, ``gpu_profiler_step``, ``annotation``, ``loader``, ``optimizer``, ``collectives``, ``none``, or
    ``others``: theirs."""

    def of(self, t: Floats) -> Ints:
        """Index of the step that contains each time, -1 before the first; after the last one's end still the last."""
        return np.searchsorted(self.start_us, t, "right") - 1

    @property
    def window_us(self) -> float:
        """Length of the window."""
        return self.window[1] - self.window[0]


def find_steps(trace: Trace) -> Steps:
    """Find the steps; a trace without any becomes one step (source ``none``)."""
    for source, categories in (("profiler_step", (ANNOTATION, CPU_OP)), ("gpu_profiler_step", (GPU_ANNOTATION,))):
        found = _profiler_steps(trace, trace.rows(*categories))
        if found is not None:
            return with_window(trace, *found, source=source)
    if (found := _annotated_steps(trace)) is not None:
        return with_window(trace, *found, source="annotation")
    for source, prefix, bound in (("loader", "enumerate(DataLoader)", "start"), ("optimizer", "Optimizer.step#", "end")):
        times = _annotated(trace, prefix, bound)
        if times.size >= 2:
            return with_window(trace, np.arange(times.size - 1), times[:-1], times[1:], source=source)
    if (rhythm := find_rhythm(trace)) is not None:
        return with_window(trace, *rhythm, source="collectives")
    rows = trace.rows(CPU_OP, ANNOTATION, PYTHON, RUNTIME, KERNEL, MEMCPY, MEMSET)
    low = float(trace.ts_us[rows].min()) if rows.size else 0.0
    high = float(trace.end_us[rows].max()) if rows.size else 0.0
    return Steps(np.zeros(1, np.int64), np.array([low]), np.array([high]), (low, high), "none")


def _profiler_steps(trace: Trace, rows: Ints) -> tuple[Ints, Floats, Floats] | None:
    rows = rows[trace.named(rows, lambda n: step_number(n) >= 0)]
    numbers = np.array([step_number(trace.names[n]) for n in trace.name[rows].tolist()], np.int64)
    real = trace.dur_us[rows] > 0
    rows, numbers = rows[real], numbers[real]
    if rows.size == 0:
        return None
    # A step can be seen on several threads or streams: the longest span of a number is the step.
    order = np.lexsort((-trace.dur_us[rows], numbers))
    first = order[np.concatenate(([True], np.diff(numbers[order]) != 0))]
    first = first[np.argsort(trace.ts_us[rows[first]], kind="stable")]
    start = trace.ts_us[rows[first]]
    end = np.minimum(trace.end_us[rows[first]], np.concatenate((start[1:], [np.inf])))
    return numbers[first], start, end


def _annotated_steps(trace: Trace) -> tuple[Ints, Floats, Floats] | None:
    """Steps that the program names itself (``step_5``): each begins with its annotation and lasts until the next, the last as
    long as its own. Their numbers must rise by one and none may lie in another; names without numbers count from 0.
    """
    rows = trace.rows(ANNOTATION)
    rows = rows[trace.named(rows, lambda n: loop_step(n) is not None) & (trace.dur_us[rows] > 0)]
    told = np.array([loop_step(trace.names[n]) for n in trace.name[rows].tolist()], np.int64)
    for mine, number in ((rows[told >= 0], told[told >= 0]), (rows[told < 0], np.arange(np.count_nonzero(told < 0)))):
        if mine.size < MIN_ANNOTATED or not (np.diff(number) == 1).all():
            continue
        start, end = trace.ts_us[mine], trace.end_us[mine]
        if (start[1:] >= end[:-1] - ROUNDING_US).all():
            return number, start, np.append(start[1:], end[-1])
    return None


def _annotated(trace: Trace, prefix: str, bound: str) -> Floats:
    """Times of the annotation that comes back most regularly: the one seen last, if several begin like this."""
    rows = trace.rows(ANNOTATION, CPU_OP)
    rows = rows[trace.named(rows, lambda n: n.startswith(prefix))]
    if rows.size == 0:
        return np.empty(0)
    rows = rows[trace.name[rows] == trace.name[rows[-1]]]
    times: Floats = trace.ts_us[rows] if bound == "start" else trace.end_us[rows]
    return times


def with_window(trace: Trace, number: Ints, start: Floats, end: Floats, *, source: str) -> Steps:
    """Steps of these bounds, and the window up to the end of the device work that was launched in them."""
    low, high = float(start[0]), float(end.max())
    device = trace.rows(KERNEL, MEMCPY, MEMSET)
    if device.size and source != "gpu_profiler_step":
        launch = trace.launch[device]
        issued = trace.ts_us[launch]
        mine = device[(launch >= 0) & (issued >= low) & (issued < high)]
        if mine.size:
            high = max(high, float(trace.end_us[mine].max()))
    return Steps(number.astype(np.int64), start, end, (low, high), source)
