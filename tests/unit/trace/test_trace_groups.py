"""Whose collective it is, and how large, where the event itself does not say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eroica.producers.trace import identity_from_trace, read_trace, summarise
from eroica.producers.trace.commargs import inputs
from eroica.schemas.summaries import Summary

pytestmark = pytest.mark.unit
MakeTrace = Callable[..., Path]


def group(name: str, ranks: list[int], backend: str = "cpu:gloo") -> dict[str, Any]:
    return {"pg_name": name, "pg_desc": "", "backend_config": backend, "pg_size": len(ranks), "ranks": ranks}


def span(name: str, ts: float, dur: float, tid: int = 1, cat: str = "user_annotation", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def summary_of(path: Path) -> Summary:
    return summarise(path, identity_from_trace(read_trace(path), path, job="j"))


def steps_with(threads: list[int]) -> list[dict[str, Any]]:
    """Two steps, and in each an all-reduce on every one of *threads*."""
    events = []
    for step in range(2):
        events.append(span(f"ProfilerStep#{step}", step * 1000, 1000))
        events += [span("gloo:all_reduce", step * 1000 + 100 + 50 * i, 40, tid) for i, tid in enumerate(threads)]
    return events


TWO_GROUPS = [group("10", [0, 2]), group("0", [0, 1, 2, 3])]


@pytest.mark.parametrize(
    ("groups", "threads", "expected"),
    [
        pytest.param([group("0", [0, 1])], [7, 90, 8], {"0": "0-1"}, id="one group, whatever its threads"),
        pytest.param(TWO_GROUPS, [203, 101, 204, 100], {"0": "0-3", "10": "0,2"}, id="each thread of both seen"),
        pytest.param(
            [*TWO_GROUPS, group("3", [0])], [203, 101, 204, 100], {"0": "0-3", "10": "0,2"}, id="one member is no group"
        ),
        pytest.param(
            [*TWO_GROUPS, group("3", [0, 1], "cuda:nccl")], [203, 101, 204, 100], {"0": "0-3", "10": "0,2"}, id="NCCL's too"
        ),
        pytest.param([], [100, 101, 203], {"gloo": ""}, id="no groups told"),
    ],
)
def test_gloo_groups_are_told_by_their_threads(
    make_trace: MakeTrace, groups: list[dict[str, Any]], threads: list[int], expected: dict[str, str]
) -> None:
    info = {"rank": 0, "world_size": 4, "pg_config": groups}
    summary = summary_of(make_trace(steps_with(threads), "rank0.json", distributedInfo=info))
    assert {c.name: c.ranks for c in summary.communicators} == expected
    assert all(slot.index >= 0 for c in summary.communicators for slot in c.slots)


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        pytest.param([0, 1, 2, 3], "0-3", id="a list"),
        pytest.param("[0, 1, 2, 3]", "0-3", id="a text"),
        pytest.param("[0, 1, ...]", "", id="a text that was cut"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_members_of_a_group_may_be_a_text(make_trace: MakeTrace, told: object, ranks: str) -> None:
    info = {"rank": 0, "world_size": 4, "pg_config": [{**group("0", [0, 1, 2, 3]), "ranks": told}]}
    [communicator] = summary_of(make_trace(steps_with([7, 8]), "rank0.json", distributedInfo=info)).communicators
    assert (communicator.name, communicator.ranks, communicator.size) == ("0", ranks, 4)


@pytest.mark.parametrize("threads", [[100, 101, 203], [100], [100, 101, 203, 204, 300]])
def test_gloo_groups_that_cannot_be_told_apart_give_no_slots(make_trace: MakeTrace, threads: list[int]) -> None:
    info = {"rank": 0, "world_size": 4, "pg_config": TWO_GROUPS}
    summary = summary_of(make_trace(steps_with(threads), "rank0.json", distributedInfo=info))
    [communicator] = summary.communicators
    assert [(s.index, s.count, s.total_us) for s in communicator.slots] == [(-1, 2 * len(threads), 80 * len(threads))]
    assert any("could not be told apart" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("dims", "types", "expected"),
    [
        ([[4, 8]], ["float"], (32, "float")),
        ([[4, 8], []], ["c10::BFloat16", "Scalar"], (32, "BFloat16")),
        ([[10], [5, 2]], ["long int", "long int"], (20, "long")),
        ([[10], [5]], ["float", "double"], (15, "")),
        ([[[10], [5, 2]], []], ["TensorList", ""], (20, "")),
        ([[0]], ["float"], (0, "float")),
        ([[], []], ["Scalar", ""], (-1, "")),
        ([[2**41]], ["float"], (-1, "")),
        ([[2**39] * 16], ["float"], (-1, "float")),
        ([["x"], [None], 7, "text"], ["float"], (-1, "")),
        ("text", None, (-1, "")),
        ([[3]], "no list", (3, "")),
    ],
)
def test_elements_by_the_shapes_of_the_inputs(dims: Any, types: Any, expected: tuple[int, str]) -> None:
    assert inputs(dims, types) == expected


def test_bytes_by_shapes_where_the_collective_does_not_say(make_trace: MakeTrace) -> None:
    events = [
        span("ProfilerStep#0", 0, 1000),
        span("nccl:all_reduce", 100, 50, **{"Input Dims": [[1000]], "Input type": ["float"]}),
        span("cudaLaunchKernel", 110, 5, cat="cuda_runtime", correlation=1),
        span("ncclKernel_AllReduce_RING_LL_Sum_float", 120, 80, 7, "kernel", correlation=1, stream=7),
        span("nccl:all_gather", 300, 50, **{"Input Dims": [[10]], "Input type": ["c10::Half"]}),
        span("cudaLaunchKernel", 310, 5, cat="cuda_runtime", correlation=2),
        span("ncclKernel_AllGather_RING_LL_Sum_int8_t", 320, 80, 7, "kernel", correlation=2, stream=7),
        span("nccl:all_reduce", 500, 50, **{"Input Dims": [[9]], "Input type": ["float"]}),
        span("cudaLaunchKernel", 510, 5, cat="cuda_runtime", correlation=3),
        span(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 520, 80, 7, "kernel", correlation=3, stream=7,
            **{"Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "dtype": "Half", "Group size": 4},
        ),
    ]  # fmt: skip
    info = {"rank": 0, "world_size": 4, "pg_config": [group("0", [0, 1, 2, 3], "nccl")]}
    summary = summary_of(make_trace(events, "rank0.json", distributedInfo=info))
    [communicator] = summary.communicators
    assert [(s.op, s.bytes) for s in communicator.slots] == [("all_reduce", 4000), ("all_gather", 80), ("all_reduce", 128)]


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(x)", "coalesced"),
        ("ncclDevKernel_Generic(x)", "coalesced"),
    ],
)
def test_what_was_coalesced_its_kernel_tells(make_trace: MakeTrace, kernel: str, op: str) -> None:
    events = [
        span("ProfilerStep#0", 0, 1000),
        span("nccl:coalesced", 100, 50),
        span("cudaLaunchKernel", 110, 5, cat="cuda_runtime", correlation=1),
        span(kernel, 120, 80, 7, "kernel", correlation=1, stream=7),
    ]
    [communicator] = summary_of(make_trace(events, "rank0.json")).communicators
    assert [slot.op for slot in communicator.slots] == [op]
