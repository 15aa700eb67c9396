"""Counting sorts give what numpy's own give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.localizer.numbering import distinct, first_seen, heads_of, numbered, stable_order, sums

pytestmark = pytest.mark.unit

columns = st.integers(0, 2**53).flatmap(lambda top: st.lists(st.tuples(st.integers(0, top), st.integers(-3, 3)), max_size=60))


@given(columns)
def test_numbers_are_those_of_unique(rows: list[tuple[int, int]]) -> None:
    one, two = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
    number, count = numbered(one, two, one)
    wanted = {row: i for i, row in enumerate(sorted(set(rows)))}
    assert (number.tolist(), count) == ([wanted[row] for row in rows], len(wanted))
    seen, first = first_seen(one, two)
    order = list(dict.fromkeys(rows))
    assert seen.tolist() == [order.index(row) for row in rows]
    assert [rows[i] for i in first.tolist()] == order
    values, place = distinct(two)
    assert values.tolist() == sorted(set(two.tolist()))
    assert values[place].tolist() == two.tolist()


@pytest.mark.parametrize("top", [1, 300, 70_000, 2**33, 2**62])
@pytest.mark.parametrize("size", [0, 1, 5_000, 20_000])
def test_a_stable_order_is_numpys(size: int, top: int) -> None:
    key = np.random.default_rng(size).integers(0, top, size)
    order = stable_order(key)
    assert np.array_equal(order, np.argsort(key, kind="stable"))
    heads = heads_of(key[order])
    assert np.array_equal(key[order][heads], np.unique(key))


def test_sequence_numbers_may_be_anything() -> None:
    far = np.array([2**53, 0, 2**53, 7], dtype=np.int64)
    assert numbered(far, far, far, far)[0].tolist() == [2, 0, 2, 1]


def test_sums_are_added_in_their_order() -> None:
    assert sums(np.array([2, 0, 2]), np.array([1e16, 1.0, 1.0]), 4).tolist() == [1.0, 0.0, 1e16, 0.0]
    assert sums(np.empty(0, np.int64), np.empty(0), 2).dtype == np.float64
