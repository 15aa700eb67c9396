"""Any file that a profiler wrote, as workers with columns: a torch trace is one worker, an Nsight Systems export several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eroica.producers.trace.columns import Trace
from eroica.producers.trace.identity import TraceIdentity, identify
from eroica.producers.trace.nsys import read_nsys
from eroica.producers.trace.nsys_db import SUFFIXES as NSYS_SUFFIXES
from eroica.producers.trace.nsys_db import is_sqlite
from eroica.producers.trace.nsys_report import NsysReport, NsysWorker
from eroica.producers.trace.reader import read_trace
from eroica.producers.trace.strangers import known_stranger
from eroica.producers.trace.summarise import Extras
from eroica.schemas.errors import InvalidInput

JSON_SUFFIXES = (".json", ".json.gz")
SUFFIXES = JSON_SUFFIXES + NSYS_SUFFIXES


@dataclass(frozen=True, slots=True)
class Opened:
    """One worker of a file. ``told.rank`` is -1 where neither trace nor name tells it, as always where a file holds several."""

    path: Path
    place: int
    """Number of the worker within the file, from 0."""
    places: int
    """Workers in the file."""
    part: str
    """Which of them, for a person; empty for the only one."""
    trace: Trace
    told: TraceIdentity
    extras: Extras = field(default_factory=Extras)
    """What the file says beside the events."""


def open_workers(path: str | Path, *, max_bytes: int = 4 * 2**30) -> Iterator[Opened]:
    """The workers of *path*, one at a time.

    :raises InvalidInput: it cannot be read, or is neither a torch trace nor an Nsight Systems export.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidInput("it is no ordinary file", where=str(path), do="write the trace to a file first")
    if (kind := known_stranger(path)) is not None:
        raise InvalidInput(kind[0], where=str(path), do=kind[1].replace("REPORT", path.name))
    if not is_sqlite(path):
        if path.name.endswith(NSYS_SUFFIXES) and path.is_file():
            raise InvalidInput("not an SQLite file", where=str(path), do="export the report again: nsys export --type sqlite")
        trace = read_trace(path, max_bytes=max_bytes)
        yield Opened(path, 0, 1, "", trace, identify(trace, path))
        return
    for place, (report, worker, trace) in enumerate(read_nsys(path, max_bytes=max_bytes)):
        several = len(report.workers) > 1
        told = identify(trace, path)
        if several:
            told = TraceIdentity(host=told.host, device=told.device)
        hardware = worker.hardware
        extras = Extras(
            levels=hardware.levels(),
            metrics=hardware.metrics,
            samples=hardware.since(trace.origin_us - report.utc_ns / 1e3),
            notes=(*hardware.notes, *_lacking(report), *report.notes),
        )
        yield Opened(path, place, len(report.workers), _part(worker) if several else "", trace, told, extras)


def _lacking(report: NsysReport) -> tuple[str, ...]:
    return (f"the export is without {', '.join(report.lacks)}",) if report.lacks else ()


def _part(worker: NsysWorker) -> str:
    process = f"process {worker.pid}" if worker.process is not None else "an unnamed process"
    return f"GPU {worker.device}, {process}" if worker.device >= 0 else process
