"""The executions of some chunks, as they lie in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from eroica.localizer.packed import PackedChunk
from eroica.localizer.tables import Floats, Ints


class Block:
    """The entries of some chunks, without those of workers that are left out; in each chunk by worker, step and start."""

    def __init__(self, parts: Sequence[PackedChunk], rows: Sequence[Ints], slot_of: Sequence[Ints]) -> None:
        self._parts, self._slot_of = parts, slot_of
        row = np.concatenate(
            [mine[p.executions.row] if mine.size else p.executions.row for mine, p in zip(rows, parts, strict=True)]
        )
        self._keep = None if row.min(initial=0) >= 0 else row >= 0
        self.row: Ints = row if self._keep is None else row[self._keep]

    def ints(self, name: str) -> Ints:
        """A column of ``PackedExecutions``."""
        column: Ints = np.concatenate([getattr(p.executions, name) for p in self._parts])
        return column if self._keep is None else column[self._keep]

    def floats(self, name: str) -> Floats:
        """A column of ``PackedExecutions``, µs."""
        column: Floats = np.concatenate([getattr(p.executions, name) for p in self._parts])
        return column if self._keep is None else column[self._keep]

    @cached_property
    def step(self) -> Ints:
        """Step of each entry."""
        return self.ints("step")

    @cached_property
    def told_slot(self) -> Ints:
        """Slot as the workers tell it: a send and its receive differ."""
        column: Ints = np.concatenate(
            [of[p.executions.slot] if of.size else p.executions.slot for of, p in zip(self._slot_of, self._parts, strict=True)]
        )
        return column if self._keep is None else column[self._keep]
