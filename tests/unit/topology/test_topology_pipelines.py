from __future__ import annotations

from itertools import pairwise

import pytest

from eroica.topology.pipelines import pipelines

pytestmark = pytest.mark.unit


def both(*line: int) -> list[tuple[int, int]]:
    """Neighbours that send both ways."""
    return [pair for a, b in pairwise(line) for pair in ((a, b), (b, a))]


@pytest.mark.parametrize(
    ("sends", "found"),
    [
        pytest.param([], [], id="nobody sends"),
        pytest.param([(0, 1), (1, 2), (2, 3)], [[0, 1, 2, 3]], id="forward alone"),
        pytest.param([(3, 2), (2, 1), (1, 0)], [[0, 1, 2, 3]], id="backward alone"),
        pytest.param([*both(0, 2, 4), *both(1, 3, 5)], [[0, 2, 4], [1, 3, 5]], id="two replicas"),
        pytest.param(both(0, 1, 2, 3, 0), [[0, 1, 2, 3]], id="a ring of both ways: several stages a rank"),
        pytest.param([(0, 1), (1, 2), (2, 3), (3, 0)], [], id="a ring of one way: peers"),
        pytest.param([*both(0, 1, 2), (0, 3)], [], id="more than two neighbours, and unequal"),
        pytest.param([*both(0, 1), *both(0, 2), *both(0, 3)], [], id="a star"),
        pytest.param([(a, b) for a in range(4) for b in range(4)], [], id="all to all"),
        pytest.param([*both(0, 1, 2), *both(3, 4)], [], id="of unequal lengths"),
        pytest.param(both(0, 2, 1), [], id="ranks that do not rise"),
        pytest.param([(0, 1)], [[0, 1]], id="two, forward alone"),
        pytest.param(both(0, 1), [], id="two that send both ways: stages or peers"),
        pytest.param([*both(0, 3), *both(1, 4), *both(2, 5)], [[0, 3], [1, 4], [2, 5]], id="three pairs"),
        pytest.param([(5, 5)], [], id="to oneself"),
    ],
)
def test_pipelines(sends: list[tuple[int, int]], found: list[list[int]]) -> None:
    assert pipelines(sends) == found
    assert pipelines([*sends[::-1], *sends]) == found
