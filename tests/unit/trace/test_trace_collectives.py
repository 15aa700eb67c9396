from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eroica.producers.trace import SummarySettings, identity_from_trace, read_trace, summarise
from eroica.schemas.summaries import Communicator, Summary

pytestmark = pytest.mark.unit

MakeTrace = Callable[..., Path]
PG = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "pg_size": 4, "ranks": [0, 1, 2, 3]}
INFO = {"rank": 1, "world_size": 4, "backend": "gloo", "pg_config": [PG]}


def step(number: int, ts: float, dur: float = 90) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "ts": ts, "dur": dur}


def gloo(ts: float, dur: float, tid: int = 2, op: str = "all_reduce") -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"gloo:{op}", "pid": 1, "tid": tid, "ts": ts, "dur": dur}


def nccl(
    ts: float, dur: float, correlation: int, launch: float, name: str = "ncclDevKernel_SendRecv(x)", **args: Any
) -> list[dict[str, Any]]:
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": ts, "dur": dur}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 1, "tid": 1, "ts": launch, "dur": 1}
    return [
        {**kernel, "args": {"correlation": correlation, "stream": 20, **args}},
        {**call, "args": {"correlation": correlation}},
    ]


def summary_of(path: Path, **settings: Any) -> Summary:
    return summarise(path, identity_from_trace(read_trace(path), path, job="j", rank=1), SummarySettings(**settings))


def columns(communicator: Communicator) -> dict[int, tuple[list[int], list[float], list[float]]]:
    return {s.index: (s.step, s.start_us, s.duration_us) for s in communicator.slots}


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op"], ids=["today", "until torch 1.12"])
def test_gloo_by_order_over_its_threads(make_trace: MakeTrace, category: str) -> None:
    noted = [{**e, "cat": category} for e in (gloo(10, 5), gloo(20, 30, 3), gloo(110, 6), gloo(130, 7, 3))]
    summary = summary_of(make_trace([step(3, 0), step(4, 100), *noted], distributedInfo=INFO))
    found = summary.communicators
    assert not any(f.category == "compute" for f in summary.functions)
    assert len(found) == 1
    assert (found[0].name, found[0].kind, found[0].ranks, found[0].size, found[0].backend) == (
        "0",
        "default_pg",
        "0-3",
        4,
        "gloo",
    )
    assert columns(found[0]) == {0: ([3, 4], [10, 10], [5, 6]), 1: ([3, 4], [20, 30], [30, 7])}


def test_a_kernel_belongs_to_the_step_that_launched_it(make_trace: MakeTrace) -> None:
    note = {"ph": "X", "cat": "user_annotation", "name": "nccl:all_to_all", "pid": 1, "tid": 1, "ts": 50, "dur": 5}
    events = [step(3, 0), step(4, 100), note, *nccl(120, 10, 1, launch=52), *nccl(150, 10, 2, launch=140)]
    slots = summary_of(make_trace(events, distributedInfo={"rank": 1, "world_size": 4})).communicators[0].slots
    assert [(s.op, s.step, s.start_us) for s in slots] == [("all_to_all", [3], [120]), ("unknown", [4], [50])]


def test_kernels_launched_before_the_window_are_counted_apart(make_trace: MakeTrace) -> None:
    late = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "pid": 0, "tid": 20, "ts": 5, "dur": 9}
    events = [step(3, 0), {**late, "args": {"correlation": 77, "stream": 20}}, *nccl(50, 10, 1, launch=40)]
    summary = summary_of(make_trace(events))
    assert summary.figures["collectives_before_window"] == 1
    assert [s.count for s in summary.communicators[0].slots] == [1]


def test_kernels_launched_after_the_window_are_none_of_those_before_it(make_trace: MakeTrace) -> None:
    """A step lasts 100 µs."""
    events = [step(3, 0), *nccl(50, 10, 1, launch=40), *nccl(150, 10, 2, launch=140)]
    summary = summary_of(make_trace(events))
    assert "collectives_before_window" not in summary.figures
    assert [s.count for s in summary.communicators[0].slots] == [1]


def test_what_a_kernel_says_about_itself(make_trace: MakeTrace) -> None:
    args = {
        "Collective name": "_reduce_scatter_base",
        "In msg nelems": 1000,
        "Out msg nelems": 250,
        "dtype": "BFloat16",
        "Group size": 4,
        "Process Group Name": "7",
        "Process Group Description": "DATA_PARALLEL_GROUP",
        "Process Group Ranks": "[1, 3, 5, 7]",
        "Seq": 12,
    }
    events = [step(3, 0), *nccl(50, 3, 1, launch=40, name="ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", **args)]
    found = summary_of(make_trace(events)).communicators[0]
    assert (found.name, found.kind, found.ranks, found.size) == ("7", "DATA_PARALLEL_GROUP", "1,3,5,7", 4)
    slot = found.slots[0]
    assert (slot.op, slot.bytes, slot.dtype, slot.seq) == ("reduce_scatter", 2000, "BFloat16", [12])


def test_members_cut_short_by_kineto_are_unknown_not_wrong(make_trace: MakeTrace) -> None:
    args = {"Collective name": "allreduce", "Group size": 64, "Process Group Name": "7", "Process Group Ranks": "[0, 1, 2, ...]"}
    found = summary_of(make_trace([step(3, 0), *nccl(50, 3, 1, launch=40, **args)])).communicators[0]
    assert (found.ranks, found.size) == ("", 64)


