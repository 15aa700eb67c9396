"""The priority rule against a reference that asks every microsecond who is running."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.producers.trace.columns import ColumnBuilder, Trace
from eroica.producers.trace.critical_path import CLASS_NAMES, find_critical_path
from eroica.producers.trace.events import EVENTS
from eroica.producers.trace.steps import find_steps

pytestmark = pytest.mark.unit

NAMES = {"kernel": ("gemm", "relu"), "gpu_memcpy": ("Memcpy HtoD",), "nccl": ("ncclDevKernel_AllReduce_Sum_f32_RING_LL",)}


def trace_of(events: list[dict[str, Any]]) -> Trace:
    builder = ColumnBuilder()
    builder.add(EVENTS.decode(json.dumps(events)))
    return builder.build({})


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def shares(events: list[dict[str, Any]]) -> dict[tuple[str, str, str], float]:
    trace = trace_of(events)
    ex = find_critical_path(trace, find_steps(trace)).executions
    total: dict[tuple[str, str, str], float] = defaultdict(float)
    for function, exclusive in zip(ex.function.tolist(), ex.exclusive_us.tolist(), strict=True):
        kind, name, stack = ex.functions[function]
        total[CLASS_NAMES[kind], name, stack] += exclusive
    return {k: v for k, v in total.items() if v > 0}


STEP = event("user_annotation", "ProfilerStep#5", 0, 100)


def test_gpu_compute_masks_memory_masks_collective_masks_host() -> None:
    found = shares(
        [
            STEP,
            event("python_function", "train.py(1): main", 0, 90),
            event("kernel", "gemm", 10, 20, 7),
            event("gpu_memcpy", "Memcpy HtoD", 25, 15, 8),
            event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float", 35, 25, 9),
        ]
    )
    assert found == {
        ("compute", "gemm", ""): 20,
        ("memory", "Memcpy HtoD", ""): 10,
        ("collective", "ncclKernel_AllReduce_RING_LL_Sum_float", ""): 20,
        ("python", "train.py(1): main", ""): 40,
        ("python", "ProfilerStep", ""): 10,
    }


def test_python_is_leaf_time_by_call_path() -> None:
    found = shares(
        [
            STEP,
            event("python_function", "main", 0, 100),
            event("python_function", "load", 10, 30),
            event("python_function", "read", 15, 20),
            event("python_function", "read", 50, 10),
            event("kernel", "gemm", 90, 10, 7),
        ]
    )
    assert found == {
        ("python", "main", ""): 50,
        ("python", "load", "main"): 10,
        ("python", "read", "main;load"): 20,
        ("python", "read", "main"): 10,
        ("compute", "gemm", ""): 10,
    }


def test_without_a_device_operators_compute_and_gloo_communicates() -> None:
    found = shares(
        [
            STEP,
            event("python_function", "main", 0, 100),
            event("cpu_op", "aten::linear", 10, 30),
            event("cpu_op", "aten::addmm", 15, 20),
            event("cpu_op", "c10d::allreduce_", 45, 5),
            event("user_annotation", "gloo:all_reduce", 20, 60, 2),
        ]
    )
    assert found == {
        ("compute", "aten::linear", ""): 10,
        ("compute", "aten::addmm", ""): 20,
        ("collective", "gloo:all_reduce", ""): 40,
        ("python", "main", ""): 30,
    }


def test_autograds_thread_counts_while_the_training_thread_waits_for_it() -> None:
    found = shares(
        [
            STEP,
            event("user_annotation", "## backward ##", 10, 60),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 20, 30, 2),
            event("cpu_op", "_AlltoAllSingleBackward", 25, 20, 2),
            event("kernel", "gemm", 90, 10, 7),
        ]
    )
    assert found[("python", "_AlltoAllSingleBackward", "")] == 20
    assert found[("python", "autograd::engine::evaluate_function: MmBackward0", "")] == 10
    assert found[("python", "## backward ##", "")] == 30


def test_only_the_window_counts() -> None:
    found = shares([event("kernel", "gemm", 0, 30, 7), {**STEP, "ts": 20, "dur": 50}, event("kernel", "gemm", 60, 30, 7)])
    assert found[("compute", "gemm", "")] == 20


DEVICE = st.lists(
    st.tuples(st.sampled_from(["kernel", "gpu_memcpy", "nccl"]), st.integers(0, 1), st.integers(0, 100), st.integers(0, 30)),
    min_size=1,
    max_size=14,
)


@given(DEVICE)
def test_exclusive_time_is_what_a_clock_would_count(rows: list[tuple[str, int, int, int]]) -> None:
    events = [STEP]
    names = []
    for cat, which, ts, dur in rows:
        name = NAMES[cat][which % len(NAMES[cat])]
        names.append(name)
        events.append(event("kernel" if cat == "nccl" else cat, name, ts, dur, 7))
    rank = {"kernel": 0, "gpu_memcpy": 1, "nccl": 2}
    expected: dict[str, float] = defaultdict(float)
    for i, (cat, _, ts, dur) in enumerate(rows):
        for t in range(ts, min(ts + dur, 100)):
            higher = any(rank[c] < rank[cat] and a <= t < a + d for c, _, a, d in rows)
            expected[names[i]] += not higher
    busy = {t for _, _, a, d in rows for t in range(a, min(a + d, 100))}
    found = shares(events)
    for name, time in expected.items():
        assert sum(v for (_, n, _), v in found.items() if n == name) == pytest.approx(time)
    assert found.get(("python", "ProfilerStep", ""), 0) == pytest.approx(100 - len(busy))


def test_two_streams_share_a_beta(make_trace: Any, tmp_path: Path) -> None:
    from eroica.producers.trace import SummarySettings, identity_from_trace, summarise_trace

    trace = trace_of([STEP, event("kernel", "gemm", 10, 40, 7), event("kernel", "gemm", 30, 40, 8)])
    summary = summarise_trace(trace, identity_from_trace(trace, "rank0.json", job="j"), SummarySettings())
    gemm = next(f for f in summary.functions if f.name == "gemm")
    assert (gemm.beta, gemm.count, gemm.total_us, gemm.exclusive_us) == (0.6, 2, 80, 60)
    assert np.isclose(sum(f.beta for f in summary.functions), 1.0)
