"""Steps that a trace does not mark, cut as another worker's: the same collectives lie in each, or nothing is cut."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeTrace
from test_trace_rhythm import before, bounds, without_marks

from eroica.producers.trace.columns import Trace
from eroica.producers.trace.pulse import borrowed_steps, pulse_of
from eroica.producers.trace.reader import read_trace
from eroica.producers.trace.steps import Steps, find_steps

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


def borrow(trace: Trace, *lenders: Trace) -> Steps | None:
    return borrowed_steps(trace, pulse_of(trace, find_steps(trace)), [pulse_of(t, find_steps(t)) for t in lenders])


def later(path: Path, by_us: float) -> Path:
    """The same trace on a clock that is ahead."""
    trace = json.loads(path.read_text(encoding="utf-8"))
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += by_us
    path.write_text(json.dumps(trace), encoding="utf-8")
    return path


@pytest.mark.parametrize("ahead_us", [0.0, 90e3, -3600e6])
@pytest.mark.parametrize("every_annotation", [False, True], ids=["no marks", "no annotations"])
@pytest.mark.parametrize("name", ["torchrec_sleep_1s", "torchrec_sleep_20ms"])
def test_real_ranks_lend_each_other_their_steps(
    real_trace: Callable[[str], Path], tmp_path: Path, name: str, every_annotation: bool, ahead_us: float
) -> None:
    for own, other in ((1, 0), (2, 3), (0, 2)):
        source = real_trace(f"{name}/host0_410{own}.pt.trace.json.gz")
        marked = read_trace(source)
        true = find_steps(marked)
        trace = read_trace(later(without_marks(source, tmp_path / "rank0.json", every_annotation), ahead_us))
        steps = borrow(trace, read_trace(real_trace(f"{name}/host0_410{other}.pt.trace.json.gz")))
        assert steps is not None
        assert (steps.source, steps.number.tolist()) == ("others", true.number.tolist())
        found = before(marked, bounds(steps) + trace.origin_us - marked.origin_us - ahead_us)
        assert found == before(marked, bounds(true))


STEPS, IN_STEP = 6, 5


def events(
    rank: int, chance: random.Random, kernel: str = "AllReduce", marked: bool = True, lost: int = 0
) -> list[dict[str, Any]]:
    """A rank that issues five collectives a step, each at a time of its own; all ranks' end together, when *chance* says.

    :param lost: collectives before the trace began.
    """
    out: list[dict[str, Any]] = []
    own = random.Random(rank)
    ends, now = [], 1_000.0
    for _ in range(STEPS * IN_STEP):
        now += chance.uniform(800, 1_200)
        ends.append(now)
    for i, end in enumerate(ends):
        issued = end - own.uniform(50, 400)
        if i < lost:
            continue
        launch = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 0,
            "tid": 1,
            "args": {"correlation": i + 1},
        }
        ran = {"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{kernel}_Sum_f32_RING_LL(x)", "pid": 1, "tid": 7}
        out.append({**launch, "ts": issued, "dur": 5})
        out.append({**ran, "ts": issued + 5, "dur": end - issued - 5, "args": {"correlation": i + 1, "stream": 7}})
    for k in range(STEPS) if marked else ():
        begin = ends[k * IN_STEP] - 500
        end = ends[(k + 1) * IN_STEP] - 500 if k + 1 < STEPS else ends[-1] + 50
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{k + 11}", "pid": 0, "tid": 1}
        out.append({**mark, "ts": begin, "dur": end - begin})
    return out


@pytest.mark.parametrize(("lost", "first", "held"), [(0, 11, 5), (2, 11, 3), (3, 12, 5), (7, 12, 3), (8, 13, 5)])
def test_a_trace_that_lost_its_beginning_is_held_against_the_right_collectives(
    make_trace: MakeTrace, lost: int, first: int, held: int
) -> None:
    lender = read_trace(make_trace(events(0, random.Random(5)), "rank0.json"))
    trace = read_trace(make_trace(events(1, random.Random(5), marked=False, lost=lost), "rank1.json"))
    steps = borrow(trace, lender)
    assert steps is not None
    assert steps.number.tolist() == list(range(first, 11 + STEPS))
    issued = pulse_of(trace, steps).issued - trace.origin_us
    counts = [int(((a <= issued) & (issued < b)).sum()) for a, b in zip(steps.start_us, steps.end_us, strict=True)]
    assert counts == [held, *[IN_STEP] * (steps.number.size - 1)]


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (events(1, random.Random(6), marked=False), "ends at other times"),
        (events(1, random.Random(5), "AllGather", marked=False), "other kinds"),
        (events(1, random.Random(5), marked=False, lost=STEPS * IN_STEP - 2), "too few"),
        ([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 0, "tid": 1, "ts": 0, "dur": 100}], "no collectives"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_does_not_fit_is_not_cut(make_trace: MakeTrace, own: list[dict[str, Any]], why: str) -> None:
    lender = read_trace(make_trace(events(0, random.Random(5)), "rank0.json"))
    assert borrow(read_trace(make_trace(events(1, random.Random(5), marked=False), "rank1.json")), lender) is not None, why
    assert borrow(read_trace(make_trace(own, "rank1.json")), lender) is None
    assert borrow(lender) is None


def test_of_several_lenders_the_one_that_fits_best_counts(make_trace: MakeTrace) -> None:
    stranger = read_trace(make_trace(events(2, random.Random(9)), "rank2.json"))
    lender = read_trace(make_trace(events(0, random.Random(5)), "rank0.json"))
    trace = read_trace(make_trace(events(1, random.Random(5), marked=False), "rank1.json"))
    both, one = borrow(trace, stranger, lender), borrow(trace, lender)
    assert both is not None
    assert one is not None
    assert np.array_equal(both.start_us, one.start_us)
