"""Nsight Systems SQLite exports (``nsys export --type sqlite``) to the same columns as a torch.profiler trace.

A report covers a host, not a rank: every pair of process and GPU that ran device work is a worker of its own. Tables and columns
come and go with the version (they are written only where there is something to write), so each is looked for. Schema: NVIDIA's
"SQLite Schema Reference"; times are ns since the session's start, which ``TARGET_INFO_SESSION_START_TIME`` places in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from eroica.producers.trace.collectives import BYTES
from eroica.producers.trace.columns import ColumnBuilder, Trace
from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.events import NO_ARGS, Args, Event
from eroica.producers.trace.naming import loop_step
from eroica.producers.trace.nsys_busy import BusyThreads
from eroica.producers.trace.nsys_db import NsysDatabase
from eroica.producers.trace.nsys_hardware import read_hardware
from eroica.producers.trace.nsys_nccl import NcclSpans, is_nccl_call
from eroica.producers.trace.nsys_payload import Payload, Payloads
from eroica.producers.trace.nsys_report import (
    CALLS,
    COPIES,
    GRAPHS,
    KERNELS,
    RANGES,
    SETS,
    STRINGS,
    SYSTEM,
    TIMES,
    NsysReport,
    NsysWorker,
    read_report,
)

BATCH = 8_192
START_END_RANGES = frozenset({60, 71})
"""``NvtxStartEndRange`` and its text form; push/pop ranges (59, 70) nest."""
COPY_KINDS = {
    0: "Memcpy", 1: "Memcpy HtoD", 2: "Memcpy DtoH", 3: "Memcpy HtoA", 4: "Memcpy AtoH", 5: "Memcpy AtoA", 6: "Memcpy AtoD",
    7: "Memcpy DtoA", 8: "Memcpy DtoD", 9: "Memcpy HtoH", 10: "Memcpy PtoP", 11: "Unified HtoD", 12: "Unified DtoH",
    13: "Unified DtoD",
}  # fmt: skip
"""``ENUM_CUDA_MEMCPY_OPER``."""
_SOUND = "typeof(start) = 'integer' AND typeof(\"end\") = 'integer'"
_VERSIONED = re.compile(r"(?:_ptsz|_ptds)?_v\d+(?:_ptsz|_ptds)?$")
_EMITTED = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")


def read_nsys(path: str | Path, *, max_bytes: int = 4 * 2**30) -> Iterator[tuple[NsysReport, NsysWorker, Trace]]:
    """Each worker of the report with its trace, one at a time, so that memory holds one.

    A process that drives several GPUs is a worker on each of them, with the same host events.

    :raises InvalidInput: not an Nsight Systems export, damaged, too large, or without device work and ranges.
    """
    with NsysDatabase(path, max_bytes) as db:
        report = read_report(db)
        for worker in report.workers:
            alone = sum(w.device == worker.device for w in report.workers) == 1
            hardware = read_hardware(db, worker.pid, worker.device, alone)
            yield report, replace(worker, hardware=hardware), _Reader(db, report, worker).read()


class _Reader:
    """Builds one worker's trace."""

    def __init__(self, db: NsysDatabase, report: NsysReport, worker: NsysWorker) -> None:
        self.db, self.report, self.worker = db, report, worker
        self.builder = ColumnBuilder()
        self.strings = _strings(db)
        self.spans = NcclSpans()
        self.payloads = Payloads(db)
        self.busy = BusyThreads()
        self.launch: dict[int, tuple[int, int]] = {}
        """Correlation of an NCCL kernel → thread and time of its launch."""
        self._events: list[Event] = []
        self._counted: set[str] = set()

    def read(self) -> Trace:
        collectives = self._collective_names()
        launched = self._collective_launches(collectives)
        self._ranges()
        self._calls(launched)
        self._system_calls()
        self._kernels(collectives)
        self._memory()
        self._flush()
        meta: dict[str, Any] = {"baseTimeNanoseconds": self.report.utc_ns, "host_name": self.report.host}
        if self.worker.model:
            meta["deviceProperties"] = [{"name": self.worker.model}]
        return self.builder.build(meta)

    def _name(self, number: object) -> str:
        return self.strings.get(number, "") if isinstance(number, int) else ""

    def _put(self, category: str, name: str, thread: int | str, start: int, end: int, args: Args = NO_ARGS) -> None:
        owner = self.worker.device if isinstance(thread, str) else self.worker.pid
        self._events.append(Event("X", category, name, owner, thread, start / 1e3, (end - start) / 1e3, args))
        if len(self._events) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        self.builder.add(self._events)
        self._events = []

    def _collective_names(self) -> frozenset[int]:
        return frozenset(number for number, name in self.strings.items() if kernel_collective(name) is not None)

    def _device_rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Start, end, stream, correlation and *columns* (None where the version lacks one) of this worker's rows."""
        if not self.db.has(table, *TIMES, "deviceId"):
            return
        wanted = [*TIMES, *(c if self.db.has(table, c) else "NULL" for c in ("streamId", "correlationId", *columns))]
        where, values = self._mine(table)
        if table not in self._counted:
            self._counted.add(table)
            self._count_unsound(table, where, values)
        yield from self.db.rows(f"SELECT {_list(wanted)} FROM {table} WHERE {where} AND {_SOUND}", values)

    def _mine(self, table: str) -> tuple[str, tuple[object, ...]]:
        if not self.db.has(table, "globalPid"):
            return "deviceId IS ?", (self.worker.device,)
        return "deviceId IS ? AND globalPid >> 24 IS ?", (self.worker.device, _shifted(self.worker.process))

    def _host_rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        if not self.db.has(table, *TIMES):
            return
        wanted = [*TIMES, *(c if self.db.has(table, c) else "NULL" for c in ("globalTid", *columns))]
        where, values = "1", tuple[object, ...]()
        if self.worker.process is not None and self.db.has(table, "globalTid"):
            where, values = "globalTid >> 24 IS ?", (_shifted(self.worker.process),)
        yield from self.db.rows(f"SELECT {_list(wanted)} FROM {table} WHERE {where} AND {_SOUND}", values)

    def _count_unsound(self, table: str, where: str, values: tuple[object, ...]) -> None:
        for (count,) in self.db.rows(f"SELECT count(*) FROM {table} WHERE {where} AND NOT ({_SOUND})", values):
            self.builder.mend("times_unusable", count)

    def _collective_launches(self, collectives: frozenset[int]) -> set[int]:
        name = "demangledName" if self.db.has(KERNELS, "demangledName") else "shortName"
        rows = self._device_rows(KERNELS, name)
        return {row[3] for row in rows if row[4] in collectives and isinstance(row[3], int)}

    def _ranges(self) -> None:
        columns = ("text", "textId", "eventType", "binaryData", "jsonText", "jsonTextId")
        of_nccl: list[tuple[int, int, int, str, Payload | None, object]] = []
        for start, end, tid, text, number, kind, binary, json, json_id in self._host_rows(RANGES, *columns):
            name = text if isinstance(text, str) and text else self._name(number)
            thread = (tid & 0xFFFFFF) if isinstance(tid, int) else 0
            if kind in START_END_RANGES:  # they need not nest with what else the thread does
                thread = -1 - thread
            if not name or end < start:
                continue
            if bare := _bare(name):
                self._put("cpu_op", bare, thread, start, end)
                continue
            category, name, nccl = _range(name)
            self.busy.saw(thread)
            if nccl:
                self.busy.add(thread, start, end)
                of_nccl.append((thread, start, end, name, self.payloads.read(binary, json), json_id))
            self._put(category, name, thread, start, end)
        texts = self._texts({json_id for *_, payload, json_id in of_nccl if payload is None})
        for thread, start, end, name, payload, json_id in of_nccl:
            self.spans.add(thread, start, end, name, payload or self.payloads.read(None, texts.get(json_id)))

    def _texts(self, numbers: set[object]) -> dict[object, str]:
        """Payloads that stand among the strings, each once."""
        found: dict[object, str] = {}
        for number in sorted(n for n in numbers if isinstance(n, int)) if self.db.has(STRINGS, "id", "value") else ():
            for (text,) in self.db.rows(f"SELECT value FROM {STRINGS} WHERE id = ?", (number,)):
                if isinstance(text, str):
                    found[number] = text
        return found

    def _calls(self, launched: set[int]) -> None:
        named: dict[object, str] = {}
        for start, end, tid, correlation, number in self._host_rows(CALLS, "correlationId", "nameId"):
            thread = (tid & 0xFFFFFF) if isinstance(tid, int) else 0
            key = correlation if isinstance(correlation, int) else -1
            if key in launched:
                self.launch[key] = (thread, start)
            self.busy.add(thread, start, end)
            if number not in named:
                named[number] = _VERSIONED.sub("", self._name(number)) or "unnamed call"
            self._put("cuda_runtime", named[number], thread, start, end, Args(correlation=key))

    def _system_calls(self) -> None:
        """What the threads that drive the GPU ask of the operating system: reads, locks, waits, sleeps. Within a call of CUDA or
        NCCL it is that call's own affair; other threads are no part of the step.
        """
        batch: list[tuple[int, int, int, int]] = []
        for start, end, tid, number in self._host_rows(SYSTEM, "nameId"):
            thread = (tid & 0xFFFFFF) if isinstance(tid, int) else 0
            if self.busy.knows(thread) and end >= start and isinstance(number, int):
                batch.append((thread, start, end, number))
            if len(batch) >= BATCH:
                self._put_system_calls(batch)
                batch = []
        self._put_system_calls(batch)

    def _put_system_calls(self, batch: list[tuple[int, int, int, int]]) -> None:
        for (thread, start, end, number), inside in zip(batch, self.busy.inside([b[:2] for b in batch]), strict=True):
            if not inside and (name := self._name(number)):
                self._put("user_annotation", name, thread, start, end)

    def _kernels(self, collectives: frozenset[int]) -> None:
        streams: dict[object, int] = {}
        for start, end, stream, correlation, full, short in self._device_rows(KERNELS, "demangledName", "shortName"):
            key = correlation if isinstance(correlation, int) else -1
            name = self._name(full) or self._name(short) or "unnamed kernel"
            args = Args(correlation=key, stream=stream if isinstance(stream, int) else None)
            if full in collectives or short in collectives:
                args = self._collective(name, args, streams.setdefault(stream, len(streams)))
            self._put("kernel", name, f"stream {stream}", start, end, args)
        for start, end, stream, correlation, graph in self._device_rows(GRAPHS, "graphId"):
            args = Args(
                correlation=correlation if isinstance(correlation, int) else -1,
                stream=stream if isinstance(stream, int) else None,
            )
            self._put("kernel", f"CUDA graph {graph}", f"stream {stream}", start, end, args)

    def _collective(self, name: str, args: Args, place: int) -> Args:
        """A kernel of NCCL says nothing of its communicator: the payload of the call that launched it may. Else, as torch gives
        each communicator its own stream, the streams are numbered by first use, which ranks of one role share though the streams'
        own numbers differ.
        """
        by_name = kernel_collective(name)
        told = self.launch.get(args.correlation)
        span = self.spans.around(*told) if told is not None else None
        op = span.op if span is not None and span.op else by_name.op if by_name is not None else ""
        backend = by_name.backend if by_name is not None else "nccl"
        return Args(
            correlation=args.correlation,
            stream=args.stream,
            collective=op or "send_recv",
            out_elements=span.bytes if span is not None and span.bytes else -1,
            dtype=BYTES if span is not None and span.bytes else "",
            group_name=f"{backend} {span.communicator:016x}" if span is not None and span.communicator else f"{backend} {place}",
            group_size=span.size if span is not None else 0,
        )

    def _memory(self) -> None:
        for start, end, stream, correlation, size, kind in self._device_rows(COPIES, "bytes", "copyKind"):
            name = COPY_KINDS.get(kind, "Memcpy") if isinstance(kind, int) else "Memcpy"
            self._put("gpu_memcpy", name, f"stream {stream}", start, end, _memory_args(stream, correlation, size))
        for start, end, stream, correlation, size in self._device_rows(SETS, "bytes"):
            self._put("gpu_memset", "Memset", f"stream {stream}", start, end, _memory_args(stream, correlation, size))


