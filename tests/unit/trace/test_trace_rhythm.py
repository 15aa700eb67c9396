"""Steps by the rhythm of collectives, where nothing in a trace marks them: the true ones, or none."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.producers.trace.columns import ANNOTATION, KERNEL, Trace
from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.naming import host_collective
from eroica.producers.trace.reader import read_trace
from eroica.producers.trace.steps import Steps, find_steps

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]

MAIN, AUTOGRAD = 1, 2
SUM, PAIR = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ncclDevKernel_SendRecv(x)"

Work = tuple[int, Sequence[str], str, int]
"""Thread, host operations, then a collective and its elements."""


def events_of(program: Sequence[Work], end: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The trace of *program*: an operation takes 10 µs, the launch of a collective, too, and its kernel runs at once."""
    events: list[dict[str, Any]] = []
    now = 0

    def add(cat: str, name: str, tid: int, **args: Any) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": now, "dur": 10, "args": args})

    for number, (thread, operations, kernel, elements) in enumerate(program, 1):
        for name in operations:
            add("cpu_op", name, thread)
            now += 10
        add("cuda_runtime", "cudaLaunchKernel", thread, correlation=number)
        told = {"Collective name": "allreduce", "In msg nelems": elements} if elements >= 0 else {}
        add("kernel", kernel, 9, correlation=number, stream=7, **told)
        now += 10
    for name in end:
        add("cpu_op", name, MAIN)
        now += 10
    return events


def operations(*what: tuple[str, int]) -> list[str]:
    return [name for name, count in what for _ in range(count)]


FORWARD = operations(("aten::linear", 12), ("aten::relu", 6))
BACKWARD = operations(("autograd::engine::evaluate_function: LinearBackward0", 9), ("aten::mm", 18))
OPTIMIZER = operations(("aten::_foreach_add_", 4), ("aten::_foreach_addcdiv_", 4))
EMBED, LOSS = operations(("aten::embedding", 3)), operations(("aten::cross_entropy_loss", 2), ("aten::log_softmax", 2))

MICRO_BATCHES: list[Work] = [
    *[(MAIN, FORWARD, PAIR, -1), (MAIN, BACKWARD, PAIR, -1)] * 6,
    (MAIN, OPTIMIZER, SUM, 100),
]
DATA_PARALLEL: list[Work] = [
    (MAIN, [*OPTIMIZER, *EMBED], SUM, 3),
    (AUTOGRAD, [*FORWARD, *LOSS, *BACKWARD], SUM, 800),
    (AUTOGRAD, BACKWARD, SUM, 800),
    (AUTOGRAD, [*BACKWARD, "aten::embedding_dense_backward"], SUM, 300),
]
# Eight of one kind and size, told apart by the work between them alone.
EXCHANGES: list[Work] = [(MAIN, operations((f"aten::layer{k}", 3), ("aten::copy_", 2)), PAIR, -1) for k in range(8)]
ONE_EACH: list[Work] = [(MAIN, [*FORWARD, *BACKWARD, *OPTIMIZER], SUM, 500)]


@pytest.mark.parametrize(
    ("program", "per_step", "numbers"),
    [
        (MICRO_BATCHES * 3, 13, [0, 1, 2]),
        (DATA_PARALLEL * 4, 4, [0, 1, 2, 3]),
        (EXCHANGES * 3, 8, [0, 1, 2]),
        (ONE_EACH * 5, 1, [0, 1, 2, 3, 4]),
        # Something else first, as long as it is little.
        ([(MAIN, ["aten::ones"], SUM, 1)] * 2 + DATA_PARALLEL * 4, 4, [1, 2, 3, 4]),
        # The trace begins and ends within steps: autograd's thread tells where they end.
        (DATA_PARALLEL[2:] + DATA_PARALLEL * 4 + DATA_PARALLEL[:2], 4, [1, 2, 3, 4]),
        # Twice, or a mere tail, is no rhythm.
        (MICRO_BATCHES * 2, 0, []),
        (EXCHANGES * 2, 0, []),
        (EXCHANGES + ONE_EACH * 4, 0, []),
        (DATA_PARALLEL, 0, []),
    ],
)
def test_steps_are_the_true_ones_or_none(
    make_trace: Callable[..., Path], program: list[Work], per_step: int, numbers: list[int]
) -> None:
    trace = read_trace(make_trace(events_of(program)))
    steps = find_steps(trace)
    assert steps.source == ("collectives" if numbers else "none")
    if numbers:
        assert steps.number.tolist() == numbers
        assert set(np.diff(before(trace, bounds(steps))).tolist()) == {per_step}
        assert (steps.end_us[:-1] == steps.start_us[1:]).all()


def test_sizes_that_never_come_back_hide_no_rhythm(make_trace: Callable[..., Path]) -> None:
    dice = random.Random(3)
    program = [(thread, work, kernel, dice.randrange(10**6)) for thread, work, kernel, _ in EXCHANGES * 3]
    trace = read_trace(make_trace(events_of(program)))
    assert set(np.diff(before(trace, bounds(find_steps(trace)))).tolist()) == {8}


