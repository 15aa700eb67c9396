"""GPU counters in Nsight Systems exports: whose they are, what they measure, and what is left out with a word."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from nsys_kit import write_export

from eroica.offline.summarize import summarize_file
from eroica.producers.trace import nsys_hardware
from eroica.producers.trace.nsys import read_nsys
from eroica.producers.trace.nsys_hardware import Hardware
from eroica.schemas.summaries import FunctionPattern, Summary

pytestmark = pytest.mark.unit

MS = 1_000_000
NAMES = {
    1: "GPC Clock Frequency [MHz]",
    2: "SMs Active [Throughput %]",
    3: "NVLink RX Responses User Data [Throughput %]",
    4: "NVLink RX Responses Protocol Data [Throughput %]",
    5: "NVLink TX Requests User Data [Throughput %]",
    6: "Compute Warps in Flight [Avg]",
    7: "DRAM Read Bandwidth [Throughput %]",
}
CLOCK_HZ = 1_980_000_000


def export(path: Path, readings: Callable[[int, int], dict[int, float]], *, mapped: bool = False, clock: bool = True,
           every: int = MS // 10) -> Path:  # fmt: skip
    """The kit's export with counters every 0.1 ms (*every*, ns) of 50 ms.

    :param readings: by GPU and time (ns): metric → value.
    :param mapped: the processes call their GPU 0 and 1, which are the GPUs 1 and 0.
    """
    write_export(path)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE GPU_METRICS (rawTimestamp INTEGER, timestamp INTEGER, typeId INTEGER NOT NULL, "
               "metricId INTEGER NOT NULL, value REAL NOT NULL)")  # fmt: skip
    db.execute("CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER NOT NULL, sourceId INTEGER NOT NULL, typeName TEXT, "
               "metricId INTEGER NOT NULL, metricName TEXT NOT NULL)")  # fmt: skip
    for gpu in (0, 1):
        kind = 0x0100_0000_0000_0500 | gpu
        for number, name in NAMES.items():
            db.execute("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, 1, 'GH100', ?, ?)", (kind, number, name))
        for at in range(0, 50 * MS, every):
            rows = [(at, at, kind, number, value) for number, value in readings(gpu, at).items()]
            db.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?, ?)", rows)
    db.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT" + (", clockRate INTEGER)" if clock else ")"))
    for gpu in (0, 1):
        db.execute(f"INSERT INTO TARGET_INFO_GPU VALUES (?, 'H'{', ?' if clock else ''})", (gpu, *([CLOCK_HZ] if clock else [])))
    if mapped:
        db.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)")
        db.executemany("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?)", [(1, 0, 7), (0, 1, 8)])
    db.commit()
    db.close()
    return path


def throttled(gpu: int, _at: int) -> dict[int, float]:
    """GPU 1 at half its clock; everything else alike."""
    return {1: CLOCK_HZ / (2 if gpu else 1), 2: 80.0, 3: 30.0, 4: 10.0, 5: 25.0, 6: 12.0, 7: 55.0}


def hardware(path: Path) -> list[Hardware]:
    return [worker.hardware for _, worker, _ in read_nsys(path)]


def function(summary: Summary, name: str) -> FunctionPattern:
    return next(f for f in summary.functions if name in f.name)


def test_counters_are_the_samples_of_kernels_and_collectives(tmp_path: Path) -> None:
    first, second = summarize_file(export(tmp_path / "r.sqlite", throttled))
    for summary, share in ((first, 1.0), (second, 0.5)):
        gemm, nccl = function(summary, "gemm"), function(summary, "SendRecv")
        assert (gemm.resource, gemm.mu, gemm.sigma) == ("sm_clock", pytest.approx(share), pytest.approx(0, abs=1e-9))
        assert (nccl.resource, nccl.mu) == ("nvlink", pytest.approx(0.4))  # 30 + 10 percent in, 25 out: the busier way
    told = {m.name: (m.unit, m.mean) for m in second.metrics}
    assert told == {
        "sm_clock": ("MHz", 990.0), "sm_active_share": ("share", 0.8), "dram_read_share": ("share", 0.55),
        "nvlink_rx_share": ("share", 0.4), "nvlink_tx_share": ("share", 0.25),
    }  # fmt: skip


def test_samples_lie_within_their_executions(tmp_path: Path) -> None:
    """The link is busy in the second half of each exchange alone: [P]'s critical execution is that half."""

    def late(_gpu: int, at: int) -> dict[int, float]:
        inside = at % (10 * MS)
        return {3: 90.0 if 3_750_000 <= inside < 4 * MS else 0.0}

    first, _ = summarize_file(export(tmp_path / "r.sqlite", late))
    assert function(first, "SendRecv").mu == pytest.approx(0.9)
    assert function(first, "gemm").resource == "critical_share"  # no clock among the counters


def test_kernels_too_short_for_samples_have_the_clock_of_the_window(tmp_path: Path) -> None:
    _, second = summarize_file(export(tmp_path / "r.sqlite", throttled, every=3 * MS))
    gemm = function(second, "gemm")  # of 1 ms
    assert (gemm.resource, gemm.mu) == ("sm_clock", pytest.approx(0.5))
    assert any("over all of the window (17 samples)" in note for note in second.notes)


def test_the_processs_own_number_of_a_gpu_is_looked_up(tmp_path: Path) -> None:
    clocks = [h.samples[0].value.max() for h in hardware(export(tmp_path / "r.sqlite", throttled, mapped=True))]
    assert clocks == [pytest.approx(0.5), pytest.approx(1.0)]


def test_counters_of_an_unknown_gpu_are_left_out_with_a_word(tmp_path: Path) -> None:
    path = export(tmp_path / "r.sqlite", throttled)
    db = sqlite3.connect(path)
    for table in ("KERNEL", "MEMCPY"):  # each process sees only its own GPU, and calls it 0
        db.execute(f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET deviceId = 0")
    db.commit()
    db.close()
    for found in hardware(path):
        assert found.samples == () and "which GPU is this worker's" in found.notes[0]


def test_without_its_highest_clock_the_highest_sample_counts_and_a_note_says_so(tmp_path: Path) -> None:
    first, second = summarize_file(export(tmp_path / "r.sqlite", throttled, clock=False))
    assert function(second, "gemm").mu == pytest.approx(1.0)
    assert any("highest clock is not in the export" in note for note in first.notes)


def test_more_samples_than_the_limit_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_hardware, "MAX_SAMPLES", 50)
    found = hardware(export(tmp_path / "r.sqlite", throttled))[0]
    assert found.samples[0].ts_us.size == 50
    assert any("only the first 50 values" in note for note in found.notes)


def test_odd_values_are_no_samples(tmp_path: Path) -> None:
    path = export(tmp_path / "r.sqlite", lambda _gpu, _at: {1: CLOCK_HZ / 2})
    db = sqlite3.connect(path)
    rows = [("soon", 1.0), (5 * MS, "fast"), (5 * MS, -3.0), (5 * MS, 1e300), (None, 1.0)]
    db.executemany("INSERT INTO GPU_METRICS VALUES (0, ?, ?, 1, ?)", [(t, 0x0100_0000_0000_0500, v) for t, v in rows])
    db.commit()
    db.close()
    clock = hardware(path)[0].samples[0]
    assert np.unique(clock.value).tolist() == [0.5]


def test_an_export_without_counters_has_none(tmp_path: Path) -> None:
    assert hardware(write_export(tmp_path / "r.sqlite")) == [Hardware(), Hardware()]
