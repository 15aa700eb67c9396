"""All classes of a request as one set of numpy columns: what the rules look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from eroica.localizer.collectives import Collectives
from eroica.localizer.lazy import Columns, Patterns
from eroica.localizer.numbering import distinct, first_seen, heads_of
from eroica.localizer.receive import ReceiveTable
from eroica.localizer.tables import Coords, Executions, Floats, Ints, Meetings, Names, Pauses, Readings
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import CommunicatorName, FunctionName, StackRow

__all__ = ["Executions", "Floats", "Frame", "Ints", "Meetings", "Pauses", "Readings"]


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
    hosts: Names
    devices: Names
    coords: Coords
    expected: Ints
    missing: Ints
    late: Ints
    errors: dict[str, str]
    notes: list[str]
    inputs: dict[str, str]
    event_time_us: int
    functions: list[FunctionName]
    patterns: Patterns
    step_row: Ints
    step: Ints
    step_us: Floats
    step_starts_us: Columns
    phases_us: Columns
    """Phase → its time in each entry of ``step``; those of an entry add up to its duration where a worker tells any."""
    collectives: Collectives
    pauses: Pauses
    metrics: Readings
    stacks: list[StackRow] = field(default_factory=list)
    launch_bound: float = 0.0
    """Share of the kernels, of the median worker, that found the device waiting: near 1 the hosts set the pace."""
    receive: ReceiveTable = field(default_factory=ReceiveTable)
    """What destinations waited for sources in expert-parallel exchanges."""

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

    @property
    def step_start_us(self) -> Floats:
        """Offset of each entry of ``step`` in its worker's window, by the worker's own clock."""
        return self.step_starts_us["start"]

    @property
    def pattern_row(self) -> Ints:
        """Row of each entry of :attr:`pattern`."""
        return self.patterns.row

    @property
    def pattern_function(self) -> Ints:
        """Function of each entry of :attr:`pattern`."""
        return self.patterns.function

    @cached_property
    def pattern(self) -> Columns:
        """Figures of the functions, one entry per (worker, function)."""
        return self.patterns.columns()

    @property
    def communicators(self) -> list[CommunicatorName]:
        """All that some worker told of."""
        return self.collectives.communicators

    @property
    def executions(self) -> Executions:
        """All executions of collectives; of a large request :attr:`collectives` tells most of it without making the table."""
        return self.collectives.executions

    @property
    def kinds(self) -> list[str]:
        """``Executions.kind`` in words: operation and place in the step."""
        return self.collectives.slots.kinds

    @property
    def meetings(self) -> Meetings:
        """All instances of collectives."""
        return self.collectives.meetings

    @cached_property
    def host_of(self) -> tuple[Ints, list[str]]:
        """Each row's host as an index, and the hosts by their first row."""
        number, first = first_seen(self.hosts.code)
        return number, [self.hosts[row] for row in first.tolist()]

    @cached_property
    def host_of_rank(self) -> dict[int, str]:
        """Host of each rank that gave a summary or its stacks."""
        return {s.rank: s.host for s in self.stacks} | dict(zip(self.ranks.tolist(), self.hosts, strict=True))

    def host_at(self, rank: int) -> str | None:
        """Host of *rank*; ``None`` if it is not known."""
        if self.stacks:
            return self.host_of_rank.get(rank)
        at = int(np.searchsorted(self.ranks, rank))
        return str(self.hosts[at]) if at < self.size and int(self.ranks[at]) == rank else None

    def ranks_on(self, hosts: set[str]) -> Ints:
        """Ranks of *hosts*, ascending."""
        if self.stacks:
            return np.array(sorted(rank for rank, host in self.host_of_rank.items() if host in hosts), dtype=np.int64)
        wanted = np.array([name in hosts for name in self.hosts.names], dtype=np.bool_)
        return self.ranks[wanted[self.hosts.code]] if wanted.size else self.ranks[:0]

    def rows_of(self, role: int) -> slice | Ints:
        """Rows of a class, as a slice where they stand together: then looking at them copies nothing."""
        rows = np.flatnonzero(self.cls == role)
        together = rows.size > 0 and int(rows[-1] - rows[0]) == rows.size - 1
        return slice(int(rows[0]), int(rows[-1]) + 1) if together else rows

    @cached_property
    def steps_of(self) -> Ints:
        """How many steps each worker tells of, at least 1, shape (n,)."""
        return np.maximum(np.bincount(self.step_row, minlength=self.size), 1)

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
        if (steps := self._steps_of_all) is not None:
            return steps, self.step_us.reshape(self.size, steps.size)
        steps, number = distinct(self.step)
        common = steps[np.bincount(number) == self.size]
        table = np.zeros((self.size, common.size))
        at = np.searchsorted(common, self.step)
        at_safe = np.minimum(at, max(common.size - 1, 0))
        inside = (common[at_safe] == self.step) if common.size else np.zeros(self.step.size, bool)
        table[self.step_row[inside], at[inside]] = self.step_us[inside]
        return common, table

    @cached_property
    def _steps_of_all(self) -> Ints | None:
        """The steps, if every worker tells the same ones, each once and in ascending order; else ``None``."""
        each, rest = divmod(self.step.size, max(self.size, 1))
        if rest or not each:
            return None
        steps, rows = self.step.reshape(-1, each), self.step_row.reshape(-1, each)
        first = steps[0]
        alike = bool((first[1:] > first[:-1]).all() and (steps == first).all())
        return first if alike and bool((rows == np.arange(self.size)[:, None]).all()) else None

    def phase_table(self, steps: Ints, name: str) -> Floats:
        """Time of a phase by worker and step, shape (n, s), µs; not to be written to."""
        if self._steps_of_all is not None and np.array_equal(self._steps_of_all, steps):
            return self.phases_us[name].reshape(self.size, steps.size)
        table = np.zeros((self.size, steps.size))
        inside = np.isin(self.step, steps)
        table[self.step_row[inside], np.searchsorted(steps, self.step[inside])] = self.phases_us[name][inside]
        return table
