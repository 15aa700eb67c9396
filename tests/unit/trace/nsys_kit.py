"""Small Nsight Systems exports made by hand, in the shapes that its versions write."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

STRINGS = (
    "cudaLaunchKernel_v7000", "gemm(float)", "gemm", "ncclDevKernel_SendRecv(args)", "ncclDevKernel_SendRecv", "ncclSend",
    "ncclRecv", "ncclGroupStart", "ncclGroupEnd",
)  # fmt: skip
TID = 1 << 24
"""One process number in a global thread id."""

Row = Sequence[object]


def write_export(path: Path, *, schema: str = "new", gpus: Sequence[tuple[int, int]] = ((0, 7), (1, 8)), rounds: int = 4) -> Path:
    """A report of one process a GPU (device, process number): in each round a kernel of 1 ms, then an all-to-all that GPU 0
    enters 0.5 ms before GPU 1.

    :param schema: ``new``, ``old`` (no process of a kernel, no registered strings, no short names) or ``bare`` (kernels only).
    """
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(STRINGS))
    process = "" if schema == "old" else "globalPid INTEGER, "
    short = "" if schema == "old" else ", shortName INTEGER"
    db.execute(
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
        f"correlationId INTEGER, {process}demangledName INTEGER{short})"
    )
    if schema != "bare":
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, "
            "nameId INTEGER)"
        )
        text_id = "" if schema == "old" else ", textId INTEGER"
        db.execute(
            f"CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER{text_id})"
        )
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
                   "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER)")  # fmt: skip
        db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)")
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'node-a')")
    for device, number in gpus:
        for k in range(rounds):
            _round(db, schema, device, number, k)
    db.commit()
    db.close()
    return path


def _round(db: sqlite3.Connection, schema: str, device: int, number: int, k: int) -> None:
    base, late, pid = 10_000_000 * (k + 1), 500_000 if device else 0, number * TID
    end = base + 4_000_000

    def kernel(start: int, stop: int, stream: int, correlation: int, name: int, short: int) -> None:
        row: list[object] = [start, stop, device, stream, correlation]
        row += [name] if schema == "old" else [pid, name, short]
        db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * len(row))})", row)

    kernel(base + 1_000_000 + late, base + 2_000_000 + late, 7 + device, 2 * k + 1, 1, 2)
    kernel(base + 3_000_000 + late, end, 20 + device, 2 * k + 2, 3, 4)
    if schema == "bare":
        return
    for correlation, at in ((2 * k + 1, base + late), (2 * k + 2, base + 500_000 + late)):
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0)", (at, at + 10_000, pid + number, correlation))
    calls = [
        ("ncclGroupStart", 0, 5),
        *[(c, 10 * i, 5) for i, c in enumerate(["ncclSend", "ncclRecv"] * 2, 1)],
        ("ncclGroupEnd", 60, 60),
    ]
    for name, offset, length in calls:
        at = base + 440_000 + late + offset * 1_000
        row = [at, at + length * 1_000, 59, name if schema == "old" else None, pid + number]
        row += [] if schema == "old" else [STRINGS.index(name)]
        db.execute(f"INSERT INTO NVTX_EVENTS VALUES ({','.join('?' * len(row))})", row)
    step = [base - 1_000, base + 9_000_000, 59, f"iteration {40 + k}", pid + number, *([] if schema == "old" else [None])]
    mark = [base, None, 34, "a mark", pid + number, *([] if schema == "old" else [None])]
    operator = [base + late, base + late + 20_000, 59, f"aten::mm, seq = {k}, op_id = {k}", pid + number]
    operator += [] if schema == "old" else [None]
    for row in (step, mark, operator):
        db.execute(f"INSERT INTO NVTX_EVENTS VALUES ({','.join('?' * len(row))})", row)
    db.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 7, ?, ?, 4096, 8)",
        (base + 2_500_000, base + 2_600_000, device, 1_000 + k, pid),
    )
