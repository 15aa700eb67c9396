"""Sets of intervals on one time axis, as sorted arrays of starts and ends (µs); everything vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eroica.producers.trace.columns import Floats
from eroica.producers.trace.compiled import common_compiled, covered_compiled, united_compiled


@dataclass(frozen=True)
class Intervals:
    """Disjoint half-open intervals ``[start, end)``, ascending. Made by :func:`union`; measures and overlaps follow."""

    start: Floats
    end: Floats

    @cached_property
    def _before(self) -> Floats:
        return np.concatenate(([0.0], np.cumsum(self.end - self.start)))

    def total(self) -> float:
        """Measure of the set."""
        return float(self._before[-1])

    def covered_until(self, t: Floats) -> Floats:
        """Measure of the set below each *t*, which has any order."""
        if self.start.size == 0:
            return np.zeros_like(t)
        return (covered_compiled or covered)(self.start, self.end, self._before, t)

    def overlap(self, start: Floats, end: Floats) -> Floats:
        """Measure of the part of each ``[start, end)`` that lies in the set. Postcondition: 0 ≤ overlap ≤ end − start."""
        if self.start.size == 0 or start.size == 0:
            return np.zeros_like(start)
        before, after = self.covered_until(start), np.empty_like(end)
        # Where one ends as the next begins (leaves of a call tree do) the measure is known.
        np.copyto(after[:-1], before[1:])
        alone = np.flatnonzero(np.concatenate((end[:-1] != start[1:], [True])))
        after[alone] = self.covered_until(end[alone])
        return np.minimum(np.maximum(after - before, 0.0), np.maximum(end - start, 0.0))

    def minus(self, other: Intervals) -> Intervals:
        """The part of this set that *other* does not cover."""
        if self.start.size == 0 or other.start.size == 0:
            return self
        low, high = self.start[0], self.end[-1]
        gap_start = np.concatenate(([low], other.end))
        gap_end = np.concatenate((other.start, [high]))
        return self.both(Intervals(*_clean(gap_start, gap_end)))

    def both(self, other: Intervals) -> Intervals:
        """The part that lies in both sets."""
        if self.start.size == 0 or other.start.size == 0:
            return EMPTY
        return Intervals(*(common_compiled or common)(self.start, self.end, other.start, other.end))

    def contains(self, t: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each *t* lies in the set."""
        if self.start.size == 0:
            return np.zeros(t.shape, np.bool_)
        k = np.searchsorted(self.start, t, "right") - 1
        return (k >= 0) & (t < self.end[np.maximum(k, 0)])

    def clipped(self, low: float, high: float) -> Intervals:
        """The part within ``[low, high)``."""
        return Intervals(*_clean(np.clip(self.start, low, high), np.clip(self.end, low, high)))


def covered(start: Floats, end: Floats, before: Floats, t: Floats) -> Floats:
    """Measure below each *t* of disjoint intervals, ascending, at least one, with the measure *before* each. The compiled
    function gives the same.
    """
    k = np.searchsorted(start, t, "right")
    last = np.maximum(k - 1, 0)
    inside = np.minimum(t, end[last]) - start[last]
    return np.where(k > 0, before[last] + inside, 0.0)


def union(start: Floats, end: Floats) -> Intervals:
    """The set that these intervals cover together; any order, empty ones allowed."""
    return Intervals(*(united_compiled or united)(start, end))


def united(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Starts and ends of :func:`union`. The compiled function gives the same."""
    start, end = _clean(start, end)
    if start.size == 0:
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    end = np.maximum.accumulate(end)
    new = np.concatenate(([True], start[1:] > end[:-1]))
    last = np.concatenate((np.flatnonzero(new)[1:] - 1, [start.size - 1]))
    return start[new], end[last]


def common(start: Floats, end: Floats, other_start: Floats, other_end: Floats) -> tuple[Floats, Floats]:
    """Starts and ends of what lies in two sets, of at least one interval each. The compiled function gives the same."""
    # Each interval of the one meets a run of the other's.
    first = np.searchsorted(other_end, start, "right")
    count = np.maximum(np.searchsorted(other_start, end, "left") - first, 0)
    mine = np.repeat(np.arange(count.size), count)
    theirs = np.arange(mine.size) + np.repeat(first - np.cumsum(count) + count, count)
    return united(np.maximum(start[mine], other_start[theirs]), np.minimum(end[mine], other_end[theirs]))


def quantile(ordered: Floats, share: float) -> float:
    """Quantile of ascending values by linear interpolation, as numpy's default; its own function takes 100 µs a call."""
    place = share * (ordered.size - 1)
    low = int(place)
    a, b = float(ordered[low]), float(ordered[min(low + 1, ordered.size - 1)])
    return a + (b - a) * (place - low)


def _clean(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    keep = end > start
    return start[keep], end[keep]


EMPTY = Intervals(np.empty(0), np.empty(0))
