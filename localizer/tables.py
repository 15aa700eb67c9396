"""The tables of a frame: columns of equal length, one entry a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Names(Sequence[str]):
    """One name a row, from a table of the different ones: ``code`` is each row's index into ``names``."""

    __slots__ = ("code", "names")

    def __init__(self, code: Ints, names: list[str]) -> None:
        self.code, self.names = code, names

    @classmethod
    def of(cls, names: list[str]) -> Names:
        """From one name a row."""
        return cls(*coded(names))

    def __getitem__(self, row: Any) -> Any:
        return self.names[int(self.code[row])]

    def __len__(self) -> int:
        return int(self.code.size)

    def __iter__(self) -> Iterator[str]:
        return map(self.names.__getitem__, self.code.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Coords:
    """Coordinates in the job's layout, as far as each worker knows them."""

    axes: list[tuple[str, ...]]
    """Sets of axes that workers know, each in its order."""
    code: Ints
    """Shape (n,): which of them a worker knows."""
    values: Ints
    """Shape (n, most axes of one worker): its place along each, 0 beyond those it knows."""

    @classmethod
    def of(cls, known: Sequence[dict[str, int]]) -> Coords:
        """From each worker's axes and places."""
        axes: dict[tuple[str, ...], int] = {}
        code = np.array([axes.setdefault(tuple(one), len(axes)) for one in known], dtype=np.int64)
        most = max(map(len, axes), default=0)
        values = np.array([[*one.values(), *(0,) * (most - len(one))] for one in known], dtype=np.int64)
        return cls(list(axes), code, values.reshape(len(known), most))

    @classmethod
    def joined(cls, parts: Sequence[Coords]) -> Coords:
        """Those of *parts*, one after the other."""
        axes: dict[tuple[str, ...], int] = {}
        of = [np.array([axes.setdefault(one, len(axes)) for one in part.axes], dtype=np.int64) for part in parts]
        most = max((part.values.shape[1] for part in parts), default=0)
        values = [
            part.values if part.values.shape[1] == most else np.pad(part.values, ((0, 0), (0, most - part.values.shape[1])))
            for part in parts
        ]
        code = [own[part.code] if own.size else part.code for own, part in zip(of, parts, strict=True)]
        return cls(list(axes), np.concatenate(code), np.concatenate(values))

    def at(self, rows: Ints) -> Coords:
        """Those of some rows."""
        return Coords(self.axes, self.code[rows], self.values[rows])

    def each(self) -> Iterator[dict[str, int]]:
        """One mapping a worker."""
        for code, values in zip(self.code.tolist(), self.values.tolist(), strict=True):
            yield dict(zip(self.axes[code], values, strict=False))


def coded(names: Sequence[str]) -> tuple[Ints, list[str]]:
    """Each name as its place among all different ones, which ascend."""
    known = sorted(set(names))
    place = {name: i for i, name in enumerate(known)}
    return np.array([place[name] for name in names], dtype=np.int64), known


@dataclass(frozen=True, slots=True)
class Executions:
    """One entry per (worker, execution of a collective), ordered by worker, step and start.

    ``instance`` numbers the execution that the members share; ``kind`` numbers (kind of communicator, operation, index):
    what is done at the same point of a step, in whichever communicator; ``place`` is that for one class and occurrence. A send
    and its receive are one instance. Times in µs, by each worker's own clock.
    """

    row: Ints
    step: Ints
    communicator: Ints
    instance: Ints
    kind: Ints
    place: Ints
    start_us: Floats
    duration_us: Floats
    exposed_us: Floats

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(self.row.size)


@dataclass(frozen=True, slots=True)
class Meetings:
    """Executions by what their members share: columns over the instances of a frame, ascending."""

    transfer_us: Floats
    """What the member took that waited least: who comes last waits for nobody."""
    members: Ints
    """How many entries it has."""
    communicator: Ints
    kind: Ints
    bytes: Ints
    """Message size, as the member tells it that waited least; 0 if it is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Pauses(Sequence[tuple[int, str, int, float, float]]):
    """Software pauses, ascending by row and kind: (row, what, count, total µs, max µs); the columns are of equal length."""

    row: Ints
    what: Ints
    """Index into ``kinds``."""
    kinds: list[str]
    counts: Ints
    total_us: Floats
    max_us: Floats

    def by_kind(self) -> dict[str, Ints]:
        """Kind → its entries, ascending by row."""
        found = {kind: np.flatnonzero(self.what == code) for code, kind in enumerate(self.kinds)}
        return {kind: at for kind, at in found.items() if at.size}

    def __len__(self) -> int:
        return int(self.row.size)

    def __getitem__(self, at: Any) -> Any:
        return (
            int(self.row[at]), self.kinds[int(self.what[at])], int(self.counts[at]), float(self.total_us[at]),
            float(self.max_us[at]),
        )  # fmt: skip

    def __iter__(self) -> Iterator[tuple[int, str, int, float, float]]:
        what = [self.kinds[i] for i in self.what.tolist()]
        return zip(self.row.tolist(), what, self.counts.tolist(), self.total_us.tolist(), self.max_us.tolist(), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class Readings(Sequence[tuple[int, str, float]]):
    """Means of counters and sensors, ascending by row and name: (row, name, mean); the columns are of equal length."""

    row: Ints
    name: Ints
    """Index into ``names``."""
    names: list[str]
    mean: Floats

    @classmethod
    def of(cls, entries: Iterable[tuple[int, str, float]]) -> Readings:
        """From (row, name, mean), in any order."""
        ordered = sorted(entries)
        names = sorted({name for _, name, _ in ordered})
        place = {name: i for i, name in enumerate(names)}
        return cls(
            np.array([row for row, _, _ in ordered], dtype=np.int64),
            np.array([place[name] for _, name, _ in ordered], dtype=np.int64),
            names,
            np.array([mean for _, _, mean in ordered], dtype=np.float64),
        )

    def __len__(self) -> int:
        return int(self.row.size)

    def __getitem__(self, at: Any) -> Any:
        return int(self.row[at]), self.names[int(self.name[at])], float(self.mean[at])

    def __iter__(self) -> Iterator[tuple[int, str, float]]:
        return zip(self.row.tolist(), [self.names[i] for i in self.name.tolist()], self.mean.tolist(), strict=True)


def split_metric(full: str) -> tuple[str, str, str]:
    """Device, name and unit of a reading that is called ``device:name[unit]``."""
    head, _, unit = full.rpartition("[")
    device, _, name = (head or full).rpartition(":")
    return device, name, unit.rstrip("]") if head else ""
