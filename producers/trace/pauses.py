"""Software pauses and launch figures: what stopped the training thread, and whether the device waits for the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eroica.producers.trace.collectives import Communication
from eroica.producers.trace.columns import KERNEL, MEMCPY, MEMSET, Floats, Trace
from eroica.producers.trace.critical_path import CriticalPath
from eroica.producers.trace.host_names import PAUSE_KINDS, pause_of
from eroica.producers.trace.intervals import Intervals, quantile, union
from eroica.producers.trace.phases import join
from eroica.producers.trace.side import read_side
from eroica.producers.trace.steps import Steps
from eroica.schemas.summaries import Pause

LAUNCH_BOUND_US = 20.0
"""A kernel that starts within so little after its launch found the device waiting: a launch itself takes 5 to 10 µs."""
_MAX_KINDS = 32


def find_pauses(trace: Trace, steps: Steps, path: CriticalPath, host: dict[str, Intervals]) -> list[Pause]:
    """Allocator calls, synchronising calls, compilation, checkpoints and loader waits on the training threads within the
    window. Allocator calls count without the time in which the device runs a collective, for which they wait.

    :param host: from :func:`~eroica.producers.trace.phases.host_phases`.
    """
    low, high = steps.window
    found = []
    threads = [t for t in (path.main, path.backward) if t is not None]
    rows = np.concatenate([t.rows for t in threads])
    every = trace.kinds(rows, pause_of, PAUSE_KINDS)
    place = np.flatnonzero(every >= 0)
    kinds = every[place]
    starts = np.concatenate([t.tree.start for t in threads])
    ends = np.concatenate([t.tree.end for t in threads])
    for number, kind in enumerate(PAUSE_KINDS):
        if kind == "sync" and path.cpu_only:  # reading a scalar waits for nobody without a device
            continue
        start, end = starts[place[kinds == number]], ends[place[kinds == number]]
        inside = (start >= low) & (start < high) & (end > start)
        # A pause within a pause of its kind (a compile that compiles) is one pause.
        merged = union(start[inside], end[inside])
        length = merged.end - merged.start
        if kind == "alloc":
            # The driver allocates when the device is done: while that runs a collective, the call waits for other ranks.
            length = length - path.collective.overlap(merged.start, merged.end)
        found.append(_pause(kind, length))
    loader = host["data"].clipped(low, high)
    found.append(_pause("loader", loader.end - loader.start))
    return [p for p in found if p.count]


def side_pauses(trace_path: str | Path) -> tuple[list[Pause], str]:
    """Pauses that the training process noted itself, and a note if that file is unreadable.

    The file is ``rank0.side.json`` or ``rank0.json.side.json`` beside ``rank0.json``.
    """
    found, value = read_side(trace_path)
    if not found:
        return [], ""
    entries = value.get("pauses") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        return [], "the file of garbage collections beside the trace is unreadable"
    pauses = []
    for entry in entries[:_MAX_KINDS]:
        given = [entry.get(k) for k in ("count", "total_us", "max_us")] if isinstance(entry, dict) else []
        numbers = [float(n) for n in given if isinstance(n, int | float) and 0 <= n < 1e15]
        if len(numbers) == 3 and numbers[0]:
            pauses.append(Pause(what=str(entry.get("kind"))[:40], count=int(numbers[0]), total_us=numbers[1], max_us=numbers[2]))
    return pauses, ""


def window_figures(trace: Trace, steps: Steps, path: CriticalPath, communication: Communication) -> dict[str, float]:
    """Figures of the whole window.

    ``overlap_share``: part of the collectives' time that compute or memory operations hide (as HolisticTraceAnalysis counts
    it, over the union of collectives). With a device also ``launch_delay_p50_us`` / ``_p99_us`` (launch call's start to
    kernel's start), ``void_share`` (device idle / window), ``launch_bound_share`` (kernels that found the device waiting)
    and ``early_kernels`` (clocks disagree).
    """
    window = max(steps.window_us, 1e-9)
    transfer = path.collective.total()
    busy = join(path.compute, path.memory)
    exposed = path.collective.minus(busy).total()
    figures = {
        "compute_share": path.compute.total() / window,
        "memory_share": path.memory.total() / window,
        "collective_share": transfer / window,
        "exposed_collective_share": exposed / window,
        "overlap_share": 1 - exposed / transfer if transfer > 0 else 0.0,
        "collectives_before_window": float(communication.before_window),
    }
    if not path.cpu_only:
        figures["void_share"] = 1 - join(busy, path.collective).total() / window
        figures |= _launch_figures(trace, steps)
    return {k: round(v, 4) for k, v in figures.items() if v or k != "collectives_before_window"}


def _launch_figures(trace: Trace, steps: Steps) -> dict[str, float]:
    rows = trace.rows(KERNEL, MEMCPY, MEMSET)
    launch = trace.launch[rows]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    inside = (trace.ts_us[launch] >= steps.window[0]) & (trace.ts_us[launch] < steps.window[1])
    delay = (trace.ts_us[rows] - trace.ts_us[launch])[inside]
    if delay.size == 0:
        return {}
    ordered = np.sort(delay)
    return {
        "launch_delay_p50_us": quantile(ordered, 0.5),
        "launch_delay_p99_us": quantile(ordered, 0.99),
        "launch_bound_share": float((delay < LAUNCH_BOUND_US).mean()),
        "early_kernels": float((delay < 0).sum()),
        "kernels": float(delay.size),
    }


def _pause(kind: str, lengths: Floats) -> Pause:
    total, longest = (float(lengths.sum()), float(lengths.max())) if lengths.size else (0.0, 0.0)
    return Pause(what=kind, count=int(lengths.size), total_us=round(total, 1), max_us=round(longest, 1))
