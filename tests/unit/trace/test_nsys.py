"""Nsight Systems exports: workers, versions, NCCL's ranges, and files made to do harm."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from nsys_kit import TID, write_export

from eroica.offline.summarize import summarize_file
from eroica.producers.trace.columns import ANNOTATION, CPU_OP, KERNEL, MEMCPY, Trace
from eroica.producers.trace.nsys import read_nsys
from eroica.producers.trace.nsys_busy import BusyThreads
from eroica.producers.trace.nsys_db import NsysDatabase
from eroica.producers.trace.nsys_nccl import NcclSpan, spans_of
from eroica.producers.trace.steps import find_steps
from eroica.schemas.errors import InvalidInput

pytestmark = pytest.mark.unit
REAL = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "nsys" / "two_gpus.sqlite"


def traces(path: Path) -> list[Trace]:
    return [trace for _, _, trace in read_nsys(path)]


def names(trace: Trace, *categories: int) -> list[str]:
    return [trace.names[n] for n in trace.name[trace.rows(*categories)].tolist()]


def test_each_process_on_a_gpu_is_a_worker(tmp_path: Path) -> None:
    found = list(read_nsys(write_export(tmp_path / "r.sqlite")))
    assert [(w.device, w.pid, r.host) for r, w, _ in found] == [(0, 7, "node-a"), (1, 8, "node-a")]
    first = found[0][2]
    assert names(first, KERNEL)[:2] == ["gemm(float)", "ncclDevKernel_SendRecv(args)"]
    assert names(first, MEMCPY) == ["Memcpy DtoD"] * 4
    assert first.bytes[first.rows(MEMCPY)].tolist() == [4096.0] * 4
    assert "cudaLaunchKernel" in first.names and "a mark" not in first.names
    assert names(first, CPU_OP) == ["aten::mm"] * 4
    assert first.absolute and first.origin_us == pytest.approx(1.7e15 + 9_999, abs=1)
    assert (first.launch[first.rows(KERNEL)] >= 0).all()


@pytest.mark.parametrize(
    ("schema", "process", "workers", "note"),
    [
        pytest.param("new", 8, [(0, 7), (1, 8)], "process 8 ran no kernel on GPU 0, only 1 copies", id="a copy"),
        pytest.param("new", 7, [(0, 7), (1, 8)], "", id="a copy of the GPU's own process"),
        pytest.param("old", 7, [(0, 7), (1, 8)], "", id="kernels that do not tell their process"),
    ],
)
def test_who_only_copies_on_a_gpu_is_no_worker_there(
    tmp_path: Path, schema: str, process: int, workers: list[tuple[int, int]], note: str
) -> None:
    path = write_export(tmp_path / "r.sqlite", schema=schema)
    db = sqlite3.connect(path)
    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (12500000, 12600000, 0, 7, 9999, ?, 4096, 8)", (process * TID,))
    db.commit()
    db.close()
    found = list(read_nsys(path))
    assert [(w.device, w.pid) for _, w, _ in found] == workers
    said = [n for s in summarize_file(path) for n in s.notes if "ran no kernel" in n]
    assert len(said) == (2 if note else 0)
    assert all(n.startswith(note) for n in said)
    assert len(found[0][2].rows(MEMCPY)) == (4 if note else 5)


def test_an_export_of_copies_alone_keeps_its_workers(tmp_path: Path) -> None:
    path = write_export(tmp_path / "r.sqlite")
    db = sqlite3.connect(path)
    db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    db.commit()
    db.close()
    assert [(w.device, w.pid) for _, w, _ in read_nsys(path)] == [(0, 7), (1, 8)]


def test_ranges_that_number_iterations_are_the_steps(tmp_path: Path) -> None:
    steps = find_steps(traces(write_export(tmp_path / "r.sqlite"))[0])
    assert (steps.source, steps.number.tolist()) == ("profiler_step", [40, 41, 42, 43])


@pytest.mark.parametrize(
    ("schema", "workers", "op"),
    [("new", 2, "all_to_all"), ("old", 2, "all_to_all"), ("bare", 2, "send_recv")],
)
def test_versions_that_lack_tables_and_columns_are_read(tmp_path: Path, schema: str, workers: int, op: str) -> None:
    found = traces(write_export(tmp_path / "r.sqlite", schema=schema))
    assert len(found) == workers
    for trace in found:
        said = [trace.comm[row] for row in trace.rows(KERNEL).tolist() if row in trace.comm]
        assert [(a.collective, a.group_name) for a in said] == [(op, "nccl 0")] * 4


def test_a_process_on_two_gpus_is_two_workers_that_share_its_host_events(tmp_path: Path) -> None:
    one, two = traces(write_export(tmp_path / "r.sqlite", gpus=((0, 7), (1, 7))))
    assert names(one, ANNOTATION) == names(two, ANNOTATION)
    assert len(one.rows(KERNEL)) == len(two.rows(KERNEL)) == 8


def test_times_that_are_none_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_export(tmp_path / "r.sqlite")
    db = sqlite3.connect(path)
    for start, end in (("soon", 5), (5, None), (9, 5), (2**62, 2**62 + 1)):
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, 1, ?, 1, 2)", (start, end, 7 * TID))
    db.commit()
    repairs = traces(path)[0].repairs
    assert repairs == {"times_unusable": 2, "negative_durations": 1, "times_out_of_range": 1}


def harm_view(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE NVTX_EVENTS RENAME TO hidden")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"
    db.execute(f"CREATE VIEW NVTX_EVENTS AS {endless} AS start, i AS \"end\", '' AS text, i AS globalTid, i AS textId FROM n")


def harm_trigger(db: sqlite3.Connection) -> None:
    db.execute("CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM NVTX_EVENTS; END")


def harm_virtual(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE NVTX_EVENTS RENAME TO hidden")
    db.execute('CREATE VIRTUAL TABLE NVTX_EVENTS USING fts5(start, "end", text, globalTid, textId)')


def harm_generated(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE other (start INTEGER, big TEXT AS (hex(zeroblob(start * 1000000000))))")
    db.execute("ALTER TABLE NVTX_EVENTS RENAME TO hidden")
    db.execute("ALTER TABLE other RENAME TO NVTX_EVENTS")


def harm_types(db: sqlite3.Connection) -> None:
    db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 'x', nameId = 1.5, globalTid = globalTid")
    db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = x'00ff', correlationId = NULL")
    db.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = -5, copyKind = 'what'")


@pytest.mark.parametrize("harm", [harm_view, harm_trigger, harm_virtual, harm_generated, harm_types])
def test_what_the_schema_would_run_is_not_run(tmp_path: Path, harm: Callable[[sqlite3.Connection], None]) -> None:
    path = write_export(tmp_path / "r.sqlite")
    db = sqlite3.connect(path)
    harm(db)
    db.commit()
    db.close()
    before = path.read_bytes()
    assert [len(t.rows(KERNEL)) for t in traces(path)] == [8, 8]
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.sqlite"]


def test_the_guard_lets_nothing_but_reading_through(tmp_path: Path) -> None:
    with NsysDatabase(write_export(tmp_path / "r.sqlite"), 2**30) as db:
        for query in (
            f"ATTACH '{tmp_path}/other.db' AS o", "DELETE FROM StringIds", "CREATE TABLE t (a)", "PRAGMA query_only=OFF",
            "SELECT load_extension('x')", "SELECT randomblob(1000000000)", "SELECT sql FROM sqlite_master",
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        ):  # fmt: skip
            with pytest.raises(InvalidInput):
                list(db.rows(query))
    assert not (tmp_path / "other.db").exists()


def test_a_query_that_would_not_end_is_ended(tmp_path: Path) -> None:
    with NsysDatabase(write_export(tmp_path / "r.sqlite"), 2**30) as db:
        tables = ", ".join(f"StringIds AS s{i}" for i in range(12))
        with pytest.raises(InvalidInput, match="does not end"):
            list(db.rows(f"SELECT count(*) FROM {tables}"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(lambda p: None, "cannot be read: No such file", id="absent"),
        pytest.param(lambda p: p.write_bytes(b""), "not an SQLite file", id="empty"),
        pytest.param(lambda p: p.write_bytes(b"SQLite format 3\x00" + b"\xff" * 4_000), "cannot be read", id="no pages"),
        pytest.param(lambda p: p.write_bytes(b"SQLite format 3\x00"), "cannot be read|not an Nsight", id="header only"),
        pytest.param(lambda p: sqlite3.connect(p).execute("CREATE TABLE a (b)"), "not an Nsight Systems export", id="foreign"),
    ],
)
def test_what_is_no_export_is_said(tmp_path: Path, make: Callable[[Path], object], says: str) -> None:
    path = tmp_path / "r.sqlite"
    make(path)
    with pytest.raises(InvalidInput, match=says):
        traces(path)


def test_damaged_files_give_an_error_or_fewer_events_and_never_anything_else(tmp_path: Path) -> None:
    whole = write_export(tmp_path / "r.sqlite").read_bytes()
    random = np.random.default_rng(7)
    told = 0
    for number in range(300):
        raw = bytearray(whole)
        for at in random.integers(0, len(raw), 1 + number % 40).tolist():
            raw[at] = int(random.integers(0, 256))
        path = tmp_path / "mutant.sqlite"
        path.write_bytes(raw[: int(random.integers(100, len(raw)))] if number % 5 == 0 else raw)
        try:
            traces(path)
        except InvalidInput as error:
            told += 1
            assert error.where == str(path)
    assert 10 < told < 300


def test_a_text_beyond_all_names_is_refused(tmp_path: Path) -> None:
    path = write_export(tmp_path / "r.sqlite")
    db = sqlite3.connect(path)
    db.execute("UPDATE StringIds SET value = ? WHERE id = 1", ("x" * (20 * 2**20),))
    db.commit()
    if not hasattr(db, "setlimit"):
        pytest.skip("this Python cannot limit the length of a text in SQLite")
    with pytest.raises(InvalidInput, match="damaged"):
        traces(path)


@pytest.mark.parametrize(
    ("calls", "spans"),
    [
        pytest.param([(0, 9, "AllReduce")], [NcclSpan(0, 9, "all_reduce", 0)], id="one call"),
        pytest.param([(0, 9, "ReduceScatter"), (10, 12, "AllGather")],
                     [NcclSpan(0, 9, "reduce_scatter", 0), NcclSpan(10, 12, "all_gather", 0)], id="two calls"),
        pytest.param([(0, 1, "GroupStart"), (2, 3, "AllReduce"), (4, 5, "AllReduce"), (6, 9, "GroupEnd")],
                     [NcclSpan(0, 9, "all_reduce", 0)], id="coalesced"),
        pytest.param([(0, 1, "GroupStart"), (2, 3, "AllReduce"), (4, 5, "Broadcast"), (6, 9, "GroupEnd")],
                     [NcclSpan(0, 9, "", 0)], id="of several kinds"),
        pytest.param([(0, 1, "GroupStart"), *[(i, i, n) for i, n in enumerate(["Send", "Recv"] * 4, 2)], (20, 30, "GroupEnd")],
                     [NcclSpan(0, 30, "all_to_all", 4)], id="all with all of four"),
        pytest.param([(0, 1, "GroupStart"), (2, 3, "Send"), (4, 5, "Recv"), (6, 9, "GroupEnd")],
                     [NcclSpan(0, 9, "send_recv", 0)], id="an exchange"),
        pytest.param([(0, 1, "GroupStart"), (2, 3, "GroupStart"), (4, 5, "Send"), (6, 7, "GroupEnd"), (8, 9, "GroupEnd")],
                     [NcclSpan(0, 9, "send", 0)], id="a group in a group"),
        pytest.param([(0, 1, "CommCount"), (2, 3, "GroupEnd"), (4, 5, "Send")], [NcclSpan(4, 5, "send", 0)], id="an end alone"),
    ],
)  # fmt: skip
def test_what_nccl_calls_say(calls: list[tuple[int, int, str]], spans: list[NcclSpan]) -> None:
    assert spans_of(calls) == spans


@pytest.mark.skipif(not REAL.is_file(), reason="the real export is not here: ../shared/data/nsys")
def test_the_real_export_agrees_with_an_independent_count() -> None:
    found = traces(REAL)
    db = sqlite3.connect(f"file:{REAL}?mode=ro", uri=True)
    for device, trace in enumerate(found):
        rows = trace.rows(KERNEL)
        count, total = db.execute(
            'SELECT count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = ?', (device,)
        ).fetchone()
        assert (rows.size, round(float(trace.dur_us[rows].sum()), 1)) == (count, round(total / 1e3, 1))
    send_receive = [sum(t.dur_us[r] for r in t.comm) / 1e3 for t in found]
    assert send_receive == pytest.approx([17.2, 8.2], abs=0.05)
    assert {t.comm[r].collective for t in found for r in t.comm} == {"all_to_all", "send_recv"}


def test_calls_to_the_operating_system_count_on_the_threads_that_drive_the_gpu(tmp_path: Path) -> None:
    path = write_export(tmp_path / "r.sqlite")
    db = sqlite3.connect(path)
    db.execute(
        "CREATE TABLE OSRT_API (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER, nestingLevel INTEGER, callchainId INTEGER)"
    )
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(50, "read"), (51, "ioctl"), (52, "poll"), (53, "futex")])
    main, other = 7 * TID + 7, 7 * TID + 900
    rows = [
        (14_000_000, 18_000_000, main, 50),  # between two calls
        (10_001_000, 10_002_000, main, 51),  # within the launch of the gemm
        (10_445_000, 10_448_000, main, 51),  # within ncclGroupStart
        (11_000_000, 19_000_000, other, 52),  # a thread that does nothing for the GPU
        (16_000_000, 15_000_000, main, 53),  # it ends before it begins
    ]
    db.executemany("INSERT INTO OSRT_API VALUES (?, ?, 27, ?, 0, ?, 0, 0, NULL)", rows)
    db.commit()
    db.close()
    first, second = summarize_file(path)
    read = next(f for f in first.functions if f.name == "read")
    assert (read.category, read.count, read.total_us) == ("python", 1, 4_000.0)
    names = {f.name for s in (first, second) for f in s.functions}
    assert not names & {"ioctl", "poll", "futex"}
    assert "read" not in {f.name for f in second.functions}
    assert any("without counters of the GPU (--gpu-metrics-devices), NCCL's payloads" in note for note in first.notes)


@pytest.mark.parametrize(("at", "inside"), [(-1, False), (0, True), (4, True), (5, True), (8, True), (9, False), (50, False)])
def test_moments_within_calls(at: int, inside: bool) -> None:
    busy = BusyThreads()
    busy.add(1, 5, 9)
    busy.add(1, 0, 7)
    busy.add(1, 2, 3)
    busy.saw(2)
    assert busy.inside([(1, at), (2, at)]) == [inside, False]
    assert busy.knows(1) and busy.knows(2) and not busy.knows(3)
