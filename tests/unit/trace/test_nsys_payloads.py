"""NCCL's payloads in Nsight Systems exports: communicator, bytes and members, as bytes and as JSON, sound and broken."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest
from nsys_kit import TID, write_export

from eroica.producers.trace import SummarySettings, identity_from_trace, summarise_trace
from eroica.producers.trace.columns import KERNEL, Trace
from eroica.producers.trace.nsys import read_nsys
from eroica.schemas.errors import InvalidInput

pytestmark = pytest.mark.unit

COMM = 0xFEDC_BA98_7654_3210
PLAIN, INIT = 100, 200
ENTRIES = (
    (1, PLAIN, 0, 18, "NCCL communicator ID", None),
    (1, PLAIN, 1, 22, "Message size [bytes]", 8),
    (1, PLAIN, 2, 99, "Of a kind yet unknown", 16),
    (1, INIT, 0, 18, "NCCL communicator ID", None),
    (1, INIT, 1, 5, "No. of ranks", 8),
    (1, INIT, 2, 5, "Rank", 12),
    (1, INIT, 3, 5, "CUDA device", 16),
)


def packed(schema: int, payload: bytes) -> bytes:
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(payload), 32 + len(payload)) + payload


def called(size: int, communicator: int = COMM) -> bytes:
    return packed(PLAIN, struct.pack("<QQI4x", communicator, size, 7))


def export(path: Path, *, calls: tuple[str, str] = ("ncclSend", "ncclRecv"), ranks: int = 0) -> sqlite3.Connection:
    """The kit's export with tables of payloads; its groups hold these two calls, twice; nothing is told yet."""
    write_export(path)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, "
               "flags INTEGER, numEntries INTEGER, payloadSize INTEGER, alignTo INTEGER)")  # fmt: skip
    db.execute("CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, flags INTEGER, "
               "type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER)")  # fmt: skip
    for domain, schema, number, kind, name, offset in ENTRIES:
        db.execute(
            "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (?, ?, ?, NULL, ?, ?, NULL, NULL, ?)",
            (domain, schema, number, kind, name, offset),
        )
    for column in ("binaryData BLOB", "jsonText TEXT", "jsonTextId INTEGER"):
        db.execute(f"ALTER TABLE NVTX_EVENTS ADD COLUMN {column}")
    for old, new in zip(("ncclSend", "ncclRecv"), calls, strict=True):
        db.execute("UPDATE StringIds SET value = ? WHERE value = ?", (new, old))
    if ranks:
        for number in (7, 8):
            tid = number * TID + number
            made = packed(INIT, struct.pack("<QIII4x", COMM, ranks, 0, 0))
            db.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, binaryData) VALUES (5, 9, 59, ?, ?, ?)",
                ("ncclCommInitRank", tid, made),
            )
    return db


def tell(db: sqlite3.Connection, name: str, column: str, value: object) -> None:
    changed = db.execute(
        f"UPDATE NVTX_EVENTS SET {column} = ? WHERE textId = (SELECT id FROM StringIds WHERE value = ?)", (value, name)
    )
    assert changed.rowcount > 0


def said(path: Path) -> list[tuple[str, str, int, int]]:
    """Kind, communicator, members and bytes of the first worker's collectives."""
    trace = next(iter(read_nsys(path)))[2]
    found = [trace.comm[row] for row in trace.rows(KERNEL).tolist() if row in trace.comm]
    assert len(found) == 4
    return sorted({(a.collective, a.group_name, a.group_size, a.out_elements) for a in found})


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("binaryData", called(1_000)),
        ("binaryData", called(1_000).hex()),
        ("jsonText", f'{{"NCCL communicator ID": {COMM}, "Message size [bytes]": 1000}}'),
        ("jsonText", f'{{"NCCL communicator ID": "{COMM:#x}", "Message size [bytes]": "1000"}}'),
    ],
)
def test_bytes_and_communicator_of_an_exchange(tmp_path: Path, column: str, value: object) -> None:
    path = tmp_path / "r.sqlite"
    with export(path) as db:
        tell(db, "ncclSend", column, value)
        tell(db, "ncclRecv", column, value)
    db.close()
    assert said(path) == [("all_to_all", f"nccl {COMM:016x}", 2, 2_000)]


