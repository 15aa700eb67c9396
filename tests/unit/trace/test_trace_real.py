"""Real traces: every one is read; figures agree with independent counts on the raw file or with published ones."""

from __future__ import annotations

import gzip
import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.producers.trace import SummarySettings, identity_from_trace, read_trace, summarise
from eroica.producers.trace.columns import KERNEL, MEMCPY, MEMSET
from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.critical_path import find_critical_path
from eroica.producers.trace.fit import wire_bytes
from eroica.producers.trace.identity import identify
from eroica.producers.trace.steps import find_steps
from eroica.schemas.codec import encode
from eroica.schemas.errors import EroicaError, InvalidInput
from eroica.schemas.summaries import Summary

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
from trace_mutations import mutated

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[3] / "../shared/data/traces"
FILES = sorted(str(p.relative_to(FOLDER)) for p in FOLDER.glob("*/*.json*")) if FOLDER.exists() else ["single/simple_add.json.gz"]
Find = Callable[[str], Path]
TORCHREC = ("torchrec_sleep_1s", "torchrec_sleep_20ms")


def raw_events(path: Path) -> list[dict[str, Any]]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    value = json.loads(raw)
    return [e for e in (value if isinstance(value, list) else value["traceEvents"]) if e.get("ph") == "X"]


def summary_of(path: Path, rank: int | None = None) -> Summary:
    trace = read_trace(path)
    return summarise(path, identity_from_trace(trace, path, job="j", rank=rank))


@pytest.mark.parametrize("place", FILES)
def test_every_real_trace_is_read_whole(real_trace: Find, place: str) -> None:
    path = real_trace(place)
    trace = read_trace(path)
    raw = raw_events(path)
    assert len(trace) == len(raw)
    assert trace.repairs == {}
    assert trace.dur_us.sum() == pytest.approx(sum(e.get("dur", 0) for e in raw))
    summary = summary_of(path, None if identify(trace, path).rank >= 0 else 0)
    assert len(encode(summary)) <= SummarySettings().max_bytes
    assert wire_bytes(summary) <= 10_000
    for step in summary.steps:
        assert sum(step.phases_us.values()) == pytest.approx(step.duration_us, abs=0.5)
    for function in summary.functions:
        assert 0 <= function.beta <= 1.001


