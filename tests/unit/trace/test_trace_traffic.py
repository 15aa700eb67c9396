"""Bandwidth by kind, size and type, against figures by hand; quantiles of functions in mergeable form, against the trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eroica.producers.trace import SummarySettings, identity_from_trace, read_trace, summarise_trace
from eroica.producers.trace.collectives import Operation
from eroica.producers.trace.traffic import MAX_CLASSES, size_class, traffic
from eroica.schemas.sketch import ACCURACY, merge, quantile, sketch_of

pytestmark = pytest.mark.unit

ONE = Operation(
    row=0, group="0", op="all_reduce", backend="nccl", step=0, issued_us=0.0, start_us=0.0, duration_us=100.0, exposed_us=100.0,
    bytes=1_000_000, dtype="Float", seq=0, size=4,
)  # fmt: skip


@pytest.mark.parametrize(("size", "up_to"), [(-1, 0), (0, 0), (1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_sizes_by_powers_of_two(size: int, up_to: int) -> None:
    assert size_class(size) == up_to


def test_rates_by_hand() -> None:
    slow = replace(ONE, duration_us=300.0)
    (entry,) = traffic([ONE, slow])
    assert (entry.op, entry.up_to_bytes, entry.dtype, entry.count, entry.bytes) == ("all_reduce", 2**20, "Float", 2, 2_000_000)
    assert entry.algorithm_gbps == pytest.approx(40.0)  # 2 MB in 400 µs
    assert entry.bus_gbps == pytest.approx(60.0)  # times 2 (4 - 1) / 4
    assert entry.best_bus_gbps == pytest.approx(120.0)  # 1 MB in 100 µs
    assert (entry.total_us, entry.max_us, entry.var_us2) == (400.0, 300.0, 10_000.0)
    assert entry.sketch is not None
    assert quantile(entry.sketch, 1.0) == pytest.approx(300.0, rel=ACCURACY)


def test_kinds_sizes_and_types_are_apart() -> None:
    other = [replace(ONE, op="all_gather"), replace(ONE, dtype="Half"), replace(ONE, bytes=10)]
    entries = traffic([ONE, *other, ONE])
    assert [(e.op, e.up_to_bytes, e.dtype, e.count) for e in entries] == [
        ("all_gather", 2**20, "Float", 1),
        ("all_reduce", 16, "Float", 1),
        ("all_reduce", 2**20, "Float", 2),
        ("all_reduce", 2**20, "Half", 1),
    ]
    assert [e.sketch is None for e in entries] == [True, True, False, True]


@pytest.mark.parametrize("changed", [{"bytes": 0}, {"duration_us": 0.0}, {"size": 0}])
def test_what_is_unknown_has_no_rate(changed: dict[str, int]) -> None:
    (entry,) = traffic([replace(ONE, **changed)])  # type: ignore[arg-type]
    assert entry.bus_gbps == entry.best_bus_gbps == 0.0


def test_the_classes_that_took_longest_are_kept() -> None:
    many = [replace(ONE, op=f"op{i:03}", duration_us=float(i)) for i in range(100)]
    assert [e.op for e in traffic(many)] == [f"op{i:03}" for i in range(100 - MAX_CLASSES, 100)]


def test_of_nothing_nothing() -> None:
    assert traffic([]) == []


@pytest.mark.parametrize("place", ["single/nccl_data.json.gz", "hta_2_of_128/sampled_rank-0.json.gz"])
def test_real_sketches_hold_every_execution(place: str, real_trace: Callable[[str], Path]) -> None:
    trace = read_trace(real_trace(place))
    summary = summarise_trace(trace, identity_from_trace(trace, place, job="j", rank=0), SummarySettings())
    assert any(f.sketch is not None for f in summary.functions)
    for f in summary.functions:
        assert (f.sketch is None) == (f.count == 1)
        if f.sketch is not None:
            assert f.sketch.total == f.count
            assert quantile(f.sketch, 1.0) == pytest.approx(f.max_us, rel=ACCURACY * 1.01, abs=0.06)
    for c in summary.communicators:
        assert sum(t.count for t in c.traffic) == sum(s.count for s in c.slots)
        assert sum(t.total_us for t in c.traffic) == pytest.approx(sum(s.total_us for s in c.slots), abs=1.0)
        every = merge([t.sketch or sketch_of(np.array([t.max_us])) for t in c.traffic])
        assert every.total == sum(s.count for s in c.slots)
        if all(s.index >= 0 for s in c.slots):
            assert every == sketch_of(np.array([d for s in c.slots for d in s.duration_us]))
