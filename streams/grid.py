"""The open steps of one shard: a small matrix of ranks by steps that slides forward."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

MAX_CELLS = 16_777_216
"""Most cells (ranks × open steps) of a shard, 128 MiB: bounds what one lagging rank can make us hold."""
MAX_OPEN_STEPS = 8_192
"""Most open steps of a shard whatever its size: several minutes of a fast job."""
_FIRST_STEPS = 64
_UNSEEN = -1


class StepGrid:
    """Durations of the steps that are not closed yet, one value per (rank, step).

    The largest of several values for one cell stays, so repetition and order never matter. Steps before the first closed one may
    still come in any order; afterwards anything below ``head`` is late.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._limit = max(_FIRST_STEPS, min(MAX_OPEN_STEPS, MAX_CELLS // max(ranks, 1)))
        self._cells: Int64 = np.full((ranks, min(_FIRST_STEPS, self._limit)), _UNSEEN, dtype=np.int64)
        self._base = 0
        self._front = [0] * ranks
        """Row → its first open step without a value."""
        self._reach = [0] * ranks
        """Row → one past its highest step with a value."""
        self._behind = ranks
        """Rows that have not reported ``head``."""
        self._closed_any = False
        self.head = -1
        """Lowest open step; -1 before the first value."""
        self.end = 0
        """One past the highest step with a value."""

    @property
    def cells(self) -> int:
        """What it holds, in cells of 8 bytes."""
        return int(self._cells.size)

    def put(self, row: int, first_step: int, values: Int64) -> tuple[int, int]:
        """Take in the same consecutive steps of neighbouring ranks.

        :param row: of the first rank.
        :param values: durations, shape (ranks, steps).
        :returns: how many values were late, and how many too far ahead to be held.
        """
        ranks, n = values.shape
        if self.head < 0:
            self._base = self.head = first_step
            self.end = first_step
            self._front = [first_step] * self._ranks
        late = 0
        if first_step < self.head:
            if self._closed_any:
                late = min(n, self.head - first_step)
                values = values[:, late:]
                first_step += late
            elif not self._extend_down(first_step):
                return ranks * n, 0
        held = n - late
        last = first_step + held
        ahead = last - self.head - self._limit
        ahead = min(held, ahead) if ahead > 0 else 0
        if ahead:
            values = values[:, : held - ahead]
            last -= ahead
        if held == ahead:
            return ranks * late, ranks * ahead
        if last - self._base > self._cells.shape[1]:
            self._make_room(last)
        cells = self._cells[row : row + ranks, first_step - self._base : last - self._base]
        np.maximum(cells, values, out=cells)
        if last > self.end:
            self.end = last
        self._advance(range(row, row + ranks), first_step, last)
        return ranks * late, ranks * ahead

    def full_until(self) -> int:
        """One past the last step of the leading run that every rank has reported."""
        return self.head if self._behind or self.head < 0 else min(self._front)

    def close(self, until: int) -> tuple[int, Int64, Int64]:
        """Close the steps ``head..until-1``.

        :returns: the first step, the ranks that reported each (shape (n,)), and the cells (shape (ranks, n), -1 where
            unseen); the cells are a view, valid until the next call.
        """
        first = self.head
        stop = min(until, self.end)
        cells = self._cells[:, first - self._base : max(first, stop) - self._base]
        head = self.head = max(first, until)
        self.end = max(self.end, head)
        self._closed_any = True
        if min(self._front) < head:
            self._front = [step if step >= head else self._first_unseen(row, head) for row, step in enumerate(self._front)]
        self._behind = self._front.count(head)
        return first, np.add.reduce(cells >= 0, axis=0), cells

    def _advance(self, rows: range, first_step: int, last: int) -> None:
        """Rows *rows* have values for ``first_step..last-1``."""
        front, reach, head = self._front, self._reach, self.head
        for row in rows:
            step, high = front[row], reach[row]
            if first_step <= step < last:
                front[row] = last if high <= last else self._first_unseen(row, last)
                if step == head:
                    self._behind -= 1
            if high < last:
                reach[row] = last

    def _first_unseen(self, row: int, start: int) -> int:
        """The first step from *start* on for which *row* has no value."""
        reach = self._reach[row]
        if reach <= start:
            return start
        unseen = np.flatnonzero(self._cells[row, start - self._base : reach - self._base] < 0)
        return start + int(unseen[0]) if unseen.size else reach

    def _extend_down(self, first_step: int) -> bool:
        """Move the window's start down to *first_step* while nothing is closed; false if that is too far."""
        if self.end - first_step > self._limit:
            return False
        shift = self._base - first_step
        width = max(self._cells.shape[1], self.end - first_step)
        held = self.end - self._base
        cells = np.full((self._ranks, width), _UNSEEN, dtype=np.int64)
        cells[:, shift : shift + held] = self._cells[:, :held]
        self._cells = cells
        self._base = self.head = first_step
        self._front, self._behind = [first_step] * self._ranks, self._ranks
        return True

    def _make_room(self, last: int) -> None:
        """Drop the closed steps in front and widen until *last* fits."""
        skip = self.head - self._base
        held = max(0, min(self.end - self._base, self._cells.shape[1]) - skip)
        width = self._cells.shape[1]
        while width < last - self.head:
            width = min(2 * width, self._limit)
        kept = self._cells[:, skip : skip + held]
        if width == self._cells.shape[1]:
            kept, cells = kept.copy(), self._cells
        else:
            cells = np.empty((self._ranks, width), dtype=np.int64)
        cells[:, :held], cells[:, held:] = kept, _UNSEEN
        self._cells, self._base = cells, self.head