@pytest.mark.parametrize(
    "place", ["single/simple_add.json.gz", "single/nccl_data.json.gz", "torchrec_sleep_20ms/host0_4102.pt.trace.json.gz"]
)
def test_kernel_totals_agree_with_the_raw_file(real_trace: Find, place: str) -> None:
    path = real_trace(place)
    trace = read_trace(path)
    device = {"kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET}
    for category, code in device.items():
        mine = [e for e in raw_events(path) if e["cat"] == category]
        rows = trace.rows(code)
        assert rows.size == len(mine)
        assert trace.dur_us[rows].sum() == pytest.approx(sum(e["dur"] for e in mine))


def test_nccl_data(real_trace: Find) -> None:
    path = real_trace("single/nccl_data.json.gz")
    trace = read_trace(path)
    rows = [r for r in trace.rows(KERNEL).tolist() if kernel_collective(trace.names[trace.name[r]])]
    assert len(rows) == 21
    assert all(r in trace.comm for r in rows)
    longest = max(rows, key=lambda r: trace.dur_us[r])
    assert (trace.comm[longest].collective, trace.comm[longest].in_elements) == ("allreduce", 2_049_000)
    group = summary_of(path).communicators[0]
    assert (group.name, group.ranks, sum(s.count for s in group.slots)) == ("0", "0-1", 21)


def test_ns_resolution_counts_as_published(real_trace: Find) -> None:
    trace = read_trace(real_trace("single/ns_resolution.json.gz"))
    rows = trace.rows(KERNEL, MEMCPY, MEMSET)
    assert rows.size == 6_095
    # Dropping the last step means: device work launched before it.
    raw = raw_events(real_trace("single/ns_resolution.json.gz"))
    last = max(e["ts"] for e in raw if e["name"].startswith("ProfilerStep#"))
    launches = {e["args"]["correlation"]: e["ts"] for e in raw if e["cat"] in ("cuda_runtime", "cuda_driver")}
    kept = sum(launches.get(c, 0) < last for c in trace.correlation[rows].tolist())
    assert kept == 4_876


def test_overlap_against_a_count_on_a_grid(real_trace: Find) -> None:
    path = real_trace("torchrec_sleep_20ms/host0_4100.pt.trace.json.gz")
    raw = raw_events(path)
    steps = [e for e in raw if e["name"].startswith("ProfilerStep#")]
    trace = read_trace(path)
    window = find_steps(trace).window
    low = min(e["ts"] for e in steps)
    grid = np.zeros((2, int(window[1] - window[0])), bool)
    for e in raw:
        if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            a, b = max(0, e["ts"] - low), max(0, e["ts"] + e["dur"] - low)
            grid[int("nccl" in e["name"]), a:b] = True
    expected = (grid[0] & grid[1]).sum() / grid[1].sum()
    assert summary_of(path).figures["overlap_share"] == pytest.approx(expected, abs=1e-4)
    path_ = find_critical_path(trace, find_steps(trace))
    assert path_.collective.total() == pytest.approx(grid[1].sum())


@pytest.mark.parametrize(
    ("place", "rank"),
    [
        ("single/cpu_only_rank34_of_300.json.gz", 34),
        ("hta_2_of_128/sampled_rank-1.json.gz", 1),
        ("torchrec_sleep_1s/host0_4102.pt.trace.json.gz", 2),
        ("single/rank_not_found.json.gz", None),
        ("single/distributed_info_not_found.json.gz", None),
    ],
)
def test_ranks(real_trace: Find, place: str, rank: int | None) -> None:
    path = real_trace(place)
    trace = read_trace(path)
    if rank is None:
        with pytest.raises(InvalidInput, match="give the rank"):
            identity_from_trace(trace, path, job="j")
    else:
        assert identity_from_trace(trace, path, job="j").rank == rank


@pytest.mark.parametrize("folder", ["torchrec_sleep_1s", "torchrec_sleep_20ms"])
def test_the_sleeping_rank_waits_least_and_its_host_code_shows_it(real_trace: Find, folder: str) -> None:
    paths = sorted(real_trace(folder).glob("*.json.gz"))
    summaries = {s.who.rank: s for s in map(summary_of, paths)}
    waiting = {rank: sum(slot.total_us for c in s.communicators for slot in c.slots) for rank, s in summaries.items()}
    assert min(waiting, key=lambda r: waiting[r]) == 2
    others = statistics.median(v for r, v in waiting.items() if r != 2)
    assert others > 1.5 * waiting[2]
    sleeping = {
        r: max((f.beta for f in s.functions if f.name == "# running sparse arch"), default=0.0) for r, s in summaries.items()
    }
    assert max(sleeping, key=lambda r: sleeping[r]) == 2


def test_the_embedding_backward_of_rank_1(real_trace: Find) -> None:
    busy = []
    for rank in (0, 1):
        events = raw_events(real_trace(f"hta_2_of_128/sampled_rank-{rank}.json.gz"))
        own = [e["dur"] for e in events if e["cat"] == "kernel" and "split_embedding_backward" in e["name"]]
        functions = [
            f
            for f in summary_of(real_trace(f"hta_2_of_128/sampled_rank-{rank}.json.gz")).functions
            if "split_embedding_backward" in f.name
        ]
        assert sum(f.total_us for f in functions) <= sum(own) + 1
        busy.append(sum(f.total_us for f in functions))
    assert busy[1] > 1.5 * busy[0]


@pytest.mark.parametrize(
    "place", ["single/simple_add.json.gz", "single/cpu_only_rank34_of_300.json.gz", "single/cuda_event_sync.json.gz"]
)
def test_mutated_traces_never_crash(real_trace: Find, tmp_path: Path, place: str) -> None:
    raw = gzip.decompress(real_trace(place).read_bytes())
    dice = random.Random(place)
    refused = 0
    for number in range(60):
        path = tmp_path / "rank0.json"
        path.write_bytes(mutated(raw, dice))
        try:
            summary = summary_of(path, rank=34 if "34" in place else 0)
        except EroicaError:
            refused += 1
            continue
        assert len(encode(summary)) <= SummarySettings().max_bytes, number
        assert all(np.isfinite(f.beta) for f in summary.functions)
    assert refused < 60


def own_allocation_us(events: list[dict[str, Any]]) -> int:
    """Time of the driver's allocator in the steps while no collective runs: a count on a grid of microseconds."""
    steps = [e for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
    calls = [e for e in events if e["name"] in ("cudaMalloc", "cudaFree")]
    calls = [e for e in calls if any(s["ts"] <= e["ts"] < s["ts"] + s["dur"] for s in steps)]
    low = min(e["ts"] for e in events)
    size = max(e["ts"] + e["dur"] for e in calls) - low
    allocating, transferring = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for e in calls:
        allocating[e["ts"] - low : e["ts"] - low + e["dur"]] = True
    for e in events:
        if e["cat"] == "kernel" and e["name"].startswith("nccl") and e["ts"] - low < size:
            transferring[e["ts"] - low : e["ts"] - low + e["dur"]] = True
    return int((allocating & ~transferring).sum())


@pytest.mark.parametrize("place", [f"{folder}/host0_410{n}.pt.trace.json.gz" for folder in TORCHREC for n in range(4)])
def test_the_allocator_s_time_is_its_own_and_not_that_of_a_collective(real_trace: Find, place: str) -> None:
    events = raw_events(real_trace(place))
    [pause] = [p for p in summary_of(real_trace(place)).pauses if p.what == "alloc"]
    assert pause.total_us == pytest.approx(own_allocation_us(events), abs=1)
    assert pause.total_us < 0.95 * sum(e["dur"] for e in events if e["name"] in ("cudaMalloc", "cudaFree"))
