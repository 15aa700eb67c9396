"""A trace as numpy columns: names interned, categories coded, times in microseconds from the first event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.producers.trace.beginnings import Beginnings
from eroica.producers.trace.commargs import CommArgs, comm_args
from eroica.producers.trace.compiled import COLUMN_TYPES, COMPILED, Numbers, RunScanner
from eroica.producers.trace.events import NO_ARGS, Args, Event
from eroica.producers.trace.naming import host_collective
from eroica.producers.trace.ordering import middle, pairs, time_order

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]

OTHER, CPU_OP, ANNOTATION, PYTHON, RUNTIME, KERNEL, MEMCPY, MEMSET, GPU_ANNOTATION, SYNC, OVERHEAD, UNTOLD = range(12)
"""``OTHER`` is a category that is not known, ``UNTOLD`` none at all."""

CATEGORY_CODES = {
    "": UNTOLD,
    "cpu_op": CPU_OP,
    "operator": CPU_OP,  # kineto of 2020
    "user_annotation": ANNOTATION,
    "python_function": PYTHON,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "runtime": RUNTIME,
    "hip_runtime": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "mtia_runtime": RUNTIME,
    "glow_runtime": RUNTIME,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": RUNTIME,
    "kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "hpu_op": KERNEL,
    "collective_comm": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "gpu_user_annotation": GPU_ANNOTATION,
    "cuda_sync": SYNC,
    "overhead": OVERHEAD,
}
"""Categories of Kineto by any name they have had; unknown ones are read and left out of every figure."""

HOST_COMM_NAME = "record_param_comms"
"""The host operation that carries a collective's arguments."""
_NAME, _CATEGORY, _START, _DURATION, _THREAD, _STREAM, _CORRELATION, _BYTES = range(8)
NAME_LIMIT = 4_096
"""Characters of a name kept: no real one is longer, and a hostile one costs no more than this."""
DAY_US = 86_400e6
"""Events further than this from the middle of a trace carry a broken time: no profile is a day long."""
WORDY = (RUNTIME, KERNEL, MEMCPY, MEMSET)
"""Only these have arguments that are used; most events are others."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Complete (``ph: X``, or ``B`` and ``E``) events in columns, ascending by start, then falling by duration.

    ``ts_us`` counts from the first event; ``origin_us`` is that event's time, µs since the epoch where ``absolute`` is true.
    ``thread`` and ``stream`` index ``threads`` (pid, tid) and ``streams``; ``stream`` and ``correlation`` are -1 without one.
    Runtime calls and device work alone have streams, correlations and bytes.
    """

    name: npt.NDArray[np.int32]
    category: Codes
    ts_us: Floats
    end_us: Floats
    dur_us: Floats
    thread: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    correlation: Ints
    launch: Ints
    """Row of the runtime call with the same correlation, -1 without one."""
    bytes: Floats
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    streams: tuple[str, ...]
    comm: dict[int, CommArgs]
    """Row → what a collective said about itself."""
    meta: dict[str, Any]
    """Top-level keys of the file (distributedInfo, deviceProperties, baseTimeNanoseconds, …)."""
    origin_us: float
    absolute: bool
    repairs: dict[str, int] = field(default_factory=dict)
    """What had to be left out or mended to read the file, and how often."""

    def __len__(self) -> int:
        return int(self.ts_us.size)

    def rows(self, *categories: int) -> Ints:
        """Rows of these categories, ascending by start."""
        return np.flatnonzero(_of(self.category, *categories))

    def kinds(self, rows: Ints, kind_of: Callable[[str], str], kinds: Sequence[str]) -> Codes:
        """For each of *rows* the place among *kinds* of the kind that its name has, -1 for any other; every name is asked about
        once.
        """
        number = self.name[rows]
        places = {kind: place for place, kind in enumerate(kinds)}
        code = np.full(len(self.names), -1, np.int8)
        code[number] = 0
        asked = np.flatnonzero(code == 0)
        code[asked] = [places.get(kind_of(self.names[i]), -1) for i in asked.tolist()]
        return code[number]

    def named(self, rows: Ints, accept: Callable[[str], object]) -> Mask:
        """Which of *rows* have a name that *accept* takes; every name is asked about once."""
        number = self.name[rows]
        verdict = np.zeros(len(self.names), np.bool_)
        verdict[number] = True
        asked = np.flatnonzero(verdict)
        verdict[asked] = [bool(accept(self.names[i])) for i in asked.tolist()]
        return verdict[number]


