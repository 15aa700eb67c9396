from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.producers.trace.collectives import bus_factor
from eroica.producers.trace.pattern import HEAVY_SHARE, critical_execution

pytestmark = pytest.mark.unit


def reference(value: list[int]) -> int:
    """Smallest g by trying every sub-interval ([P] Alg. 1 to the letter)."""
    total, best = sum(value), len(value)
    for a in range(len(value)):
        for b in range(a + 1, len(value) + 1):
            if sum(value[a:b]) >= HEAVY_SHARE * total:
                run = longest = 0
                for v in value[a:b]:
                    run = run + 1 if v == 0 else 0
                    longest = max(longest, run)
                best = min(best, longest)
    return best


@given(st.lists(st.integers(0, 3), min_size=1, max_size=14).filter(any))
def test_critical_execution_is_the_published_algorithm(value: list[int]) -> None:
    found = critical_execution(np.array(value, float))
    part = value[found]
    assert part[0] > 0 and part[-1] > 0
    assert sum(part) >= HEAVY_SHARE * sum(value)
    run = longest = 0
    for v in part:
        run = run + 1 if v == 0 else 0
        longest = max(longest, run)
    assert longest <= reference(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0, 0, 5, 5, 5, 5, 0, 0, 0, 1], (2, 6)),
        ([1, 0, 1, 0, 1], (0, 5)),
        ([0, 0, 0], (0, 0)),
        ([], (0, 0)),
        ([0, 2, 0], (1, 2)),
    ],
)
def test_critical_execution_by_hand(value: list[float], expected: tuple[int, int]) -> None:
    found = critical_execution(np.array(value, float))
    assert (found.start, found.stop) == expected


@pytest.mark.parametrize(
    ("op", "size", "gbps"),
    [
        ("all_reduce", 2, 8.0),  # 2(n-1)/n = 1
        ("all_reduce", 4, 12.0),
        ("all_gather", 4, 6.0),
        ("reduce_scatter", 8, 7.0),
        ("all_to_all", 2, 4.0),
        ("broadcast", 4, 8.0),
        ("send", 2, 8.0),
        ("all_reduce", 1, 0.0),
        ("all_reduce", 0, 0.0),
    ],
)
def test_bus_bandwidth(op: str, size: int, gbps: float) -> None:
    # 1 MB in 1 ms is 8 Gb/s of algorithm bandwidth.
    assert 8 * bus_factor(op, size) == pytest.approx(gbps)
