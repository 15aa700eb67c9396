"""Steps by the rhythm of collectives: what a program does between one and the next comes back with every step. Pure.

The kind of a collective alone does not tell: a step may hold eight of one kind and size. So each is known by its kind and group,
by its size where sizes come back too, and by the operations that the host issued since the one before. The period is the
shortest distance at which all of that comes back, to the end of the trace and for nearly all of it. No such distance: no rhythm,
and no steps.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.producers.trace.columns import ANNOTATION, CPU_OP, KERNEL, MEMCPY, MEMSET, PYTHON, RUNTIME, Floats, Ints, Trace
from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.commargs import CommArgs
from eroica.producers.trace.naming import host_collective, stable_name

MIN_REPEATS = 3
"""A pattern that comes back fewer times is no rhythm."""
MAX_PERIOD = 4_096
"""Collectives in a step; longer patterns are not looked for."""
COVERED = 0.8
"""So much of the collectives a rhythm explains: what comes back only at the end of a trace is none of the whole."""
ALIKE = 0.8
"""Two stretches of host work are the same from this cosine on. Counts of operations go in by their root, so that one operation
more among hundreds changes little, and another program much."""
UNEVEN = 3.0
"""Where no operations are known between collectives, the times between them must come back, up to this factor; those under a
tenth of the period do not count."""
_WORDS = 128
"""Names of operations fall into so many classes by a digest of them, the same on every rank."""
_AT_ONCE = 256
NOTHING = CommArgs()


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The collectives in issue order, and the host's work before each."""

    rows: Ints
    issued: Floats
    done: Floats
    """When the host was done with issuing each, µs."""
    thread: Ints
    """That issued each; -1 where that is not told."""
    kind: Ints
    """Number of its kind, group and thread."""
    sized: Ints
    """The same with its size."""
    work: npt.NDArray[np.float32]
    """Counts of operations by class, roots of, of length 1 or 0: shape (collectives, classes)."""


def find_rhythm(trace: Trace) -> tuple[Ints, Floats, Floats] | None:
    """Numbers, starts and ends of whole steps, µs; None without a rhythm.

    A step ends when its last collective has been issued, and the next begins. The first begins with the trace where that holds
    all of its collectives and something before them; else it is left out, and numbers begin with 1. Which collective is the last:
    that of the backward pass before the main thread's next one, where autograd has a thread of its own that issues some; else
    that at the end of the trace, which ends with a step if a profiler of steps wrote it.
    """
    rows, issued = collectives_of(trace)
    if rows.size < MIN_REPEATS:
        return None
    order = np.lexsort((rows, issued))
    sequence = _sequence(trace, rows[order], issued[order])
    period = _period(sequence, sequence.sized) or _period(sequence, sequence.kind)
    if not period:
        return None
    last = np.arange(rows.size - 1 - _unfinished(trace, sequence, period), -1, -period)[::-1]
    bounds, number = sequence.done[last], 1
    if last[0] >= period - 1 and (begin := _begin(trace)) < sequence.issued[0]:
        bounds, number = np.concatenate(([begin], bounds)), 0
    if bounds.size < 3 or not (np.diff(bounds) > 0).all():
        return None
    return np.arange(number, number + bounds.size - 1), bounds[:-1], bounds[1:]


def collectives_of(trace: Trace) -> tuple[Ints, Floats]:
    """Rows of the collectives and when the host issued each: device kernels whose launch is known, else all, else annotations."""
    rows = trace.rows(KERNEL)
    rows = rows[trace.named(rows, kernel_collective)]
    if rows.size:
        launch = trace.launch[rows]
        if (launch >= 0).any():  # the others were launched before the trace began
            return rows[launch >= 0], trace.ts_us[launch[launch >= 0]]
        return rows, trace.ts_us[rows]
    rows = trace.rows(ANNOTATION)
    rows = rows[trace.named(rows, host_collective)]
    return rows, trace.ts_us[rows]


def _sequence(trace: Trace, rows: Ints, issued: Floats) -> _Sequence:
    launch = trace.launch[rows]
    launched = launch >= 0
    on_host = trace.category[rows] == ANNOTATION
    # Threads of a library's own are none that issue.
    issuing = on_host & ~trace.named(rows, _runs_on_host)
    thread = np.where(launched, trace.thread[np.maximum(launch, 0)], np.where(issuing, trace.thread[rows], -1)).astype(np.int64)
    groups: dict[str, int] = {}
    told = [trace.comm.get(r, NOTHING) for r in rows.tolist()]
    group = np.array([groups.setdefault(c.group_name, len(groups)) for c in told], np.int64)
    kind = _numbered(trace.name[rows].astype(np.int64), group, thread)
    done = np.where(launched, trace.end_us[np.maximum(launch, 0)], np.where(issuing | ~on_host, trace.end_us[rows], issued))
    sized = _numbered(kind, np.array([c.in_elements for c in told], np.int64))
    return _Sequence(rows, issued, done, thread, kind, sized, _work(trace, rows, issued))


