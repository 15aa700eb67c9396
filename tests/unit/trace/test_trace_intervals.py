from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.producers.trace.intervals import Intervals, union
from eroica.producers.trace.nesting import build_tree, path_ids

pytestmark = pytest.mark.unit

GRID = 40
PAIRS = st.lists(st.tuples(st.integers(0, GRID), st.integers(0, 12)), max_size=12)


def made(pairs: list[tuple[int, int]]) -> Intervals:
    start = np.array([a for a, _ in pairs], float)
    return union(start, start + np.array([d for _, d in pairs], float))


def cells(pairs: list[tuple[int, int]]) -> set[int]:
    """Unit cells that the intervals cover: the reference."""
    return {t for a, d in pairs for t in range(a, a + d)}


def cells_of(intervals: Intervals) -> set[int]:
    return {t for a, b in zip(intervals.start, intervals.end, strict=True) for t in range(int(a), int(b))}


@given(PAIRS)
def test_union_is_disjoint_and_covers_the_same(pairs: list[tuple[int, int]]) -> None:
    found = made(pairs)
    assert cells_of(found) == cells(pairs)
    assert found.total() == len(cells(pairs))
    assert (found.start[1:] > found.end[:-1]).all()


@given(PAIRS, PAIRS)
def test_set_operations(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert cells_of(made(a).minus(made(b))) == cells(a) - cells(b)
    assert cells_of(made(a).both(made(b))) == cells(a) & cells(b)
    assert cells_of(made(a).clipped(5, 17)) == cells(a) & set(range(5, 17))


@given(PAIRS, st.integers(0, GRID), st.integers(0, 20))
def test_overlap_and_membership(pairs: list[tuple[int, int]], low: int, length: int) -> None:
    found = made(pairs)
    expected = len(cells(pairs) & set(range(low, low + length)))
    assert found.overlap(np.array([float(low)]), np.array([float(low + length)]))[0] == expected
    assert bool(found.contains(np.array([low + 0.5]))[0]) == (low in cells(pairs))


def nested(draw_depths: list[int]) -> tuple[list[float], list[float], list[int]]:
    """Properly nested calls from a walk of depths: an event begins where the walk rises and ends where it falls."""
    starts, ends, parents, stack, time = [], [], [], [], 0.0
    for depth in [*draw_depths, 0]:
        while len(stack) > depth:
            time += 1
            ends[stack.pop()] = time
        while len(stack) < depth:
            time += 1
            parents.append(stack[-1] if stack else -1)
            stack.append(len(starts))
            starts.append(time)
            ends.append(0.0)
    return starts, ends, parents


@given(st.lists(st.integers(0, 6), max_size=30))
def test_nesting_finds_parents_and_self_time(depths: list[int]) -> None:
    starts, ends, parents = nested(depths)
    tree = build_tree(np.array(starts), np.array(ends))
    assert tree.parent.tolist() == parents
    own = np.bincount(tree.segment_event, tree.segment_end - tree.segment_start, len(starts)) if starts else np.empty(0)
    for i in range(len(starts)):
        children = sum(ends[j] - starts[j] for j in range(len(starts)) if parents[j] == i)
        assert own[i] == ends[i] - starts[i] - children


@pytest.mark.parametrize(
    ("events", "parents", "own"),
    [
        pytest.param([(0, 10), (2, 10.001)], [-1, 0], [2, 8], id="a child ends a little late"),
        pytest.param([(0, 5.001), (5, 8)], [-1, -1], [5, 3], id="an elder sibling ends a little late"),
        pytest.param([(0, 10), (1, 4.5), (4, 9)], [-1, 0, 0], [2, 3, 5], id="siblings overlap inside a parent"),
        pytest.param([(0, 10), (3, 3), (3, 5)], [-1, -1, 0], [8, 0, 2], id="an empty event"),
        pytest.param([(0, 5), (5, 9)], [-1, -1], [5, 4], id="back to back"),
        pytest.param([(0, 5), (0, 5)], [-1, 0], [0, 5], id="the same span twice"),
    ],
)
def test_clocks_that_round(events: list[tuple[float, float]], parents: list[int], own: list[float]) -> None:
    tree = build_tree(np.array([a for a, _ in events], float), np.array([b for _, b in events], float))
    assert tree.parent.tolist() == parents
    time = np.bincount(tree.segment_event, tree.segment_end - tree.segment_start, len(events))
    assert time == pytest.approx(own)


def test_paths_are_numbered_once_and_skip_what_is_no_part() -> None:
    # main(0) calls op(1) which calls leaf(2); main calls leaf directly; a second thread of the same shape has the same paths.
    start, end = np.array([0.0, 1, 2, 5]), np.array([10.0, 4, 3, 6])
    tree = build_tree(start, end)
    path, table = path_ids(tree, np.array([0, 1, 2, 2]), np.array([True, False, True, True]))
    assert path[2] == path[3] != path[0]
    assert table[path[2]] == (path[0], 2)
    assert path[1] == path[0]
