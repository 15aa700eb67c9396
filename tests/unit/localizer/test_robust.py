"""Medians that are made for large tables are numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from eroica.localizer.robust import column_medians, median, row_medians, sorted_columns

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2), (5, 3), (6, 4), (101, 8), (40, 9), (7, 20)])
def test_medians_are_those_of_numpy(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    for table in (rng.lognormal(0, 2, shape), rng.integers(0, 3, shape).astype(float), np.zeros(shape)):
        before = table.copy()
        assert median(table) == np.median(table)
        assert column_medians(table).tolist() == np.median(table, axis=0).tolist()
        assert row_medians(table).tolist() == np.median(table, axis=1).tolist()
        assert np.stack(sorted_columns(table), axis=1).tolist() == np.sort(table, axis=1).tolist()
        assert np.array_equal(table, before), "nothing is written to"