def test_json_may_stand_among_the_strings(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with export(path) as db:
        db.execute("INSERT INTO StringIds VALUES (99, ?)", (f'{{"NCCL communicator ID": {COMM}, "Message size [bytes]": 8}}',))
        tell(db, "ncclSend", "jsonTextId", 99)
    db.close()
    assert said(path) == [("all_to_all", f"nccl {COMM:016x}", 2, 16)]


@pytest.mark.parametrize(
    ("call", "op", "each"),
    [("ncclAllReduce", "all_reduce", 1), ("ncclAllGather", "all_gather", 16), ("ncclReduceScatter", "reduce_scatter", 16),
     ("ncclBroadcast", "broadcast", 1), ("ncclAlltoAll", "all_to_all", 16)],
)  # fmt: skip
def test_what_a_call_tells_of_one_members_part_is_multiplied(tmp_path: Path, call: str, op: str, each: int) -> None:
    path = tmp_path / "r.sqlite"
    with export(path, calls=(call, call), ranks=16) as db:
        db.execute(
            "UPDATE NVTX_EVENTS SET binaryData = ? WHERE textId IN (SELECT id FROM StringIds WHERE value = ?)",
            (called(1_000), call),
        )
    db.close()
    assert said(path) == [(op, f"nccl {COMM:016x}", 16, 4 * 1_000 * each)]  # four coalesced in a group


def test_a_group_that_names_two_communicators_names_none(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with export(path) as db:
        tell(db, "ncclSend", "binaryData", called(1_000))
        tell(db, "ncclRecv", "binaryData", called(3_000, COMM - 1))
    db.close()
    assert said(path) == [("all_to_all", "nccl 0", 2, 6_000)]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00" * 31,
        called(1)[:40],
        packed(12_345, b"\xff" * 24),
        b"\xff" * 500,
        "no hexadecimal",
        5,
        packed(PLAIN, b"\0" * 24),
    ],
)
def test_broken_payloads_tell_nothing_wrong(tmp_path: Path, value: object) -> None:
    path = tmp_path / "r.sqlite"
    with export(path) as db:
        tell(db, "ncclSend", "binaryData", value)
    db.close()
    ((op, group, members, size),) = said(path)
    assert (op, members) == ("all_to_all", 2)
    assert (group, size) in (("nccl 0", -1), (f"nccl {COMM:016x}", -1))


@pytest.mark.parametrize("value", ["", "{", "[1]", '{"Message size [bytes]": -5}', '{"NCCL communicator ID": 1e400}', "9" * 500])
def test_broken_json_tells_nothing(tmp_path: Path, value: str) -> None:
    path = tmp_path / "r.sqlite"
    with export(path) as db:
        tell(db, "ncclSend", "jsonText", value)
    db.close()
    assert said(path) == [("all_to_all", "nccl 0", 2, -1)]


def test_damaged_exports_with_payloads_are_errors_or_fewer_events(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with export(path, ranks=2) as db:
        tell(db, "ncclSend", "binaryData", called(1_000))
    db.close()
    whole, random = path.read_bytes(), np.random.default_rng(3)
    told = 0
    for number in range(150):
        raw = bytearray(whole)
        for at in random.integers(0, len(raw), 1 + number % 30).tolist():
            raw[at] = int(random.integers(0, 256))
        path.write_bytes(raw)
        try:
            list(read_nsys(path))
        except InvalidInput:
            told += 1
    assert told < 150


def test_bandwidth_comes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with export(path, ranks=2) as db:
        tell(db, "ncclSend", "binaryData", called(1_000_000))
        tell(db, "ncclRecv", "binaryData", called(1_000_000))
    db.close()
    trace: Trace = next(iter(read_nsys(path)))[2]
    summary = summarise_trace(trace, identity_from_trace(trace, path, job="j", rank=0), SummarySettings())
    (communicator,) = summary.communicators
    (entry,) = communicator.traffic
    assert (communicator.name, communicator.size) == (f"nccl {COMM:016x}", 2)
    # 2 MB in 1 ms are 16 Gb/s, half of which go to the other member.
    assert (entry.algorithm_gbps, entry.bus_gbps, entry.dtype) == (pytest.approx(16.0), pytest.approx(8.0), "bytes")
    assert next(f for f in summary.functions if "SendRecv" in f.name).resource == "bus_gbps"
