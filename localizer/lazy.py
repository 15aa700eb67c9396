"""Columns of many chunks that are put together when somebody asks for them: most of a large request nobody looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.localizer.packed import PATTERN_FLOATS, PackedChunk
from eroica.localizer.tables import Floats, Ints


class Columns(Mapping[str, Floats]):
    """Columns by name; each is made by *make* when it is asked for first, and kept."""

    def __init__(self, names: Sequence[str], make: Callable[[str], Floats]) -> None:
        self._names, self._make = tuple(names), make
        self._made: dict[str, Floats] = {}

    def __getitem__(self, name: str) -> Floats:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class _Part:
    """A chunk's patterns: rows in the frame of its workers (-1: left out), and functions in the frame of its own."""

    rows: Ints
    functions: Ints
    chunk: PackedChunk


@dataclass(frozen=True)
class Patterns:
    """The functions of all workers, one entry per (worker, function). What rules ask for of some rows is read from their chunks.

    Entries of workers that are left out are not among them.
    """

    parts: list[_Part]
    _kept: dict[str, Ints] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, parts: Sequence[PackedChunk], rows: Sequence[Ints], functions: Sequence[Ints]) -> Patterns:
        """Patterns of *parts*, with each part's rows and functions in the frame."""
        return cls([_Part(*one) for one in zip(rows, functions, parts, strict=True)])

    @property
    def row(self) -> Ints:
        """Row of each entry."""
        return self._ints("row", lambda part: part.rows[part.chunk.pattern_row])

    @property
    def function(self) -> Ints:
        """Function of each entry."""
        return self._ints("function", lambda part: part.functions[part.chunk.pattern_function])

    def columns(self) -> Columns:
        """The figures, by the names of ``packed.PATTERN_FLOATS``."""
        return Columns(PATTERN_FLOATS, lambda name: self._joined([part.chunk.pattern[name] for part in self.parts]))

    def table(self, name: str, place: Ints, places: int, functions: int) -> Floats:
        """A figure of some workers, summed by worker and function, shape (places, functions).

        :param place: of each row of the frame, shape (n,): its row in the table, -1 if it is not wanted.
        """
        out = np.zeros(places * functions)
        place = np.append(place, -1)  # rows that are left out are -1 themselves
        for part in self.parts:
            mine = place[part.rows]
            if mine.max(initial=-1) < 0:
                continue
            at, told = mine[part.chunk.pattern_row], part.chunk.pattern[name]
            cell = at * functions + part.functions[part.chunk.pattern_function]
            if mine.min() < 0:
                cell, told = cell[at >= 0], told[at >= 0]
            np.add.at(out, cell, told)
        return out.reshape(places, functions)

    def _ints(self, name: str, of: Callable[[_Part], Ints]) -> Ints:
        if name not in self._kept:
            self._kept[name] = self._joined([of(part) if part.rows.size else part.chunk.pattern_row for part in self.parts])
        return self._kept[name]

    def _joined(self, columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """One column, without the entries of workers that are left out."""
        kept = []
        for part, column in zip(self.parts, columns, strict=True):
            whole = part.rows.min(initial=0) >= 0
            kept.append(column if whole else column[part.rows[part.chunk.pattern_row] >= 0])
        return np.concatenate(kept) if kept else np.empty(0)
