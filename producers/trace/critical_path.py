"""Which function holds each moment of a worker's window ([P] §4): GPU compute > memory operations > collectives > host.

A moment belongs to a function iff nothing of a higher class runs; equals do not mask each other. Host functions count as
leaf (self) time of the training thread, Python ones by their whole call path. On a job without a device, operators on the
training thread are the compute, and collectives are the annotations on the communication library's threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.producers.trace.columns import (
    ANNOTATION,
    CPU_OP,
    KERNEL,
    MEMCPY,
    MEMSET,
    PYTHON,
    RUNTIME,
    Floats,
    Ints,
    Mask,
    Trace,
)
from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.intervals import Intervals, union
from eroica.producers.trace.naming import host_collective, is_enqueue, stable_name, step_number
from eroica.producers.trace.nesting import CallTree, build_tree, path_ids
from eroica.producers.trace.ordering import dense
from eroica.producers.trace.steps import Steps

COMPUTE, MEMORY, COLLECTIVE, HOST = range(4)
CLASS_NAMES = ("compute", "memory", "collective", "python")
STACK_FRAMES = 40
"""Innermost callers kept of a call path."""


@dataclass(frozen=True, slots=True)
class HostThread:
    """Call tree of one thread; ``rows`` are its events' rows in the trace."""

    rows: Ints
    tree: CallTree


@dataclass(frozen=True, slots=True)
class Executions:
    """Every execution that touches the window, in columns: its function, duration and time on the critical path (µs).

    For host functions an execution's duration is its self time. ``function`` indexes ``functions``: (class, name, callers),
    callers outermost first joined by ``;``.
    """

    function: Ints
    row: Ints
    duration_us: Floats
    exclusive_us: Floats
    functions: list[tuple[int, str, str]]


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The executions and the sets of time that the classes are busy, clipped to the window."""

    executions: Executions
    compute: Intervals
    memory: Intervals
    collective: Intervals
    main: HostThread
    backward: HostThread | None
    cpu_only: bool
    is_collective: Mask
    """Per row of the trace."""

    @property
    def collective_rows(self) -> Ints:
        """Rows of all collectives, ascending by start."""
        return np.flatnonzero(self.is_collective)


def find_critical_path(trace: Trace, steps: Steps) -> CriticalPath:
    """Assign the window's time to functions."""
    low, high = steps.window
    device = trace.rows(KERNEL, MEMCPY, MEMSET)
    cpu_only = device.size == 0
    kernel = trace.category == KERNEL
    is_collective = np.zeros(len(trace), np.bool_)
    is_collective[list(trace.comm)] = True
    is_collective &= kernel
    for category, accept in ((KERNEL, kernel_collective), (ANNOTATION, _on_host)):
        rows = trace.rows(category)
        is_collective[rows] |= trace.named(rows, accept)
    collective = np.flatnonzero(is_collective)
    main, backward = _host_threads(trace, cpu_only, is_collective)
    memory_rows = trace.rows(MEMCPY, MEMSET)
    masking = _OnDevice(trace, low, high)
    groups = _Groups(trace)
    if cpu_only:
        operators = _operators(trace, main)
        compute = union(*_clip(main.tree.segment_start[operators], main.tree.segment_end[operators], low, high))
    else:
        compute_rows = np.flatnonzero(kernel & ~is_collective)
        compute = masking.busy(compute_rows)
        groups.by_name(COMPUTE, compute_rows, *masking.exclusive(compute_rows, None))
    memory = masking.busy(memory_rows)
    groups.by_name(MEMORY, memory_rows, *masking.exclusive(memory_rows, compute))
    higher = _join(compute, memory)
    transfer = masking.busy(collective)
    groups.by_name(COLLECTIVE, collective, *masking.exclusive(collective, higher))
    masks = _join(higher, transfer)
    for thread in (backward, main):
        if thread is None:
            continue
        groups.by_path(thread, cpu_only, low, high, masks)
        tree = thread.tree
        masks = _join(masks, union(*_clip(tree.segment_start, tree.segment_end, low, high)))
    return CriticalPath(groups.finish(), compute, memory, transfer, main, backward, cpu_only, is_collective)


def _on_host(name: str) -> bool:
    """Whether an annotation of this name is a collective that runs on host threads, and no mere enqueue of a device's."""
    found = host_collective(name)
    return found is not None and found.backend in ("gloo", "mpi", "ucc")


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """Times of rows within the window."""

    trace: Trace
    low: float
    high: float

    def busy(self, rows: Ints) -> Intervals:
        return union(*_clip(self.trace.ts_us[rows], self.trace.end_us[rows], self.low, self.high))

    def exclusive(self, rows: Ints, higher: Intervals | None) -> tuple[Mask, Floats]:
        """Whether each row touches the window, and its time there that no higher class covers."""
        start, end = _clip(self.trace.ts_us[rows], self.trace.end_us[rows], self.low, self.high)
        inside = end > start
        return inside, end - start - (higher.overlap(start, end) if higher is not None else 0.0)


