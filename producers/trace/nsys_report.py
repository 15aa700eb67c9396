"""What an Nsight Systems export says as a whole: its workers, host, version and clock."""

from __future__ import annotations

from dataclasses import dataclass

from eroica.producers.trace.nsys_db import NsysDatabase
from eroica.producers.trace.nsys_hardware import NOTHING, Hardware
from eroica.schemas.errors import InvalidInput

KERNELS, COPIES, SETS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS, CALLS, RANGES, STRINGS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds"
SYSTEM = "OSRT_API"
COMPUTING, MOVING = (KERNELS, GRAPHS), (COPIES, SETS)
DEVICE_TABLES = (*COMPUTING, *MOVING)
TIMES = ("start", "end")
Pair = tuple[int | None, int]
"""Process and GPU."""
Counts = dict[Pair, int]
_OPTIONAL = {
    "GPU_METRICS": "counters of the GPU (--gpu-metrics-devices)",
    SYSTEM: "calls to the operating system (--trace=osrt)",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "NCCL's payloads",
}
"""Tables that are used where they are."""
MAX_WORKERS = 1_024
"""Pairs of process and GPU in one report; a host has a few dozen at most."""
SAID = 8
"""Pairs without kernels that are named."""


@dataclass(frozen=True, slots=True)
class NsysWorker:
    """A process on a GPU. ``process`` is the report's global id of the process without its thread, None where it has none."""

    process: int | None
    device: int
    pid: int
    model: str = ""
    hardware: Hardware = NOTHING


@dataclass(frozen=True, slots=True)
class NsysReport:
    """What a report says of all its workers; ``workers`` ascend by device, then process."""

    workers: tuple[NsysWorker, ...]
    host: str
    version: str
    utc_ns: int
    """Session start, ns since the epoch; 0 where the report does not tell."""
    lacks: tuple[str, ...] = ()
    """What could be in an export and is not in this one."""
    notes: tuple[str, ...] = ()
    """What was left out of the workers."""


def read_report(db: NsysDatabase) -> NsysReport:
    """Find the workers.

    :raises InvalidInput: not an Nsight Systems export, without device work and ranges, or with too many workers.
    """
    if STRINGS not in db.columns or not any(t in db.columns for t in (*DEVICE_TABLES, CALLS, RANGES)):
        raise InvalidInput(
            "not an Nsight Systems export: it has no table of strings, or none of kernels, calls or ranges",
            where=db.where,
            do="profile with --trace=cuda,nvtx and export with: nsys export --type sqlite",
        )
    computing, moving = _on_devices(db, COMPUTING), _on_devices(db, MOVING)
    idle = _idle(computing, moving)
    pairs = (computing.keys() | moving.keys()) - set(idle)
    if not pairs and db.has(RANGES, *TIMES, "globalTid"):
        for (tid,) in db.rows(
            f"SELECT DISTINCT globalTid FROM {RANGES} WHERE typeof(globalTid) = 'integer' LIMIT {MAX_WORKERS * 64}"
        ):
            pairs.add((_process(tid), -1))
    if not pairs or len(pairs) > MAX_WORKERS:
        raise InvalidInput(
            "the export holds no device work and no ranges" if not pairs else f"the export holds more than {MAX_WORKERS} workers",
            where=db.where,
            do="profile with --trace=cuda,nvtx",
        )
    pairs = _told_apart(pairs)
    models = _models(db)
    workers = [NsysWorker(p, d, (p or 0) >> 24 & 0xFFFFFF, models.get(d, "")) for p, d in pairs]
    start = next(iter(db.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")), (0,)) if db.has(
        "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"
    ) else (0,)  # fmt: skip
    utc = start[0] if isinstance(start[0], int) and 0 <= start[0] < 2**62 else 0
    return NsysReport(
        tuple(sorted(workers, key=lambda w: (w.device, w.pid, w.process or 0))),
        _value(db, "TARGET_INFO_SYSTEM_ENV", "Hostname"),
        _value(db, "META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION"),
        utc,
        tuple(word for table, word in _OPTIONAL.items() if table not in db.columns),
        tuple(
            f"process {(p or 0) >> 24 & 0xFFFFFF} ran no kernel on GPU {d}, only {moving[p, d]} copies or sets of memory: it is "
            "no worker there"
            for p, d in idle[:SAID]
        )
        + ((f"and {len(idle) - SAID} more pairs of process and GPU without kernels",) if len(idle) > SAID else ()),
    )


def _on_devices(db: NsysDatabase, tables: tuple[str, ...]) -> Counts:
    """Rows of each pair of process and GPU in *tables*."""
    found: Counts = {}
    for table in tables:
        if not db.has(table, *TIMES, "deviceId"):
            continue
        process = "globalPid" if db.has(table, "globalPid") else "NULL"
        query = f"SELECT {process}, deviceId, count(*) FROM {table} GROUP BY 1, 2 LIMIT {MAX_WORKERS + 1}"
        for pid, device, count in db.rows(query):
            if isinstance(device, int) and (pid is None or isinstance(pid, int)):
                pair = (_process(pid), device)
                found[pair] = found.get(pair, 0) + count
    return found


def _idle(computing: Counts, moving: Counts) -> list[Pair]:
    """Pairs that only copy, where others compute: a process may touch a GPU that is not its own. Where kernels do not tell
    their process, the copies must, and nobody is left out.
    """
    if not computing:
        return []
    unknown = {d for p, d in computing if p is None}
    return sorted(((p, d) for p, d in moving.keys() - computing.keys() if d not in unknown), key=lambda w: (w[1], w[0] or 0))


def _told_apart(pairs: set[Pair]) -> set[Pair]:
    """Versions that do not tell a kernel's process may tell a copy's: then a GPU with one process is that process's."""
    for device in {d for p, d in pairs if p is None}:
        known = {p for p, d in pairs if d == device and p is not None}
        gone = {(None, device)} if len(known) == 1 else {(p, device) for p in known}
        pairs = pairs - gone
    return pairs


def _models(db: NsysDatabase) -> dict[int, str]:
    if not db.has("TARGET_INFO_GPU", "id", "name"):
        return {}
    rows = db.rows(f"SELECT id, name FROM TARGET_INFO_GPU LIMIT {MAX_WORKERS}")
    return {number: name[:200] for number, name in rows if isinstance(number, int) and isinstance(name, str)}


def _value(db: NsysDatabase, table: str, name: str) -> str:
    if not db.has(table, "name", "value"):
        return ""
    for (value,) in db.rows(f"SELECT value FROM {table} WHERE name = ? LIMIT 1", (name,)):
        return value[:200] if isinstance(value, str) else ""
    return ""


def _process(number: int | None) -> int | None:
    return None if number is None else number >> 24 << 24
