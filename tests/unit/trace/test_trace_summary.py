from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from eroica.producers.trace import Extras, SummarySettings, identity_from_trace, read_trace, summarise, summarise_trace
from eroica.producers.trace.__main__ import main
from eroica.producers.trace.fit import fit, json_bytes, wire_bytes
from eroica.producers.trace.pattern import Samples
from eroica.producers.trace.steps import find_steps
from eroica.schemas.codec import decode, encode
from eroica.schemas.errors import InvalidInput
from eroica.schemas.sketch import sketch_of
from eroica.schemas.summaries import (
    Communicator,
    FunctionPattern,
    Identity,
    Metric,
    ReceiveWaits,
    Slot,
    StepRecord,
    Summary,
    SummaryError,
    Traffic,
)

pytestmark = pytest.mark.unit

MakeTrace = Callable[..., Path]
WHO = Identity(job="j", run_id="r", request="q", cls="c", rank=0, world_size=1, host="h")
SETTINGS = SummarySettings()


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def step(number: int, ts: float, dur: float = 100) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


HOST_JOB = [
    step(7, 0),
    event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 30),
    event("python_function", "read.py(3): recv_into", 5, 20),
    event("user_annotation", "DistributedDataParallel.forward", 30, 20),
    event("cpu_op", "aten::mm", 32, 10),
    event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 50, 20),
    event("user_annotation", "gloo:all_reduce", 65, 15, 2),
    event("user_annotation", "Optimizer.step#Adam.step", 80, 15),
]
DEVICE_JOB = [
    step(7, 0),
    event("user_annotation", "DistributedDataParallel.forward", 0, 20),
    event("cuda_runtime", "cudaLaunchKernel", 5, 2, correlation=1),
    event("kernel", "gemm", 10, 30, 7, correlation=1, stream=7),
    event("cuda_runtime", "cudaMalloc", 12, 6),
    event("user_annotation", "enumerate(DataLoader)#x", 40, 20),
    event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 20, 8, correlation=2, stream=8),
    event("cuda_runtime", "cudaLaunchKernel", 8, 2, correlation=2),
    event("cuda_runtime", "cudaDeviceSynchronize", 70, 20),
]


@pytest.mark.parametrize(
    ("events", "phases"),
    [
        (HOST_JOB, {"data": 30, "forward": 20, "backward": 20, "comm_wait": 10, "optimizer": 15, "other": 5}),
        (DEVICE_JOB, {"forward": 30, "comm_wait": 10, "data": 10, "idle": 50}),
    ],
    ids=["host", "device"],
)
def test_phases_divide_the_step(make_trace: MakeTrace, events: list[dict[str, Any]], phases: dict[str, float]) -> None:
    found = summarise(make_trace(events), WHO).steps[0]
    assert found.phases_us == phases
    assert sum(found.phases_us.values()) == found.duration_us == 100


def test_figures_of_a_device_job(make_trace: MakeTrace) -> None:
    summary = summarise(make_trace(DEVICE_JOB), WHO)
    figures = summary.figures
    assert (figures["compute_share"], figures["collective_share"], figures["overlap_share"], figures["void_share"]) == (
        0.3,
        0.2,
        0.5,
        0.6,
    )
    assert (figures["launch_delay_p50_us"], figures["launch_bound_share"], figures["kernels"]) == (13.5, 0.5, 2)
    assert {p.what: (p.count, p.total_us) for p in summary.pauses} == {"alloc": (1, 6), "sync": (1, 20), "loader": (1, 20)}


def test_an_allocator_that_waits_for_a_collective_does_not_allocate(make_trace: MakeTrace) -> None:
    events = [*DEVICE_JOB, event("cuda_runtime", "cudaFree", 45, 12), event("cuda_runtime", "cudaMalloc", 32, 10)]
    [alloc] = [p for p in summarise(make_trace(events), WHO).pauses if p.what == "alloc"]
    # The collective runs from 30 to 50: of 12 µs remain 7, and of 10 none.
    assert (alloc.count, alloc.total_us, alloc.max_us) == (3, 6 + 7, 7)


