"""Collectives per communicator and slot (place in the step), in the form in which the members' executions can be matched."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eroica.producers.trace.columns import ANNOTATION, CPU_OP, Ints, Trace
from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.commargs import CommArgs
from eroica.producers.trace.critical_path import CriticalPath
from eroica.producers.trace.gloo import gloo_groups
from eroica.producers.trace.identity import process_groups
from eroica.producers.trace.intervals import Intervals, union
from eroica.producers.trace.naming import CollectiveName, canonical_op, host_collective
from eroica.producers.trace.steps import Steps

BYTES = "bytes"
"""Stands for the type where the size of a message is told in bytes and its type is not."""
DTYPE_BYTES = {
    BYTES: 1,
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int": 4, "int32": 4, "long": 8,
    "int64": 8,
    "short": 2, "int16": 2, "byte": 1, "uint8": 1, "char": 1, "int8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Bytes per element by torch's type names, in lower case."""
POINT_TO_POINT = ("send", "recv")
_ENDS = re.compile(r"^\w+:(?:send \d{1,9}->|recv \d{1,9}<-)(\d{1,9})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Operation:
    """One execution of a collective. Times in µs from the trace's origin."""

    row: int
    group: str
    op: str
    backend: str
    step: int
    issued_us: float
    start_us: float
    duration_us: float
    exposed_us: float
    bytes: int
    dtype: str
    seq: int
    size: int
    peer: int = -1
    """The other end of a send or receive, a rank of the job."""


@dataclass(frozen=True, slots=True)
class Communication:
    """All operations in issue order, what was left out, and what each communicator is known to be.

    A send or receive whose other end is told stands in a communicator of the two ranks, ``<group>:<lower>:<higher>``.
    """

    operations: list[Operation]
    before_window: int
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()
    """Names under which operations of several groups stand that cannot be told apart."""


def find_collectives(trace: Trace, steps: Steps, path: CriticalPath) -> Communication:
    """Read every collective of the window: from device kernels where there are any, and from host libraries' annotations.

    A kernel is counted in the step that launched it, an annotation in the step in which it began. Kernels whose launch the
    trace does not hold belong to a step before the window and are counted apart, unless the trace holds no launches at all.
    """
    rows = path.collective_rows
    if rows.size == 0:
        return Communication([], 0)
    launch = trace.launch[rows]
    issued = np.where(launch >= 0, trace.ts_us[np.maximum(launch, 0)], trace.ts_us[rows])
    on_host = trace.category[rows] == ANNOTATION
    known = on_host | (launch >= 0)
    if not (launch >= 0).any():
        known[:] = True
    after = issued >= steps.window[1]
    known &= (issued >= steps.window[0]) & ~after
    notes = trace.rows(ANNOTATION)
    notes = notes[trace.named(notes, host_collective)]
    note = _holders(trace, launch, notes)
    params = _holders(trace, launch, np.array(sorted(r for r in trace.comm if trace.category[r] == CPU_OP), np.int64))
    end = trace.end_us[rows]
    hidden = _hiding(path).overlap(trace.ts_us[rows], end)
    step = np.minimum(steps.of(issued), steps.number.size - 1)
    named = process_groups(trace)
    by_thread = gloo_groups(trace, named)
    operations = [
        _operation(
            trace, int(rows[i]), int(note[i]), int(params[i]), named, by_thread, int(step[i]), float(issued[i]), float(hidden[i])
        )
        for i in np.lexsort((rows, issued)).tolist()
        if known[i]
    ]
    operations, pairs = _paired(trace, operations, named)
    mixed = frozenset(["gloo"]) if by_thread is None else frozenset[str]()
    return Communication(operations, int((~known & ~after).sum()), {**named, **pairs}, mixed)


def _paired(
    trace: Trace, operations: list[Operation], named: dict[str, dict[str, Any]]
) -> tuple[list[Operation], dict[str, dict[str, Any]]]:
    """Sends and receives moved into communicators of their two ranks, and these communicators."""
    told = trace.meta.get("distributedInfo")
    own = told.get("rank") if isinstance(told, dict) else None
    pairs: dict[str, dict[str, Any]] = {}
    if type(own) is not int:
        return operations, pairs
    out = []
    for o in operations:
        if o.op in POINT_TO_POINT and o.peer >= 0 and o.peer != own:
            low, high = min(own, o.peer), max(own, o.peer)
            name = f"{o.group}:{low}:{high}"
            pairs[name] = {"desc": named.get(o.group, {}).get("desc", ""), "ranks": [low, high], "size": 2}
            o = replace(o, group=name, size=2)
        out.append(o)
    return out, pairs


def bus_factor(op: str, size: int) -> float:
    """Bytes on the bus per byte of the operation, by nccl-tests' PERFORMANCE.md, for *size* members; 0 where that is unknown."""
    if size <= 1:
        return 0.0
    return {"all_reduce": 2 * (size - 1) / size, "broadcast": 1.0, "reduce": 1.0, "send": 1.0, "recv": 1.0}.get(
        op, (size - 1) / size
    )


def _operation(
    trace: Trace,
    row: int,
    note: int,
    params: int,
    named: dict[str, dict[str, Any]],
    by_thread: dict[int, str] | None,
    step: int,
    issued: float,
    hidden: float,
) -> Operation:
    """One execution; kernels that say nothing about themselves (coalesced, send/receive) get it from the host call around
    their launch.
    """
    args = trace.comm.get(row) or trace.comm.get(params) or CommArgs()
    shapes = trace.comm.get(note, args) if args.in_elements < 0 and args.out_elements < 0 else args
    name = trace.names[trace.name[row]]
    by_name = kernel_collective(name) or host_collective(name)
    annotated = host_collective(trace.names[trace.name[note]]) if note >= 0 else None
    said = by_name or annotated or CollectiveName("unknown", "unknown")
    # Several calls coalesced into one say nothing of what they are; its kernel may.
    noted = annotated.op if annotated is not None and not (annotated.op == "coalesced" and said.op) else ""
    op = canonical_op(args.collective) if args.collective else noted or said.op
    group = args.group_name or (by_thread or {}).get(int(trace.thread[row]), "") or _only(named)
    if not group:
        group = said.backend if trace.category[row] == ANNOTATION else f"stream {trace.streams[trace.stream[row]]}"
    size = args.group_size or named.get(group, {}).get("size", 0)
    elements = max(shapes.in_elements * (max(size, 1) if op == "all_gather" else 1), shapes.out_elements, 0)
    return Operation(
        row=row,
        group=group,
        op=op or "unknown",
        backend=said.backend,
        step=step,
        issued_us=issued,
        start_us=float(trace.ts_us[row]),
        duration_us=float(trace.dur_us[row]),
        exposed_us=max(0.0, float(trace.dur_us[row]) - hidden),
        bytes=elements * DTYPE_BYTES.get(shapes.dtype.lower(), 0),
        dtype=shapes.dtype,
        seq=args.seq,
        size=size,
        peer=args.peer if args.peer >= 0 else _noted_peer(trace.names[trace.name[note]] if note >= 0 else "", group, named),
    )


def _noted_peer(note: str, group: str, named: dict[str, dict[str, Any]]) -> int:
    """The other end as torch's annotation has it, by its number in the group: ``nccl:send 0->1``, ``nccl:recv 1<-0``."""
    told = _ENDS.match(note)
    ranks = named.get(group, {}).get("ranks") or []
    if told is None or not ranks:
        return -1
    number = int(told.group(1))
    return int(ranks[number]) if number < len(ranks) else -1


def _only(named: dict[str, dict[str, Any]]) -> str:
    return next(iter(named)) if len(named) == 1 else ""


def _holders(trace: Trace, launch: Ints, notes: Ints) -> Ints:
    """For each launch, the row of *notes* on the same thread that holds it, -1 without one."""
    found = np.full(launch.size, -1, np.int64)
    for thread in np.flatnonzero(np.bincount(trace.thread[notes])).tolist():
        mine = notes[trace.thread[notes] == thread]
        calls = np.flatnonzero((launch >= 0) & (trace.thread[np.maximum(launch, 0)] == thread))
        time = trace.ts_us[launch[calls]]
        k = np.searchsorted(trace.ts_us[mine], time, "right") - 1
        inside = (k >= 0) & (time <= trace.end_us[mine[np.maximum(k, 0)]])
        found[calls[inside]] = mine[k[inside]]
    return found


def _hiding(path: CriticalPath) -> Intervals:
    a, b = path.compute, path.memory
    return union(np.concatenate((a.start, b.start)), np.concatenate((a.end, b.end)))
