"""Steps that a program names itself, where no profiler marks them."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import MakeTrace

from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.naming import loop_step, stable_name
from eroica.producers.trace.reader import read_trace
from eroica.producers.trace.steps import find_steps

pytestmark = pytest.mark.unit


def spans(*names: str, each: float = 80.0, apart: float = 100.0) -> list[dict[str, Any]]:
    mark = {"ph": "X", "cat": "user_annotation", "pid": 0, "tid": 1, "dur": each}
    work = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 0, "tid": 1, "dur": 10}
    return [e for i, n in enumerate(names) for e in ({**mark, "name": n, "ts": apart * i}, {**work, "ts": apart * i + 5})]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["step_7", "step_8", "step_9"], [7, 8, 9]),
        (["iteration 0", "iteration 1"], [0, 1]),
        (["train_step#3", "train_step#4"], [3, 4]),
        (["train_step", "train_step", "train_step"], [0, 1, 2]),
        (["execute_context_1(512)_generation_0(0)", "execute_context_0(0)_generation_1(1)"], [0, 1]),
    ],
)
def test_annotations_that_count_are_steps(make_trace: MakeTrace, names: list[str], numbers: list[int]) -> None:
    steps = find_steps(read_trace(make_trace(spans(*names))))
    assert (steps.source, steps.number.tolist()) == ("annotation", numbers)
    assert steps.start_us.tolist() == [100.0 * i for i in range(len(names))]
    assert steps.end_us.tolist() == [*(100.0 * i for i in range(1, len(names))), 100.0 * (len(names) - 1) + 80.0]


@pytest.mark.parametrize(
    "events",
    [
        spans("step_1"),
        spans("step_1", "step_3"),
        spans("step_0", "step_1", "step_0", "step_1"),
        spans("step_0", "step_1", each=150.0),
        spans("forward", "forward"),
        spans("train_step_no_grad", "train_step_no_grad"),
        spans("step/forward", "step/backward"),
    ],
    ids=["one", "a gap", "micro-steps", "nested", "phases", "another name", "parts"],
)
def test_annotations_that_do_not_count_are_none(make_trace: MakeTrace, events: list[dict[str, Any]]) -> None:
    assert find_steps(read_trace(make_trace(events))).source == "none"


def test_steps_that_touch_are_steps_though_epoch_times_are_rounded(make_trace: MakeTrace) -> None:
    began = [1_700_000_000_000_000.0 + 100.125 * i for i in range(4)]
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"step_{i}", "pid": 1, "tid": 1, "ts": at, "dur": 100.4}
        for i, at in enumerate(began)
    ]
    steps = find_steps(read_trace(make_trace(events)))
    assert (steps.source, steps.number.tolist()) == ("annotation", [0, 1, 2, 3])


def test_a_profilers_own_marks_come_first(make_trace: MakeTrace) -> None:
    events = spans("ProfilerStep#4", "ProfilerStep#5", each=90.0) + spans("step_0", "step_1")
    steps = find_steps(read_trace(make_trace(events)))
    assert (steps.source, steps.number.tolist()) == ("profiler_step", [4, 5])


@pytest.mark.parametrize("name", ["step_5", "iteration 5", "train_step#5"])
def test_a_numbered_step_is_one_function_in_all_steps(name: str) -> None:
    assert loop_step(name) == 5
    assert stable_name(name) == stable_name(name.replace("5", "16"))


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("hcom_allReduce__503_0_1", "all_reduce"),
        ("hcom_reduceScatter__428_0_1", "reduce_scatter"),
        ("hcom_alltoallv__9_0_1", "all_to_all"),
        ("hccl_alltoall", "all_to_all"),
        ("oneccl_allgatherv_large", "all_gather"),
    ],
)
def test_other_libraries_name_their_collectives(name: str, op: str) -> None:
    found = kernel_collective(name)
    assert found is not None
    assert found.op == op