@lru_cache(maxsize=65_536)
def _range(name: str) -> tuple[str, str, bool]:
    """Category and name of an NVTX range, and whether it is NCCL's own."""
    if (step := loop_step(name)) is not None and step >= 0:
        return "user_annotation", f"ProfilerStep#{step}", False
    return "user_annotation", name, is_nccl_call(name)


def _bare(name: str) -> str:
    """The operator of a range of torch's ``emit_nvtx``, which numbers each; empty for any other range."""
    found = _EMITTED.search(name)
    return name[: found.start()] if found is not None else ""


def _memory_args(stream: object, correlation: object, size: object) -> Args:
    return Args(
        correlation=correlation if isinstance(correlation, int) else -1,
        stream=stream if isinstance(stream, int) else None,
        bytes=float(size) if isinstance(size, int) and size >= 0 else 0.0,
    )


def _strings(db: NsysDatabase) -> dict[int, str]:
    """The strings that events use, by number."""
    used = [
        f"SELECT {column} FROM {table}"
        for table, column in (
            (KERNELS, "demangledName"),
            (KERNELS, "shortName"),
            (CALLS, "nameId"),
            (RANGES, "textId"),
            (SYSTEM, "nameId"),
        )
        if db.has(table, column)
    ]
    if not used or not db.has(STRINGS, "id", "value"):
        return {}
    query = f"SELECT id, value FROM {STRINGS} WHERE id IN ({' UNION '.join(used)})"
    return {number: text for number, text in db.rows(query) if isinstance(number, int) and isinstance(text, str)}


def _list(columns: list[str]) -> str:
    return ", ".join('"end"' if c == "end" else c for c in columns)


def _shifted(process: int | None) -> int | None:
    return None if process is None else process >> 24