def test_a_program_that_never_repeats_has_no_rhythm(make_trace: Callable[..., Path]) -> None:
    dice = random.Random(1)
    program = [(MAIN, operations((f"aten::f{dice.randrange(40)}", 5)), dice.choice([SUM, PAIR]), -1) for _ in range(120)]
    assert find_steps(read_trace(make_trace(events_of(program)))).source == "none"


@pytest.mark.parametrize(("gaps", "found"), [((10, 300), "collectives"), ((10, 300, 70, 1_000, 40), "none")])
def test_without_operations_the_times_must_come_back(make_trace: Callable[..., Path], gaps: tuple[int, ...], found: str) -> None:
    times = np.cumsum([gaps[i % len(gaps)] * (1 + (i * 7 % 5 if found == "none" else 0)) for i in range(12)]).tolist()
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 0, "tid": 5 + i % 2, "ts": t, "dur": 5}
        for i, t in enumerate(times)
    ]
    steps = find_steps(read_trace(make_trace(events)))
    assert steps.source == found
    if found == "collectives":
        assert (steps.end_us - steps.start_us).tolist() == [310] * 5


# ---- real traces, without their marks -----------------------------------------------------------------------------------------

MARKS = ("ProfilerStep", "Optimizer.", "enumerate(DataLoader)", "## ")
LIBRARIES = re.compile(r"^(nccl|gloo):")


def without_marks(source: Path, target: Path, every_annotation: bool) -> Path:
    """A real trace without the marks of steps, or without any annotation of the program's."""

    def stays(event: dict[str, Any]) -> bool:
        name = str(event.get("name", ""))
        if name.startswith(MARKS):
            return False
        return not every_annotation or "user_annotation" not in str(event.get("cat")) or LIBRARIES.match(name) is not None

    document = json.loads(gzip.decompress(source.read_bytes()))
    document["traceEvents"] = [e for e in document["traceEvents"] if stays(e)]
    target.write_text(json.dumps(document))
    return target


def bounds(steps: Steps) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.concatenate((steps.start_us, steps.end_us[-1:]))


def before(trace: Trace, times: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    """How many collectives the host has issued at each time, by the trace's own launches or annotations."""
    rows = trace.rows(KERNEL)
    rows = rows[trace.named(rows, kernel_collective)]
    launch = trace.launch[rows]
    issued = trace.ts_us[launch[launch >= 0]]
    if not issued.size:
        rows = trace.rows(ANNOTATION)
        issued = trace.ts_us[rows[trace.named(rows, host_collective)]]
    return [int((issued <= t).sum()) for t in times.tolist()]


RHYTHMIC = [
    *[(f"torchrec_sleep_1s/host0_410{n}.pt.trace.json.gz", 3) for n in range(4)],
    *[(f"torchrec_sleep_20ms/host0_410{n}.pt.trace.json.gz", 3) for n in range(4)],
    ("single/nccl_data.json.gz", 3),
    ("single/ns_resolution.json.gz", 5),
]
NOT = ["dlrm_8rank/worker3_step_12.1694128201557.pt.trace.json.gz", "single/rank_non_gpu.json.gz"]
NOT += [f"hta_2_of_128/sampled_rank-{n}.json.gz" for n in (0, 1)]  # two steps only


@pytest.mark.parametrize("every_annotation", [False, True], ids=["no marks", "no annotations"])
@pytest.mark.parametrize(("place", "count"), RHYTHMIC)
def test_real_steps_without_their_marks(
    real_trace: Callable[[str], Path], tmp_path: Path, place: str, count: int, every_annotation: bool
) -> None:
    marked = read_trace(real_trace(place))
    true = find_steps(marked)
    assert true.source == "profiler_step"
    trace = read_trace(without_marks(real_trace(place), tmp_path / "rank0.json", every_annotation))
    steps = find_steps(trace)
    assert (steps.source, steps.number.size) == ("collectives", count)
    found = before(marked, bounds(steps) + trace.origin_us - marked.origin_us)
    assert found == before(marked, bounds(true))


@pytest.mark.parametrize("place", NOT)
def test_real_traces_without_a_rhythm_are_one_step(real_trace: Callable[[str], Path], tmp_path: Path, place: str) -> None:
    assert find_steps(read_trace(without_marks(real_trace(place), tmp_path / "rank0.json", True))).source == "none"


def test_gloo_s_operations_are_told_apart_by_their_sizes(real_trace: Callable[[str], Path], tmp_path: Path) -> None:
    source = real_trace("single/cpu_only_rank34_of_300.json.gz")
    trace = read_trace(without_marks(source, tmp_path / "rank0.json", False))
    steps = find_steps(trace)
    assert before(trace, bounds(steps)) == [2, 4, 6, 8, 10]
    assert steps.number.tolist() == [1, 2, 3, 4]  # of the first the trace holds nothing but its collectives