def test_the_first_step_is_matched_from_its_end(make_trace: MakeTrace) -> None:
    events = [step(s, 100 * s) for s in range(4)]
    events += [gloo(100 * s + 10 * i, 1 + i) for s in range(4) for i in range(3) if (s, i) != (0, 0)]
    found = columns(summary_of(make_trace(events, distributedInfo=INFO)).communicators[0])
    assert {i: steps for i, (steps, _, _) in found.items()} == {0: [1, 2, 3], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3]}
    assert found[2][2] == [3, 3, 3, 3]


def test_all_members_choose_the_same_slots(make_trace: MakeTrace) -> None:
    chosen = []
    for shift in (0.0, 0.4):
        events = [step(s, 1000 * s, 990) for s in range(3)]
        events += [gloo(1000 * s + 10 * i + shift, 1 + i * shift) for s in range(3) for i in range(20)]
        slots = summary_of(make_trace(events, distributedInfo=INFO), max_slot_values=16).communicators[0].slots
        chosen.append([s.index for s in slots])
        assert sum(s.count for s in slots) == 60
        rest = next(s for s in slots if s.index == -1)
        assert rest.duration_us == []
    assert chosen[0] == chosen[1]
    assert {0, 19} <= set(chosen[0])


PIPE = {"pg_name": "9", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": 4, "ranks": [2, 6, 10, 14]}


def pipeline_end(make_trace: MakeTrace, rank: int, ops: list[tuple[str, int]], noted: bool, **settings: Any) -> Summary:
    """One rank of a pipeline over ranks 2, 6, 10, 14: *ops* are (operation, other end), in two steps."""
    events: list[dict[str, Any]] = [step(s, 1000 * s, 990) for s in range(2)]
    for s in range(2):
        for i, (op, other) in enumerate(ops):
            at = 1000 * s + 10 * i
            args = {"Collective name": op, "Process Group Name": "9", "Group size": 4}
            if noted:
                me, peer = PIPE["ranks"].index(rank), PIPE["ranks"].index(other)  # type: ignore[attr-defined]
                note = f"nccl:{op} {me}{'->' if op == 'send' else '<-'}{peer}"
                events.append({"ph": "X", "cat": "user_annotation", "name": note, "pid": 1, "tid": 1, "ts": at, "dur": 5})
            else:
                args["Dst Rank" if op == "send" else "Src Rank"] = other
            events += nccl(at + 4, 3, 100 * s + i, launch=at + 1, **args)
    path = make_trace(events, f"rank{rank}.json", distributedInfo={"rank": rank, "world_size": 16, "pg_config": [PIPE]})
    return summarise(path, identity_from_trace(read_trace(path), path, job="j", rank=rank), SummarySettings(**settings))


@pytest.mark.parametrize("noted", [False, True], ids=["arguments", "annotations"])
@pytest.mark.parametrize("most", [128, 6])
def test_a_send_and_its_receive_carry_one_key_at_both_ends(make_trace: MakeTrace, noted: bool, most: int) -> None:
    """1F1B between two neighbours: the orders differ at the two ends, the k-th of a direction is the same transfer."""
    up = [
        ("recv", 2),
        ("send", 10),
        ("recv", 2),
        ("send", 10),
        ("recv", 10),
        ("send", 2),
        ("recv", 2),
        ("send", 10),
        ("recv", 10),
    ]
    down = [("recv", 6), ("send", 6), ("recv", 6), ("recv", 6), ("send", 6)]
    ends = [pipeline_end(make_trace, r, ops, noted, max_slot_values=most) for r, ops in ((6, up), (10, down))]
    pairs = [{c.name: c for c in end.communicators} for end in ends]
    assert [sorted(p) for p in pairs] == [["9:2:6", "9:6:10"], ["9:6:10"]]
    mine, other = pairs[0]["9:6:10"], pairs[1]["9:6:10"]
    assert (mine.ranks, mine.size, mine.kind) == ("6,10", 2, "PIPELINE_MODEL_PARALLEL_GROUP")
    for here, there in ((mine, other), (other, mine)):
        sent = sorted(s.index for s in here.slots if s.op == "send")
        assert sent == sorted(s.index for s in there.slots if s.op == "recv")
        assert max(sent) == sum(1 for op, end in up if op == ("send" if here is mine else "recv") and end == 10) - 1
    assert sum(s.count for s in mine.slots) == 2 * 5


@pytest.mark.parametrize(
    "end", [{}, {"Dst Rank": "x"}, {"Dst Rank": -1}, {"Dst Rank": 10**30}, {"Dst Rank": [1]}, {"Dst Rank": 1.5}]
)
def test_a_send_that_does_not_tell_its_other_end_stays_in_its_group(make_trace: MakeTrace, end: dict[str, Any]) -> None:
    args = {"Collective name": "send", "Process Group Name": "9", "Group size": 4, **end}
    found = summary_of(
        make_trace([step(3, 0), *nccl(50, 3, 1, launch=40, **args)], distributedInfo={**INFO, "pg_config": [PIPE]})
    )
    assert [(c.name, c.size, [s.op for s in c.slots]) for c in found.communicators] == [("9", 4, ["send"])]


def test_exposed_part_is_what_compute_does_not_hide(make_trace: MakeTrace) -> None:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 20, "dur": 10}
    summary = summary_of(make_trace([step(3, 0), gloo(15, 20), operator], distributedInfo=INFO))
    assert summary.communicators[0].slots[0].exposed_us == [10]
    assert summary.figures["overlap_share"] == 0.5
