"""All classes of a request as one set of numpy columns: what the rules look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.localizer.numbering import distinct, heads_of, stable_order
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import CommunicatorName, FunctionName, StackRow

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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
    bytes: Ints
    """Message size of the slot; 0 if it is not known."""
    start_us: Floats
    duration_us: Floats
    exposed_us: Floats

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(self.row.size)


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


@dataclass(frozen=True, slots=True)
class Meetings:
    """Executions by what their members share: columns over the instances of a frame, ascending."""

    first: Ints
    """An entry of each instance: that of the member that waited least."""
    transfer_us: Floats
    """What that member took: who comes last waits for nobody."""
    members: Ints
    """How many entries it has."""
    communicator: Ints
    kind: Ints


@dataclass(frozen=True, slots=True)
class Members:
    """Executions by worker and communicator."""

    order: Ints
    """Entries by worker, communicator and their own order."""
    heads: Ints
    """Where each pair of worker and communicator begins in ``order``."""


@dataclass(frozen=True)
class Frame:
    """Rows are the workers that gave a summary, ascending rank. Columns of a table have equal length."""

    request: ProfileRequest
    run_id: str
    ranks: Ints
    """Shape (n,)."""
    cls: Ints
    """Class of each row, index into ``classes``."""
    classes: list[str]
    hosts: list[str]
    host_of_rank: dict[int, str]
    devices: list[str]
    coords: list[dict[str, int]]
    """Coordinates in the job's layout, as far as the worker knows them."""
    expected: Ints
    missing: Ints
    late: Ints
    errors: dict[str, str]
    notes: list[str]
    inputs: dict[str, str]
    event_time_us: int
    functions: list[FunctionName]
    pattern_row: Ints
    pattern_function: Ints
    pattern: dict[str, Floats]
    step_row: Ints
    step: Ints
    step_us: Floats
    step_start_us: Floats
    """Offset of the step in its worker's window, by the worker's own clock."""
    phases_us: dict[str, Floats]
    """Phase → its time in each entry of ``step``; those of an entry add up to its duration where a worker tells any."""
    communicators: list[CommunicatorName]
    executions: Executions
    kinds: list[str]
    """``Executions.kind`` in words: operation and place in the step."""
    pauses: Pauses
    metrics: Readings
    stacks: list[StackRow] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of workers."""
        return int(self.ranks.size)

    @property
    def coverage(self) -> float:
        """Share of the expected workers that gave a summary."""
        return self.size / self.expected.size if self.expected.size else 0.0

    @cached_property
    def roles(self) -> list[int]:
        """Classes that have workers, ascending."""
        found: list[int] = np.flatnonzero(np.bincount(self.cls)).tolist()
        return found

    @cached_property
    def host_of(self) -> tuple[Ints, list[str]]:
        """Each row's host as an index, and the hosts by their first row."""
        names = list(dict.fromkeys(self.hosts))
        place = {name: i for i, name in enumerate(names)}
        return np.array([place[name] for name in self.hosts], dtype=np.int64), names

    @cached_property
    def meetings(self) -> Meetings:
        """All instances. The transfer of one of which a single member was seen is an upper bound."""
        e = self.executions
        order = stable_order(e.instance)
        heads = heads_of(e.instance[order])
        took = e.duration_us[order]
        shortest = np.minimum.reduceat(took, heads) if heads.size else took
        members = np.diff(np.append(heads, e.size))
        best = np.flatnonzero(took == np.repeat(shortest, members))
        # Of members that waited equally little the first entry counts.
        first = order[best[np.searchsorted(best, heads)]]
        return Meetings(first, shortest, members, e.communicator[first], e.kind[first])

    @cached_property
    def members(self) -> Members:
        """Who takes part in what."""
        e = self.executions
        key = e.row * (len(self.communicators) + 1) + e.communicator
        order = np.argsort(key, kind="stable")  # nearly in order: the entries of a worker stand together
        return Members(order, heads_of(key[order]))

    def step_table(self) -> tuple[Ints, Floats]:
        """Steps that all workers profiled, shape (s,), and each worker's durations, shape (n, s), µs; not to be written to."""
        return self._step_table

    @cached_property
    def _step_table(self) -> tuple[Ints, Floats]:
        if self.size == 0 or self.step.size == 0:
            return np.empty(0, np.int64), np.empty((self.size, 0))
        steps, number = distinct(self.step)
        common = steps[np.bincount(number) == self.size]
        table = np.zeros((self.size, common.size))
        at = np.searchsorted(common, self.step)
        at_safe = np.minimum(at, max(common.size - 1, 0))
        inside = (common[at_safe] == self.step) if common.size else np.zeros(self.step.size, bool)
        table[self.step_row[inside], at[inside]] = self.step_us[inside]
        return common, table