@pytest.mark.parametrize("name", ["trace.side.json", "trace.json.side.json"])
def test_garbage_collections_come_from_the_side_file(make_trace: MakeTrace, name: str) -> None:
    path = make_trace(HOST_JOB)
    side = path.with_name(name)
    side.write_text(json.dumps({"pauses": [{"kind": "gc", "count": 2, "total_us": 900, "max_us": 600}, {"kind": "x"}, 5]}))
    assert ("gc", 2, 900, 600) in [(p.what, p.count, p.total_us, p.max_us) for p in summarise(path, WHO).pauses]
    for broken in ("{", "[]", '{"pauses": 3}', "[" * 100_000):
        side.write_text(broken)
        assert "unreadable" in summarise(path, WHO).notes[-1]


@pytest.mark.parametrize(
    ("events", "source", "numbers"),
    [
        ([step(9, 100), step(8, 0)], "profiler_step", [8, 9]),
        ([event("gpu_user_annotation", "ProfilerStep#4", 0, 50), event("kernel", "k", 5, 5)], "gpu_profiler_step", [4]),
        ([event("user_annotation", "enumerate(DataLoader)#x", t, 5) for t in (0, 100, 200)], "loader", [0, 1]),
        ([event("user_annotation", "Optimizer.step#A", t, 5) for t in (0, 100, 200)], "optimizer", [0, 1]),
        (
            [event("kernel", f"nccl{n}Kernel_AllReduce_x", 10 * i, 5) for i, n in enumerate(["", "Dev"] * 4)],
            "collectives",
            [1, 2, 3],
        ),
        ([event("cpu_op", "aten::mm", 0, 5)], "none", [0]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_steps(make_trace: MakeTrace, events: list[dict[str, Any]], source: str, numbers: list[int]) -> None:
    steps = find_steps(read_trace(make_trace(events)))
    assert (steps.source, steps.number.tolist()) == (source, numbers)


def test_device_work_launched_in_the_last_step_stays_in_the_window(make_trace: MakeTrace) -> None:
    events = [
        step(7, 0),
        event("cuda_runtime", "cudaLaunchKernel", 95, 2, correlation=1),
        event("kernel", "gemm", 98, 50, 7, correlation=1),
    ]
    events.append(event("kernel", "gemm", 400, 50, 7, correlation=9))
    summary = summarise(make_trace(events), WHO)
    assert summary.window_us == 148
    assert summary.functions[0].name == "ProfilerStep"


def test_end_is_told_in_event_time(make_trace: MakeTrace) -> None:
    relative = summarise(make_trace(HOST_JOB, baseTimeNanoseconds=1_700_000_000_000_000_000), WHO)
    assert relative.ended_at_us == 1_700_000_000_000_100
    untold = summarise(make_trace(HOST_JOB), WHO)
    assert untold.ended_at_us == 100
    assert any("time of day" in note for note in untold.notes)


def test_the_same_file_gives_the_same_bytes(make_trace: MakeTrace) -> None:
    path = make_trace(DEVICE_JOB)
    assert encode(summarise(path, WHO)) == encode(summarise(path, WHO))
    assert encode(decode("summaries", encode(summarise(path, WHO)))) == encode(summarise(path, WHO))


def test_samples_give_mu_and_sigma_over_the_critical_execution(make_trace: MakeTrace) -> None:
    trace = read_trace(make_trace([step(7, 0), event("kernel", "gemm", 10, 50, 7)]))
    values = np.array([0.0, 0.0, 0.8, 0.6, 0.8, 0.6, 0.0, 0.0])
    samples = Samples("sm_clock", np.linspace(11, 59, values.size), values)
    summary = summarise_trace(trace, WHO, SETTINGS, Extras(samples=(samples,)))
    gemm = next(f for f in summary.functions if f.name == "gemm")
    assert (gemm.resource, gemm.mu, gemm.sigma) == ("sm_clock", 0.7, 0.1)


def test_extras_are_carried(make_trace: MakeTrace) -> None:
    metric = Metric(name="sm_clock", unit="MHz", mean=1400.0)
    summary = summarise(
        make_trace(HOST_JOB), WHO, SETTINGS, Extras(late_by_steps=2, blocked_ms=3.5, metrics=(metric,), notes=("n",))
    )
    assert (summary.late_by_steps, summary.figures["blocked_ms"], summary.metrics, summary.notes[0]) == (2, 3.5, [metric], "n")


@pytest.mark.parametrize(
    ("events", "who", "meta", "says"),
    [
        ([], WHO, {}, "no event with a duration"),
        ([event("cpu_op", "x", 0, 0)], WHO, {}, "no event with a duration"),
        (HOST_JOB, WHO, {"distributedInfo": {"rank": 3}}, "rank 3's"),
    ],
)
def test_what_cannot_be_summarised_is_an_error(make_trace: MakeTrace, events: Any, who: Identity, meta: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        summarise(make_trace(events, **meta), who)


@pytest.mark.parametrize(
    ("name", "meta", "rank", "world"),
    [
        ("trace.json", {"distributedInfo": {"rank": 3, "world_size": 8}}, 3, 8),
        ("rank5.json", {}, 5, 6),
        ("rank5.json", {"distributedInfo": {"rank": True}}, 5, 6),
    ],
)
def test_identity(make_trace: MakeTrace, name: str, meta: dict[str, Any], rank: int, world: int) -> None:
    path = make_trace(HOST_JOB, name, **meta)
    who = identity_from_trace(read_trace(path), path, job="j")
    assert (who.rank, who.world_size) == (rank, world)


def test_an_unknown_rank_is_asked_for(make_trace: MakeTrace) -> None:
    path = make_trace(HOST_JOB, "trace.json")
    with pytest.raises(InvalidInput, match="give the rank"):
        identity_from_trace(read_trace(path), path, job="j")
    assert identity_from_trace(read_trace(path), path, job="j", rank=4).rank == 4


MANY = np.arange(1.0, 40.0)


def large() -> Summary:
    functions = [
        FunctionPattern(
            name=f"function {i} {'x' * 100}", category="python", stack=i, beta=0.5 / (i + 1), count=i, sketch=sketch_of(MANY)
        )
        for i in range(400)
    ]
    slots = [
        Slot(op="all_reduce", index=i, step=[1, 2], start_us=[1.5, 2.5], duration_us=[3.5, i], exposed_us=[1.0, 2.0])
        for i in range(600)
    ]
    traffic = [Traffic(op="all_reduce", up_to_bytes=8, count=39, total_us=780.0, max_us=39.0, sketch=sketch_of(MANY))]
    return Summary(
        who=WHO, first_step=1, last_step=2, window_us=10.0, ended_at_us=1, functions=functions,
        stacks=[f"main;train {i};{'y' * 150}" for i in range(400)],
        communicators=[Communicator(name="0", slots=slots, traffic=traffic)],
        steps=[StepRecord(step=i, start_us=1.0, duration_us=2.0, phases_us={"data": 1.0}) for i in range(100)],
    )  # fmt: skip


@pytest.mark.parametrize("limit", [100_000, 50_000, 20_000, 5_000])
def test_a_large_summary_is_cut_and_says_so(limit: int) -> None:
    whole = large()
    cut = fit(whole, SummarySettings(max_bytes=limit))
    assert json_bytes(whole) > 150_000
    assert json_bytes(cut) <= limit
    assert cut.lost["functions_cut"] == 400 - len(cut.functions)
    for function in cut.functions:
        assert cut.stacks[function.stack] == whole.stacks[int(function.name.split()[1])]
    kept = sum(f.sketch is not None for f in cut.functions) + sum(t.sketch is not None for t in cut.communicators[0].traffic)
    assert kept + cut.lost["sketches_cut"] <= 401
    assert kept == 0 or all(f.sketch is not None for f in cut.functions if f.beta >= 0.01)
    slots = cut.communicators[0].slots
    assert (slots[0].index, slots[-1].index) == (0, 599)
    assert cut.functions[0].name == whole.functions[0].name


def test_small_summaries_stay_whole(make_trace: MakeTrace) -> None:
    summary = summarise(make_trace(DEVICE_JOB), WHO)
    assert fit(summary, SETTINGS) == summary
    assert wire_bytes(summary) < json_bytes(summary) < 10_000


def test_the_process_answers_whatever_happens(
    make_trace: MakeTrace, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    job = json.dumps(
        {
            "who": {k: getattr(WHO, k) for k in ("job", "run_id", "request", "cls", "rank", "world_size", "host")},
            "late_by_steps": 1,
        }
    )
    good, bad = make_trace(HOST_JOB), tmp_path / "none.json"
    assert main([str(good), "--job", job, "--nice", "0"]) == 0
    answer = decode("summaries", capfdbinary.readouterr().out)
    assert isinstance(answer, Summary) and answer.late_by_steps == 1
    assert main([str(bad), "--job", job, "--nice", "0"]) == 0
    answer = decode("summaries", capfdbinary.readouterr().out)
    assert isinstance(answer, SummaryError) and "none.json" in answer.error and answer.who == WHO
    with pytest.raises(SystemExit) as caught:
        main([str(good), "--job", "{}"])
    assert caught.value.code == 2


def test_receive_waits_come_from_the_side_file(make_trace: MakeTrace) -> None:
    path = make_trace(HOST_JOB)
    side = path.with_name("trace.side.json")
    fine = {"group": "ep", "ranks": [0, 2, 3], "count": 4, "total_us": [1, 2.5, 3], "max_us": [1, 1, 2]}
    side.write_text(json.dumps({"pauses": [], "receive_waits": [fine]}))
    [told] = summarise(path, WHO).receive_waits
    assert (told.group, told.sources, told.count, told.total_us, told.max_us) == ("ep", "0,2-3", 4, [1, 2.5, 3], [1, 1, 2])
    broken: list[Any] = [
        5,
        {},
        {**fine, "group": 3},
        {**fine, "ranks": [2, 0, 3]},
        {**fine, "ranks": [0, 0, 3]},
        {**fine, "ranks": [0, 2, True]},
        {**fine, "ranks": [0, 2, 10**9]},
        {**fine, "ranks": []},
        {**fine, "count": 0},
        {**fine, "count": "x"},
        {**fine, "total_us": [1, 2]},
        {**fine, "total_us": [1, 2, -3]},
        {**fine, "max_us": [1, 2, None]},
        {**fine, "max_us": [1, 2, float("nan")]},
    ]
    for entry in broken:
        side.write_text(json.dumps({"pauses": [], "receive_waits": [entry, fine]}))
        summary = summarise(path, WHO)
        assert summary.receive_waits == [told]
        assert "1 exchanges" in summary.notes[-1]
    side.write_text(json.dumps({"pauses": [], "receive_waits": 7}))
    assert "unreadable" in summarise(path, WHO).notes[-1]


def test_the_lesser_exchanges_go_first_where_a_summary_is_too_large(make_trace: MakeTrace) -> None:
    summary = summarise(make_trace(HOST_JOB), WHO)
    waits = [
        ReceiveWaits(group=f"e{n}", sources="0-999", count=1, total_us=[float(n)] * 1000, max_us=[float(n)] * 1000)
        for n in range(8)
    ]
    large = msgspec.structs.replace(summary, receive_waits=waits)
    settings = SummarySettings(max_bytes=json_bytes(large) - 20_000)
    cut = fit(large, settings)
    assert [one.group for one in cut.receive_waits] == ["e4", "e5", "e6", "e7"]
    assert cut.lost["receive_waits_cut"] == 4
