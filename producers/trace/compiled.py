"""The compiled parts, if they were built with the package: the typed decoder's columns ten times as fast, and what numpy computes
slowly.

The scanner reads runs of events that are as they should be and refuses all others, which then go the decoder's way. So the two
give the same columns, and a machine without a compiler only reads more slowly. Every computation has a reference in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from eroica.producers.trace.beginnings import has_halves
from eroica.producers.trace.events import JSON_ERRORS, Args

try:
    from eroica.producers.trace import _scan
except ImportError:  # no compiler, or no binary for this machine, when the package was installed
    _scan = None  # type: ignore[assignment]
try:
    from eroica.producers.trace import _columns
except ImportError:
    _columns = None  # type: ignore[assignment]

COMPILED = _scan is not None
"""Whether the compiled scanner is there."""
_REFUSES_HALVES = hasattr(_scan, "REFUSES_HALVES")
COLUMN_TYPES = tuple(np.dtype(t) for t in ("i4", "i1", "f8", "f8", "i4", "i4", "i8", "f8"))
"""Name, category, start, duration, thread, stream, correlation, bytes."""


Column = npt.NDArray[np.float64]


def _nest(start: Column, ends: Column, deepest: int) -> tuple[npt.NDArray[np.int64], ...]:
    found = _columns.nest(start.tobytes(), ends.tobytes(), deepest)
    return tuple(np.frombuffer(column, np.int64) for column in found)


def _covered(start: Column, end: Column, before: Column, t: Column) -> Column:
    return np.frombuffer(_columns.covered(start.tobytes(), end.tobytes(), before.tobytes(), t.tobytes()), np.float64)


def _united(start: Column, end: Column) -> tuple[Column, Column]:
    low, high = _columns.united(start.tobytes(), end.tobytes())
    return np.frombuffer(low, np.float64), np.frombuffer(high, np.float64)


def _common(start: Column, end: Column, other_start: Column, other_end: Column) -> tuple[Column, Column]:
    low, high = _columns.common(start.tobytes(), end.tobytes(), other_start.tobytes(), other_end.tobytes())
    return np.frombuffer(low, np.float64), np.frombuffer(high, np.float64)


covered_compiled = _covered if hasattr(_columns, "covered") else None
"""The compiled form of :func:`eroica.producers.trace.intervals.covered`, if it is there."""
united_compiled = _united if hasattr(_columns, "united") else None
"""The compiled form of :func:`eroica.producers.trace.intervals.united`, if it is there."""
common_compiled = _common if hasattr(_columns, "common") else None
"""The compiled form of :func:`eroica.producers.trace.intervals.common`, if it is there."""
nest_compiled = _nest if hasattr(_columns, "nest") else None
"""The compiled form of :func:`eroica.producers.trace.nesting.nest`, if it is there."""


def count_of(block: bytes, byte: int) -> int:
    """How often *byte* stands in *block*."""
    if hasattr(_columns, "count"):
        return _columns.count(block, byte)
    return int(np.count_nonzero(np.frombuffer(block, dtype=np.uint8) == byte))


_ANY = msgspec.json.Decoder()
_ARGS = msgspec.json.Decoder(Args)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Value → running number, for names, categories, (pid, tid) and streams; a value without one gets the next."""

    names: dict[Any, int]
    categories: dict[str, int]
    threads: dict[Any, int]
    streams: dict[Any, int]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of events in columns, as :data:`COLUMN_TYPES` lists them."""

    position: int
    """Where the run ended: behind the data, or at the bracket that closes the list."""
    rows: int
    columns: tuple[npt.NDArray[Any], ...]
    speaking: list[tuple[int, str, Args]]
    """Row, name and arguments of the events that seem to be about a collective."""


class RunScanner:
    """Reads runs of one file; numbers of texts are remembered from run to run."""

    def __init__(self, numbers: Numbers, wordy: tuple[int, ...]) -> None:
        """:param wordy: categories whose arguments are used; below 31."""
        self._numbers = numbers
        self._scanner = _scan.Scanner()
        self._wordy = sum(1 << category for category in wordy)
        self._asked: tuple[Callable[[bytes], int], ...] = (self._name, self._category, self._thread, self._stream)

    def scan(self, data: bytes, start: int, stop: int) -> Run | None:
        """Read the events of *data* from *start*: to *stop*, or, if that is -1, to the bracket that closes their list.

        A run with beginnings and ends (``ph: B``, ``E``) is refused.

        :returns: None if the run is refused; then nothing has changed.
        """
        if not _REFUSES_HALVES and has_halves(data, start, stop):
            return None
        marks = [len(table) for table in self._open()]
        found = self._scanner.scan(data, start, stop, self._wordy, *self._asked)
        if found is None:
            self.undo(marks)
            return None
        position, rows, columns, speaking = found
        try:
            said = [(row, _text(data[c:d]), _ARGS.decode(data[a:b])) for row, a, b, c, d in speaking]
        except JSON_ERRORS:
            self.undo(marks)
            return None
        return Run(position, rows, tuple(np.frombuffer(c, t) for c, t in zip(columns, COLUMN_TYPES, strict=True)), said)

    def marks(self) -> list[int]:
        """How many numbers are given out."""
        return [len(table) for table in self._open()]

    def undo(self, marks: list[int]) -> None:
        """Take back the numbers that were given out since *marks*."""
        self._scanner.forget()
        for table, mark in zip(self._open(), marks, strict=True):
            while len(table) > mark:
                table.popitem()

    def _open(self) -> tuple[dict[Any, int], ...]:
        return self._numbers.names, self._numbers.threads, self._numbers.streams

    def _name(self, raw: bytes) -> int:
        return self._numbers.names[_text(raw)]

    def _category(self, raw: bytes) -> int:
        return self._numbers.categories[_text(raw)]

    def _thread(self, raw: bytes) -> int:
        pid, tid = raw.split(b"\0")
        return self._numbers.threads[_ANY.decode(pid), _ANY.decode(tid)]

    def _stream(self, raw: bytes) -> int:
        return self._numbers.streams[_ANY.decode(raw)]


def _text(raw: bytes) -> str:
    return str(_ANY.decode(b'"%b"' % raw))