def _runs_on_host(name: str) -> bool:
    found = host_collective(name)
    return found is not None and found.backend in ("gloo", "mpi", "ucc")


def _numbered(*columns: Ints) -> Ints:
    """A number for each distinct row."""
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _work(trace: Trace, rows: Ints, issued: Floats) -> npt.NDArray[np.float32]:
    """What the host issued before each collective and after the one before; of a trace of devices alone, what these did."""
    word = np.array([zlib.crc32(stable_name(n).encode("utf-8", "replace")) % _WORDS for n in trace.names], np.int64)
    operations = trace.rows(CPU_OP)
    if not operations.size:
        operations = np.setdiff1d(trace.rows(KERNEL, MEMCPY, MEMSET), rows)
    place = np.searchsorted(issued, trace.ts_us[operations], "left")
    inside = place < rows.size
    counts = np.bincount(place[inside] * _WORDS + word[trace.name[operations[inside]]], minlength=rows.size * _WORDS)
    work = np.sqrt(counts.reshape(rows.size, _WORDS).astype(np.float32))
    length = np.sqrt((work * work).sum(axis=1, keepdims=True))
    work /= np.where(length > 0, length, 1)
    return work


def _period(sequence: _Sequence, token: Ints) -> int:
    """The shortest distance at which collectives and the work before them come back; 0 for none."""
    size = token.size
    by_time = np.count_nonzero(sequence.work.any(axis=1)) < size / 2
    for period in range(1, min(size // MIN_REPEATS, MAX_PERIOD) + 1):
        different = np.flatnonzero(token[period:] != token[:-period])
        # From the end backwards, as far as it comes back.
        first = int(different[-1]) + 1 if different.size else 0
        need = max(COVERED * size, MIN_REPEATS * period)
        if size - first < need or (by_time and not _even(sequence.issued[first:], period)):
            continue
        if size - _first_alike(sequence.work, period, first) >= need:
            return period
    return 0


def _first_alike(work: npt.NDArray[np.float32], period: int, first: int) -> int:
    """From which collective on the work before each is that before the one a period later; at least *first*."""
    stop: int = work.shape[0] - period
    while stop > first:
        start = max(first, stop - _AT_ONCE)
        a, b = work[start:stop], work[start + period : stop + period]
        same = np.einsum("ij,ij->i", a, b) >= ALIKE
        same |= ~a.any(axis=1) & ~b.any(axis=1)
        if start == 0:  # the trace holds a part of the work before its first collective
            same[0] = True
        if not same.all():
            return start + int(np.flatnonzero(~same)[-1]) + 1
        stop = start
    return first


def _even(issued: Floats, period: int) -> bool:
    """Whether the times between collectives come back."""
    gaps = np.diff(issued)
    usual = np.array([np.median(gaps[place::period]) for place in range(min(period, gaps.size))])
    expected = usual[np.arange(gaps.size) % period]
    long = np.maximum(gaps, expected) >= usual.sum() / 10
    return bool((np.maximum(gaps, expected) <= UNEVEN * np.minimum(gaps, expected))[long].all())


def _unfinished(trace: Trace, sequence: _Sequence, period: int) -> int:
    """How many collectives at the end of the trace belong to a step that is not whole."""
    operations = trace.rows(CPU_OP)
    backward = operations[trace.named(operations, lambda n: n.startswith("autograd::engine"))]
    if backward.size == 0:
        return 0
    autograd = np.bincount(trace.thread[backward]).argmax()
    # The last period, with the collective before it.
    in_backward = sequence.thread[-period - 1 :] == autograd
    begins = np.flatnonzero(in_backward[:-1] & ~in_backward[1:])
    return (period - int(begins[0])) % period if begins.size == 1 else 0


def _begin(trace: Trace) -> float:
    """When the trace's first operation begins."""
    rows = trace.rows(CPU_OP, ANNOTATION, PYTHON, RUNTIME, KERNEL, MEMCPY, MEMSET)
    return float(trace.ts_us[rows[0]]) if rows.size else np.inf
