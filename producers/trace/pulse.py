"""The pulse of a worker: its collectives in issue order. Where two workers have the same, one's steps can be cut as the other's.

A collective ends for all its members at once. So two lists of ends differ by one constant, that of the clocks, if each is held
against the right one of the other; against others they differ by as much as steps do. The ends tell how the lists fit, the host's
launches then tell between which two collectives a step begins. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.producers.trace.columns import ANNOTATION, CPU_OP, Floats, Ints, Trace
from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.commargs import CommArgs
from eroica.producers.trace.naming import host_collective
from eroica.producers.trace.rhythm import NOTHING, collectives_of
from eroica.producers.trace.steps import Steps, with_window

__all__ = ["TRUST", "Pulse", "borrowed_steps", "fits", "limit_us", "pulse_of"]

TRUST = ("profiler_step", "annotation", "loader", "optimizer", "collectives", "none")
"""Sources of steps, best first. Steps that the device marks are no times of the host: they neither lend nor borrow."""
MAX_KEPT = 2_048
"""Collectives of a trace that are kept, from its end."""
MIN_SHARED = 3
"""Two lists that share fewer are not held against each other."""
SAME_KIND = 0.9
"""Share of the shared collectives that must be of the same kind."""
SPREAD_US, SPREAD_SHARE = 50.0, 0.005
"""Median distance of the ends, once the clocks' difference is off, up to which lists fit: this or so much of a step."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Collectives of one trace, at most ``MAX_KEPT``. Times in µs on the clock that the traces share."""

    kind: tuple[str, ...]
    issued: Floats
    done: Floats
    """When the host had issued each."""
    end: Floats
    steps: Steps
    """Of the trace; its times count from ``origin_us``."""
    origin_us: float
    size: tuple[int, ...] = ()
    """Elements that each moved; −1 where that is not told."""
    number: tuple[tuple[str, int] | None, ...] = ()
    """Communicator, by name and members, and sequence number in it; ``None`` where they are not told."""


def pulse_of(trace: Trace, steps: Steps) -> Pulse:
    """What is kept of a trace to hold another against it."""
    rows, issued = collectives_of(trace)
    order = np.lexsort((rows, issued))[-MAX_KEPT:]
    rows, issued = rows[order], issued[order]
    launch = trace.launch[rows]
    done = np.where(launch >= 0, trace.end_us[np.maximum(launch, 0)], issued)
    kinds = [kernel_collective(name) or host_collective(name) for name in trace.names]
    said = tuple((found.op if (found := kinds[n]) else "") for n in trace.name[rows].tolist())
    at = trace.origin_us
    told = [trace.comm.get(row, NOTHING) for row in rows.tolist()]
    size = tuple(c.in_elements for c in told)
    return Pulse(said, issued + at, done + at, trace.end_us[rows] + at, steps, at, size, tuple(map(_numbered, told)))


def _numbered(said: CommArgs) -> tuple[str, int] | None:
    """A collective's place in its communicator, the same for all members."""
    return (f"{said.group_name} {said.group_ranks}", said.seq) if said.seq >= 0 and said.group_name else None


def borrowed_steps(trace: Trace, own: Pulse, others: list[Pulse]) -> Steps | None:
    """The steps of *trace*, cut as those of the one of *others* whose collectives fit best; ``None`` if none fits.

    Between two collectives a step begins when the optimizer is done, else when a batch is asked for, else when the other's does.
    """
    fits = [(fit, other) for other in others if (fit := _fit(own, other)) is not None]
    if not fits:
        return None
    (_, lag, offset), other = min(fits, key=lambda one: one[0])
    steps = other.steps
    marks = np.concatenate((steps.start_us, steps.end_us[-1:])) + other.origin_us
    places = np.searchsorted(other.issued, marks) + lag
    bounds = _bounds(trace, own, places, marks + offset)
    # Of a step at the edge half its collectives may be lost, as of any trace's first.
    inside = np.clip(places, 0, own.end.size)
    kept = np.flatnonzero((np.diff(bounds) > 0) & (2 * np.diff(inside) >= np.diff(places)))
    if kept.size == 0 or not (np.diff(kept) == 1).all():
        return None
    return with_window(trace, steps.number[kept], bounds[kept], bounds[kept + 1], source="others")


def _bounds(trace: Trace, own: Pulse, places: Ints, marks: Floats) -> Floats:
    """When each step begins, µs from the trace's origin.

    :param places: how many of its collectives were issued before.
    :param marks: when it began for the other, by the trace's clock.
    """
    hints = _hints(trace)
    first, last = float(trace.ts_us.min()), float(trace.end_us.max())
    bounds = np.empty(places.size)
    for i, (place, mark) in enumerate(zip(places.tolist(), (marks - own.origin_us).tolist(), strict=True)):
        low = float(own.done[min(place, own.done.size) - 1] - own.origin_us) if place >= 1 else first
        high = float(own.issued[max(place, 0)] - own.origin_us) if place < own.issued.size else last
        inside = [h for hint in hints for h in hint[(hint >= low) & (hint <= high)].tolist()[-1:]]
        latest = max(low, high - min(1.0, (high - low) / 2))  # the next one is issued in the step, not as it begins
        bounds[i] = inside[0] if inside else np.clip(mark, low, latest)
    return bounds


def limit_us(of: Pulse) -> float:
    """How far apart the ends of one collective may be told, µs."""
    return max(SPREAD_US, SPREAD_SHARE * float(np.median(of.steps.end_us - of.steps.start_us)))


def fits(own: Pulse, other: Pulse) -> list[tuple[float, int, float]]:
    """All ways in which *own* may lie against *other*: median distance of the ends, place of the other's first in *own*, and what
    *own*'s clock is ahead, µs.
    """
    n, m = len(other.kind), len(own.kind)
    names = {kind: i for i, kind in enumerate(sorted({*own.kind, *other.kind}))}
    mine, theirs = (np.array([names[k] for k in p.kind], np.int64) for p in (own, other))
    limit = limit_us(other)
    found: list[tuple[float, int, float]] = []
    for lag in range(-(n - 1), m):
        a, b = max(0, -lag), min(n, m - lag)
        if b - a < max(MIN_SHARED, min(n, m) // 2) or (theirs[a:b] == mine[a + lag : b + lag]).mean() < SAME_KIND:
            continue
        apart = own.end[a + lag : b + lag] - other.end[a:b]
        offset = float(np.median(apart))
        spread = float(np.median(np.abs(apart - offset)))
        if spread <= limit:
            found.append((spread, lag, offset))
    return found


def _fit(own: Pulse, other: Pulse) -> tuple[float, int, float] | None:
    """That of the ways which is the best; ``None`` if the lists do not fit.

    Steps of one length fit at several places: of these the one counts at which the clocks differ least.
    """
    found = fits(own, other)
    if not found:
        return None
    best = min(spread for spread, _, _ in found)
    return min((one for one in found if one[0] <= 3 * best + 1.0), key=lambda one: abs(one[2]))


def _hints(trace: Trace) -> tuple[Floats, Floats]:
    """Ends of the optimizer's annotations, and starts of the loader's."""
    rows = trace.rows(ANNOTATION, CPU_OP)
    done = rows[trace.named(rows, lambda name: name.startswith("Optimizer.step#"))]
    asked = rows[trace.named(rows, lambda name: name.startswith("enumerate(DataLoader)"))]
    return np.sort(trace.end_us[done]), np.sort(trace.ts_us[asked])