class _Groups:
    """Collects executions and numbers the functions they belong to."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names: dict[str, int] = {}
        self.stable = np.fromiter(
            (self.names.setdefault(stable_name(n), len(self.names)) for n in trace.names), np.int64, len(trace.names)
        )
        self.text = list(self.names)
        self.parts: list[tuple[Ints, Ints, Floats, Floats]] = []
        self.functions: list[tuple[int, str, str]] = []
        self.known: dict[tuple[int, int, int, int], int] = {}

    def by_name(self, kind: int, rows: Ints, inside: Mask, exclusive: Floats) -> None:
        rows, exclusive = rows[inside], exclusive[inside]
        keys, inverse = dense(self.stable[self.trace.name[rows]], len(self.text))
        numbers = [self._number((kind, k, -1, -1), self.text[k], "") for k in keys.tolist()]
        self._add(numbers, inverse, rows, self.trace.dur_us[rows], exclusive)

    def by_path(self, thread: HostThread, cpu_only: bool, low: float, high: float, masks: Intervals) -> None:
        """Self time of one thread: operators by name, Python functions by call path."""
        tree, rows = thread.tree, thread.rows
        label = self.stable[self.trace.name[rows]]
        python = self.trace.category[rows] == PYTHON
        path, table = path_ids(tree, label, python)
        start, end = _clip(tree.segment_start, tree.segment_end, low, high)
        free = end - start - masks.overlap(start, end)
        leaf = tree.segment_event
        own = np.asarray(np.bincount(leaf, end - start, rows.size), np.float64)
        compute = np.zeros(rows.size, np.bool_)
        if cpu_only:
            compute[leaf[_operators(self.trace, thread)]] = True
            free = np.where(compute[leaf], end - start, free)
        exclusive = np.asarray(np.bincount(leaf, free, rows.size), np.float64)
        touched = np.flatnonzero(own > 0)
        above = np.where(python[touched], path[touched], 0)
        kind = np.where(compute[touched], COMPUTE, HOST)
        # One number per function out of class, name and path.
        names, paths = len(self.text), len(table)
        keys, inverse = dense((kind * names + label[touched]) * paths + above, (HOST + 1) * names * paths)
        of = [(k // paths // names, k // paths % names, k % paths) for k in keys.tolist()]
        totals = np.bincount(inverse, exclusive[touched], keys.size)
        numbers = []
        for (k, name, number), total in zip(of, totals.tolist(), strict=True):
            stack = self._stack(table, number) if number and total > 0 else ""
            numbers.append(self._number((k, name, number, id(table) if number else -1), self.text[name], stack))
        self._add(numbers, inverse, rows[touched], own[touched], exclusive[touched])

    def _stack(self, table: list[tuple[int, int]], number: int) -> str:
        frames: list[str] = []
        number = table[number][0]
        while number > 0 and len(frames) < STACK_FRAMES:
            frames.append(self.text[table[number][1]])
            number = table[number][0]
        if number > 0:
            frames.append("…")
        return ";".join(reversed(frames))

    def _number(self, key: tuple[int, int, int, int], name: str, stack: str) -> int:
        if key not in self.known:
            self.known[key] = len(self.functions)
            self.functions.append((key[0], name, stack))
        return self.known[key]

    def _add(self, numbers: list[int], inverse: Ints, rows: Ints, duration: Floats, exclusive: Floats) -> None:
        function = np.array(numbers, np.int64)[inverse] if numbers else np.empty(0, np.int64)
        self.parts.append((function, rows, duration, exclusive))

    def finish(self) -> Executions:
        function, row, duration, exclusive = (np.concatenate(c) for c in zip(*self.parts, strict=True))
        return Executions(function, row, duration, exclusive, self.functions)


def _host_threads(trace: Trace, cpu_only: bool, is_collective: Mask) -> tuple[HostThread, HostThread | None]:
    """The training thread (where the steps are annotated, else the busiest) and, with a device, autograd's thread."""
    rows = trace.rows(CPU_OP, ANNOTATION, PYTHON, RUNTIME)
    rows = rows[~is_collective[rows]]
    if rows.size == 0:
        return HostThread(rows, build_tree(np.empty(0), np.empty(0))), None
    stepping = rows[trace.named(rows, lambda n: step_number(n) >= 0 or n.startswith("Optimizer.step#"))]
    threads = trace.thread[rows]
    size = len(trace.threads)
    if stepping.size:
        main = int(np.bincount(trace.thread[stepping], trace.dur_us[stepping], size).argmax())
    else:
        main = int(np.bincount(threads, minlength=size).argmax())
    trees = [_thread(trace, rows[threads == main])]
    if not cpu_only:
        backward = rows[trace.named(rows, lambda n: n.startswith("autograd::engine") or n.endswith("Backward"))]
        backward = backward[trace.thread[backward] != main]
        if backward.size:
            other = int(np.bincount(trace.thread[backward], minlength=size).argmax())
            trees.append(_thread(trace, rows[threads == other]))
    return trees[0], trees[1] if len(trees) > 1 else None


def _thread(trace: Trace, rows: Ints) -> HostThread:
    return HostThread(rows, build_tree(trace.ts_us[rows], trace.end_us[rows]))


def _operators(trace: Trace, thread: HostThread) -> Ints:
    """Segments of a thread in which an operator computes."""
    leaf = thread.rows[thread.tree.segment_event]
    return np.flatnonzero((trace.category[leaf] == CPU_OP) & ~trace.named(leaf, is_enqueue))


def _clip(start: Floats, end: Floats, low: float, high: float) -> tuple[Floats, Floats]:
    return np.minimum(np.maximum(start, low), high), np.minimum(np.maximum(end, low), high)


def _join(a: Intervals, b: Intervals) -> Intervals:
    return union(np.concatenate((a.start, b.start)), np.concatenate((a.end, b.end)))
