"""Sketches: the merge of the parts is the sketch of the whole, and quantiles are as near as promised."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.schemas.errors import SchemaError
from eroica.schemas.sketch import ACCURACY, HIGHEST, LOWEST, MAX_BINS, Sketch, check, merge, quantile, sketch_of

pytestmark = pytest.mark.unit

durations = st.lists(st.floats(0, 1e12), max_size=120)
near = st.lists(st.floats(1.0, 500.0), min_size=1, max_size=200)


@given(st.lists(durations, max_size=6), st.randoms())
def test_the_merge_of_the_parts_is_the_sketch_of_the_whole(parts: list[list[float]], dice: object) -> None:
    whole = sketch_of(np.array([v for part in parts for v in part], float))
    sketches = [sketch_of(np.array(part, float)) for part in parts]
    assert merge(sketches) == whole
    dice.shuffle(sketches)  # type: ignore[attr-defined]
    half = len(sketches) // 2
    assert merge([merge(sketches[:half]), merge(sketches[half:])]) == whole
    check(whole)


@given(near, st.floats(0, 1))
def test_quantiles_are_within_the_accuracy(values: list[float], share: float) -> None:
    ordered = sorted(values)
    exact = ordered[max(1, math.ceil(share * len(ordered) - 1e-9)) - 1]
    assert quantile(sketch_of(np.array(values)), share) == pytest.approx(exact, rel=ACCURACY * 1.0001)


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=300))
def test_size_is_bounded_and_nothing_is_lost(values: list[float]) -> None:
    sketch = sketch_of(np.array(values))
    assert len(sketch.bins) == len(sketch.counts) <= MAX_BINS
    assert sketch.total == len(values)


def test_the_upper_end_stays_exact_where_bins_are_merged() -> None:
    values = np.geomspace(1e-2, 1e9, 5_000)
    sketch = sketch_of(values)
    assert len(sketch.bins) == MAX_BINS
    for share in (0.99, 0.9, 0.8):
        assert quantile(sketch, share) == pytest.approx(np.quantile(values, share), rel=ACCURACY * 1.02)
    assert quantile(sketch, 0.0) > values[0]


@pytest.mark.parametrize("odd", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_odd_values_have_a_bin(odd: float) -> None:
    sketch = sketch_of(np.array([odd, 1.0]))
    assert sketch.total == 2
    assert sketch.bins in ([LOWEST, 0], [0, HIGHEST])
    assert quantile(sketch, 0.0) in (0.0, pytest.approx(1.0, rel=ACCURACY * 1.01))


def test_the_tail_of_few_values_is_their_largest() -> None:
    sketch = sketch_of(np.array([2.5, 3.3, 6.0]))
    assert quantile(sketch, 0.99) == pytest.approx(6.0, rel=ACCURACY)
    assert quantile(sketch, 0.5) == pytest.approx(3.3, rel=ACCURACY)


def test_of_nothing_there_are_no_quantiles() -> None:
    assert quantile(sketch_of(np.empty(0)), 0.5) == 0.0
    assert merge([]) == Sketch()


@pytest.mark.parametrize(
    ("bins", "counts"),
    [([1, 2], [1]), ([2, 1], [1, 1]), ([1, 1], [1, 1]), ([1], [0]), ([1], [-3]), ([HIGHEST + 1], [1]), ([LOWEST - 1], [1]),
     (list(range(MAX_BINS + 1)), [1] * (MAX_BINS + 1))],
)  # fmt: skip
def test_what_is_no_sketch_is_refused(bins: list[int], counts: list[int]) -> None:
    with pytest.raises(SchemaError, match="do not ascend"):
        merge([msgspec.convert({"bins": bins, "counts": counts}, Sketch)])