class _Interner(dict[Any, int]):
    """Value → running number."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _Categories(dict[str, int]):
    """Category as written → code."""

    def __missing__(self, key: str) -> int:
        code = self[key] = CATEGORY_CODES.get(key.lower(), OTHER)
        return code


class ColumnBuilder:
    """Collects events in batches and ends as a :class:`Trace`; holds no event objects."""

    def __init__(self, *, compiled: bool = False) -> None:
        """:param compiled: whether :meth:`scan` may use the compiled scanner, if it is there."""
        self._names, self._threads, self._streams = _Interner(), _Interner(), _Interner()
        self._categories = _Categories()
        numbers = Numbers(self._names, self._categories, self._threads, self._streams)
        self._scanner = RunScanner(numbers, WORDY) if compiled and COMPILED else None
        self._parts: list[list[npt.NDArray[Any]]] = [[] for _ in COLUMN_TYPES]
        self._comm: dict[int, CommArgs] = {}
        self._beginnings = Beginnings()
        self._count = 0
        self.repairs: dict[str, int] = {}

    def mend(self, what: str, count: int = 1) -> None:
        """Note that *count* events needed the repair *what*."""
        if count:
            self.repairs[what] = self.repairs.get(what, 0) + count

    def add(self, events: list[Event]) -> None:
        """Take the complete events of a batch; flows, marks and metadata are not needed and pass by."""
        rows = self._beginnings.whole(events)
        if not rows:
            return
        n, names, threads, categories = len(rows), self._names, self._threads, self._categories
        name = np.fromiter([names[e.name] for e in rows], np.int32, n)
        code = np.fromiter([categories[e.cat] for e in rows], np.int8, n)
        wordy = np.flatnonzero(_of(code, *WORDY)).tolist()
        args = [rows[i].args or NO_ARGS for i in wordy]
        correlation, stream = np.full(n, -1, np.int64), np.full(n, -1, np.int32)
        correlation[wordy] = _integers([a.correlation for a in args])
        stream[wordy] = np.fromiter([self._streams[a.stream] for a in args], np.int32, len(args))
        size = np.zeros(n)
        size[wordy] = np.fromiter([a.bytes for a in args], np.float64, len(args))
        ts, dur = np.fromiter([e.ts for e in rows], np.float64, n), np.fromiter([e.dur for e in rows], np.float64, n)
        thread = np.fromiter([threads[e.pid, e.tid] for e in rows], np.int32, n)
        self._put(name, code, ts, dur, thread, stream, correlation, size)
        speaking = {i for i, a in zip(wordy, args, strict=True) if a.collective is not None}
        speaking.update(np.flatnonzero((name == names.get(HOST_COMM_NAME, -1)) | (code == ANNOTATION)).tolist())
        for i in sorted(speaking):
            if (arg := rows[i].args) is not None and _about_a_collective(int(code[i]), rows[i].name, arg):
                self._comm[self._count + i] = comm_args(arg)
        self._count += n

    def scan(self, data: bytes, start: int, stop: int, closed: Callable[[bytes], bool] | None = None) -> bool:
        """Take the events of ``data[start:stop]``, separated by commas, as text.

        :param closed: the events end with the bracket of their list instead, wherever that is; this is asked whether what stands
            behind it is sound.
        :returns: False if the scanner is absent or refuses them, or *closed* does; then nothing was taken.
        """
        if self._scanner is None:
            return False
        marks = self._scanner.marks()
        run = self._scanner.scan(data, start, stop if closed is None else -1)
        if run is None:
            return False
        if closed is not None and not closed(data[run.position + 1 :]):
            self._scanner.undo(marks)
            return False
        if run.rows:
            self._put(*run.columns)
        for row, name, args in run.speaking:
            if _about_a_collective(int(run.columns[1][row]), name, args):
                self._comm[self._count + row] = comm_args(args)
        self._count += run.rows
        return True

    def build(self, meta: dict[str, Any]) -> Trace:
        """Drop events whose times cannot be meant, sort, and hand over the columns."""
        self.mend("beginnings_or_ends_alone", self._beginnings.dropped + self._beginnings.left)
        ts, dur = self._joined(_START), self._joined(_DURATION)
        keep = self._usable(ts, dur)
        keep = keep[time_order(ts[keep], dur[keep])]
        first, total = float(ts[keep[0]]) if keep.size else 0.0, ts.size
        ts, dur = ts[keep], dur[keep]
        # Column by column, so that no two of them are in memory both joined and in order.
        name, code, thread = self._ordered(_NAME, keep), self._ordered(_CATEGORY, keep), self._ordered(_THREAD, keep)
        code = self._with_annotations(name, code)
        stream, correlation = self._ordered(_STREAM, keep), self._ordered(_CORRELATION, keep)
        size = self._ordered(_BYTES, keep)
        return Trace(
            name=name,
            category=code,
            ts_us=ts - first,
            end_us=ts - first + dur,
            dur_us=dur,
            thread=thread,
            stream=stream,
            correlation=correlation,
            launch=pairs(correlation, np.flatnonzero(code == RUNTIME), np.flatnonzero(_of(code, KERNEL, MEMCPY, MEMSET))),
            bytes=size,
            names=tuple(str(n)[:NAME_LIMIT] for n in self._names),
            threads=tuple((str(p), str(t)) for p, t in self._threads),
            streams=tuple("" if s is None else str(s)[:64] for s in self._streams),
            comm=_moved(self._comm, keep, total),
            meta=meta,
            origin_us=first + _base_us(meta),
            absolute=first + _base_us(meta) > 1e15,
            repairs=dict(self.repairs),
        )

    def _with_annotations(self, name: npt.NDArray[np.int32], code: Codes) -> Codes:
        """Until torch 1.12 the annotations of collectives (``gloo:all_reduce``) had the category of operators."""
        noted = [number for text, number in self._names.items() if isinstance(text, str) and host_collective(text) is not None]
        return np.where((code == CPU_OP) & np.isin(name, noted), np.int8(ANNOTATION), code) if noted else code

    def _put(self, *columns: npt.NDArray[Any]) -> None:
        for parts, column in zip(self._parts, columns, strict=True):
            parts.append(column)

    def _joined(self, column: int) -> npt.NDArray[Any]:
        """All of one column, whose parts are given up."""
        parts, self._parts[column] = self._parts[column], []
        return np.concatenate(parts) if parts else np.empty(0, COLUMN_TYPES[column])

    def _ordered(self, column: int, rows: Ints) -> npt.NDArray[Any]:
        return self._joined(column)[rows]

    def _usable(self, ts: Floats, dur: Floats) -> Ints:
        """Rows whose times can be meant; the others are counted."""
        finite = np.isfinite(ts) & np.isfinite(dur)
        self.mend("times_not_finite", int((~finite).sum()))
        negative = finite & (dur < 0)
        self.mend("negative_durations", int(negative.sum()))
        good = finite & ~negative
        if good.any():
            far = good & (np.abs(ts - middle(ts[good])) + dur > DAY_US)
            self.mend("times_out_of_range", int(far.sum()))
            good &= ~far
        return np.flatnonzero(good)


def _about_a_collective(category: int, name: str, args: Args) -> bool:
    """Kernels, calls and the host's operation name a collective; a library's annotation may hold the shapes of its inputs."""
    if args.collective is not None and (category in WORDY or name == HOST_COMM_NAME):
        return True
    return category == ANNOTATION and len(args.dims) > 0 and host_collective(name) is not None


def _moved(comm: dict[int, CommArgs], keep: Ints, total: int) -> dict[int, CommArgs]:
    """What rows said about themselves, under their new numbers."""
    if not comm:
        return {}
    place = np.full(total, -1, np.int64)
    place[keep] = np.arange(keep.size)
    return {row: args for old, args in comm.items() if (row := int(place[old])) >= 0}


def _of(code: Codes, *categories: int) -> Mask:
    wanted = np.zeros(UNTOLD + 1, np.bool_)
    wanted[list(categories)] = True
    return wanted[code]


def _integers(values: list[int]) -> Ints:
    try:
        return np.array(values, np.int64)
    except OverflowError:  # an id beyond 64 bits joins nothing to anything
        return np.array([v if -1 <= v < 2**63 else -1 for v in values], np.int64)


def _base_us(meta: dict[str, Any]) -> float:
    base = meta.get("baseTimeNanoseconds")
    if isinstance(base, bool) or not isinstance(base, int | float) or not 0 <= base < 2**63:
        return 0.0
    return base / 1e3
