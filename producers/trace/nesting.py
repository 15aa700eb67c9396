"""Call trees of a thread: who encloses whom, which function is the leaf at each moment, and the call path as one number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.producers.trace.columns import Floats, Ints
from eroica.producers.trace.compiled import nest_compiled
from eroica.producers.trace.ordering import dense

MAX_DEPTH = 2_000
"""Levels followed; Python's own recursion limit is 1,000 and operators add few."""
_MAX_MENDING_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class CallTree:
    """Events of one thread as a forest. Arrays have one entry per given event, in the given order.

    ``parent`` is -1 for a root. Segments are the moments at which an event is the leaf: its self time.
    """

    start: Floats
    end: Floats
    parent: Ints
    depth: Ints
    segment_event: Ints
    segment_start: Floats
    segment_end: Floats


def build_tree(start: Floats, end: Floats) -> CallTree:
    """Nest events by time.

    Clocks round, so an event may end a little after the one that encloses it (it is cut), or begin a little before its
    elder sibling has ended (that one is cut): whichever moves less.

    :param start: ascending; among equal starts the longer event comes first.
    """
    end = end.copy()
    depth, parent, ended = _nest(start, end)
    for _ in range(_MAX_MENDING_ROUNDS):
        child = np.flatnonzero((parent >= 0) & (end > end[np.maximum(parent, 0)]))
        if child.size == 0:
            break
        above = parent[child]
        overshoot = end[child] - end[above]
        overlap = end[above] - start[child]
        cut_child = overshoot <= overlap
        sibling = ~cut_child
        # The elder sibling first: a later, smaller cut of the same event must win.
        np.minimum.at(end, above[sibling], start[child[sibling]])
        end[child[cut_child]] = np.minimum(end[child[cut_child]], end[above[cut_child]])
        end = np.maximum(end, start)
        depth, parent, ended = _nest(start, end)
    event, low, high = _segments(start, end, parent, ended)
    return CallTree(start, end, parent, depth, event, low, high)


def path_ids(tree: CallTree, label: Ints, part_of_path: npt.NDArray[np.bool_]) -> tuple[Ints, list[tuple[int, int]]]:
    """Give every event the number of its call path.

    :param label: name id per event, ≥ 0.
    :param part_of_path: events that add themselves to the path; others have their parent's.
    :returns: path number per event (0 is the empty path) and, per path number, (path above, label); entry 0 is (-1, -1).
    """
    path = np.zeros(label.size, np.int64)
    table: list[tuple[int, int]] = [(-1, -1)]
    known: dict[tuple[int, int], int] = {}
    span = int(label.max()) + 1 if label.size else 1
    for level in _levels(tree.depth):
        above = np.where(tree.parent[level] >= 0, path[tree.parent[level]], 0)
        path[level] = above
        adding = part_of_path[level]
        keys, inverse = dense(above[adding] * span + label[level][adding], len(table) * span)
        numbers = np.empty(keys.size, np.int64)
        for i, key in enumerate(keys.tolist()):
            pair = divmod(key, span)
            if pair not in known:
                known[pair] = len(table)
                table.append(pair)
            numbers[i] = known[pair]
        path[level[adding]] = numbers[inverse]
    return path, table


def _levels(depth: Ints) -> list[Ints]:
    """Events of each depth, ascending by start."""
    if depth.size == 0:
        return []
    order = np.argsort(depth.astype(np.int16), kind="stable")  # 16 bits: a radix sort
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def _nest(start: Floats, end: Floats) -> tuple[Ints, Ints, Ints]:
    """Depth and parent of each event: an event's parent is the last one a level above that began before it; and, per event that
    has a duration, how many have ended when it begins.
    """
    n = start.size
    real = np.flatnonzero(end > start)
    ended, level, above = (nest_compiled or nest)(start[real], np.sort(end[real]), MAX_DEPTH)
    if real.size == n:
        return level, above, ended
    depth = np.zeros(n, np.int64)
    parent = np.full(n, -1, np.int64)
    depth[real] = level
    parent[real] = np.where(above >= 0, real[above], -1)
    return depth, parent, ended


def nest(start: Floats, ends: Floats, deepest: int) -> tuple[Ints, Ints, Ints]:
    """Events ascending by start, none empty, and their ends in order of their own: how many have ended when each begins, its
    depth and its parent. The compiled function gives the same.
    """
    ended = np.searchsorted(ends, start, "right")
    depth = np.minimum(np.maximum(np.arange(start.size) - ended, 0), deepest)
    parent = np.full(start.size, -1, np.int64)
    by_depth = {int(depth[level[0]]): level for level in _levels(depth)}
    for d, level in by_depth.items():
        upper = by_depth.get(d - 1)
        if upper is not None:
            k = np.searchsorted(upper, level) - 1
            parent[level] = np.where(k >= 0, upper[np.maximum(k, 0)], -1)
    return ended, depth, parent


def _segments(start: Floats, end: Floats, parent: Ints, ended: Ints) -> tuple[Ints, Floats, Floats]:
    """Cut the time axis at every start and end; between two cuts the leaf is the event that began last and has not ended."""
    real = np.flatnonzero(end > start)
    if real.size == 0:
        return np.empty(0, np.int64), np.empty(0), np.empty(0)
    # Both lists are merged in order; at one moment ends come before starts, and of equal ends the inner (later begun) one first.
    ending = real[::-1][np.argsort(end[real[::-1]], kind="stable")]
    at_start = np.arange(real.size) + ended
    free = np.ones(2 * real.size, np.bool_)
    free[at_start] = False
    at_end = np.flatnonzero(free)
    time, leaf_after = np.empty(2 * real.size), np.empty(2 * real.size, np.int64)
    time[at_end], time[at_start] = end[ending], start[real]
    leaf_after[at_end], leaf_after[at_start] = parent[ending], real
    keep = (time[1:] > time[:-1]) & (leaf_after[:-1] >= 0)
    return leaf_after[:-1][keep], time[:-1][keep], time[1:][keep]
