"""All classes of a request as one set of numpy columns: what the rules look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import CommunicatorName, FunctionName, GroupChunk, StackRow
from eroica.schemas.ranks import parse_ranks

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PATTERN_FLOATS = ("beta", "mu", "sigma", "total_us", "exclusive_us", "p50_us", "p99_us", "max_us")


@dataclass(frozen=True, slots=True)
class Executions:
    """One entry per (worker, execution of a collective), ordered by worker, step and start.

    ``instance`` numbers the execution that the members share; ``place`` numbers (class, kind of communicator, operation, index,
    occurrence): what peers of a role do at the same point of a step. Times in µs, by each worker's own clock.
    """

    row: Ints
    step: Ints
    communicator: Ints
    instance: Ints
    place: Ints
    start_us: Floats
    duration_us: Floats
    exposed_us: Floats

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(self.row.size)


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
    communicators: list[CommunicatorName]
    executions: Executions
    pauses: list[tuple[int, str, int, float, float]]
    """(row, what, count, total µs, max µs)."""
    metrics: list[tuple[int, str, float]]
    stacks: list[StackRow] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of workers."""
        return int(self.ranks.size)

    @property
    def coverage(self) -> float:
        """Share of the expected workers that gave a summary."""
        return self.size / self.expected.size if self.expected.size else 0.0

    def step_table(self) -> tuple[Ints, Floats]:
        """Steps that all workers profiled, shape (s,), and each worker's durations, shape (n, s), µs."""
        if self.size == 0 or self.step.size == 0:
            return np.empty(0, np.int64), np.empty((self.size, 0))
        steps, counts = np.unique(self.step, return_counts=True)
        common = steps[counts == self.size]
        table = np.zeros((self.size, common.size))
        at = np.searchsorted(common, self.step)
        at_safe = np.minimum(at, max(common.size - 1, 0))
        inside = (common[at_safe] == self.step) if common.size else np.zeros(self.step.size, bool)
        table[self.step_row[inside], at[inside]] = self.step_us[inside]
        return common, table


def build_frame(chunks: Iterable[GroupChunk]) -> Frame:
    """Stack the chunks of a request.

    The result does not depend on the order of *chunks*. A rank that stands in two chunks counts once, in the first class.
    """
    parts = sorted(chunks, key=lambda c: (c.cls, c.chunk))
    heads = {c.cls: c for c in reversed(parts)}
    workers = sorted(
        ((w.rank, part, row) for part, c in enumerate(parts) for row, w in enumerate(c.workers)), key=lambda item: item
    )
    row_of: dict[tuple[int, int], int] = {}
    kept: list[tuple[int, int]] = []
    ranks: list[int] = []
    for rank, part, row in workers:
        if not ranks or ranks[-1] != rank:
            row_of[part, row] = len(ranks)
            ranks.append(rank)
            kept.append((part, row))
    names = sorted(heads)
    at = [parts[part].workers[row] for part, row in kept]
    expected = _union(h.expected for h in heads.values())
    inputs: dict[str, set[str]] = {}
    for head in heads.values():
        for place, offsets in head.inputs.items():
            inputs.setdefault(place, set()).update(offsets.split(","))
    first = parts[0]
    columns = _Stack(parts, row_of)
    return Frame(
        request=first.request,
        run_id=first.run_id,
        ranks=np.array(ranks, dtype=np.int64),
        cls=np.array([names.index(parts[part].cls) for part, _ in kept], dtype=np.int64),
        classes=names,
        hosts=[w.host for w in at],
        host_of_rank={w.rank: w.host for w in at},
        devices=[w.device for w in at],
        expected=expected,
        missing=np.setdiff1d(expected, np.array(ranks, dtype=np.int64)),
        late=np.array([w.rank for w in at if w.late_by_steps > 0], dtype=np.int64),
        errors={rank: text for name in names for rank, text in sorted(heads[name].errors.items())},
        notes=_notes(heads),
        inputs={place: ",".join(sorted(parts_, key=_offset)) for place, parts_ in sorted(inputs.items())},
        event_time_us=max(
            [first.request.issued_at_us, *(w.ended_at_us for w in at), *(s.ended_at_us for c in parts for s in c.stacks)]
        ),
        functions=columns.functions,
        pattern_row=columns.pattern_row,
        pattern_function=columns.pattern_function,
        pattern=columns.pattern,
        step_row=columns.step_row,
        step=columns.step,
        step_us=columns.step_us,
        step_start_us=columns.step_start_us,
        communicators=columns.communicators,
        executions=columns.executions(np.array([names.index(parts[part].cls) for part, _ in kept], dtype=np.int64)),
        pauses=columns.pauses,
        metrics=columns.metrics,
        stacks=sorted((s for c in parts for s in c.stacks), key=lambda s: s.rank),
    )


def _notes(heads: dict[str, GroupChunk]) -> list[str]:
    notes = []
    for name in sorted(heads):
        head = heads[name]
        if head.closed_by != "complete":
            notes.append(
                f"class {name} was closed by {head.closed_by}: expected {head.expected}, received {head.received or 'none'}"
            )
    return notes


def _union(texts: Iterable[str]) -> Ints:
    parts = [parse_ranks(text) for text in texts]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


def _offset(text: str) -> tuple[int, str]:
    head = text.partition("-")[0]
    return (int(head) if head.isdigit() else -1, text)


class _Stack:
    """Tables of all chunks with common numbering."""

    def __init__(self, parts: Sequence[GroupChunk], row_of: dict[tuple[int, int], int]) -> None:
        functions: dict[FunctionName, int] = {}
        communicators: dict[tuple[str, str], int] = {}
        self.communicators: list[CommunicatorName] = []
        self.pauses: list[tuple[int, str, int, float, float]] = []
        self.metrics: list[tuple[int, str, float]] = []
        pattern: dict[str, list[Floats]] = {name: [] for name in PATTERN_FLOATS}
        pattern_row, pattern_function, step_row, step = _lists(4)
        step_us: list[Floats] = []
        occurrence: list[Ints] = []
        step_start: list[Floats] = []
        execution: list[list[npt.NDArray[np.float64]]] = [[] for _ in range(6)]
        slots: dict[tuple[int, str, int], int] = {}
        slot_key: list[tuple[int, str, int]] = []
        for number, chunk in enumerate(parts):
            rows = np.array([row_of.get((number, row), -1) for row in range(len(chunk.workers))], dtype=np.int64)
            own = [functions.setdefault(f, len(functions)) for f in chunk.functions]
            keep, mapped = _rows(chunk.patterns.row, rows)
            pattern_row.append(mapped)
            pattern_function.append(_take(own, chunk.patterns.function, keep))
            for name in PATTERN_FLOATS:
                pattern[name].append(np.asarray(getattr(chunk.patterns, name), dtype=np.float64)[keep])
            keep, mapped = _rows(chunk.steps.row, rows)
            step_row.append(mapped)
            step.append(np.asarray(chunk.steps.step, dtype=np.int64)[keep])
            step_us.append(np.asarray(chunk.steps.duration_us, dtype=np.float64)[keep])
            step_start.append(np.asarray(chunk.steps.start_us, dtype=np.float64)[keep])
            of_communicator = []
            for c in chunk.communicators:
                key = (c.name, c.ranks)
                if key not in communicators:
                    communicators[key] = len(self.communicators)
                    self.communicators.append(c)
                of_communicator.append(communicators[key])
            of_slot = []
            for s in chunk.slots:
                slot = (of_communicator[s.communicator], s.op, s.index)
                if slot not in slots:
                    slots[slot] = len(slot_key)
                    slot_key.append(slot)
                of_slot.append(slots[slot])
            e = chunk.executions
            keep, mapped = _rows(e.row, rows)
            duration = np.asarray(e.duration_us, dtype=np.float64)[keep]
            exposed = np.asarray(e.exposed_us, dtype=np.float64)[keep] if len(e.exposed_us) == len(e.row) else duration
            values = (
                mapped,
                _take(of_slot, e.slot, keep),
                np.asarray(e.step)[keep],
                np.asarray(e.start_us)[keep],
                duration,
                exposed,
            )
            for column, value in zip(execution, values, strict=True):
                column.append(np.asarray(value, dtype=np.float64))
            occurrence.append(np.asarray(e.occurrence, dtype=np.int64)[keep])
            for at, row in enumerate(chunk.pauses.row):
                if rows[row] >= 0:
                    p = chunk.pauses
                    self.pauses.append((int(rows[row]), p.what[at], p.count[at], p.total_us[at], p.max_us[at]))
            for at, row in enumerate(chunk.metrics.row):
                if rows[row] >= 0:
                    self.metrics.append((int(rows[row]), chunk.metrics.name[at], chunk.metrics.mean[at]))
        self.functions = list(functions)
        self.pattern_row, self.pattern_function = _join(pattern_row), _join(pattern_function)
        self.pattern = {name: np.concatenate(values) if values else np.empty(0) for name, values in pattern.items()}
        self.step_row, self.step = _join(step_row), _join(step)
        self.step_us = np.concatenate(step_us) if step_us else np.empty(0)
        self.step_start_us = np.concatenate(step_start) if step_start else np.empty(0)
        self._execution = [np.concatenate(column) if column else np.empty(0) for column in execution]
        self._slot_key = slot_key
        self._occurrence = _join(occurrence)
        self.pauses.sort()
        self.metrics.sort()

    def executions(self, cls: Ints) -> Executions:
        """Entries in the order of worker, step and start, with instances and places numbered."""
        row, slot, step = (column.astype(np.int64) for column in self._execution[:3])
        start, duration, exposed = self._execution[3:]
        occurrence = self._occurrence
        order = np.lexsort((slot, start, step, row))
        row, slot, step, occurrence = row[order], slot[order], step[order], occurrence[order]
        kinds: dict[tuple[str, str, str, int], int] = {}
        kind_of = np.zeros(max(len(self._slot_key), 1), np.int64)
        communicator_of = np.zeros_like(kind_of)
        for number, (communicator, op, index) in enumerate(self._slot_key):
            c = self.communicators[communicator]
            kind_of[number] = kinds.setdefault((c.kind or c.name, c.backend, op, index), len(kinds))
            communicator_of[number] = communicator
        instance = _number(slot, step, occurrence)
        place = _number(cls[row] if row.size else row, kind_of[slot] if row.size else slot, occurrence)
        return Executions(
            row=row,
            step=step,
            communicator=communicator_of[slot] if row.size else slot,
            instance=instance,
            place=place,
            start_us=start[order],
            duration_us=duration[order],
            exposed_us=exposed[order],
        )


def _lists(n: int) -> list[list[npt.NDArray[np.int64]]]:
    return [[] for _ in range(n)]


def _join(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _rows(column: list[int], rows: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Which entries belong to a kept worker, and their rows in the frame."""
    index = np.asarray(column, dtype=np.int64)
    if rows.size == 0 or index.size == 0:
        return np.zeros(index.size, dtype=np.bool_), np.empty(0, dtype=np.int64)
    mapped = rows[index]
    keep = mapped >= 0
    return keep, mapped[keep]


def _take(table: list[int], column: list[int], keep: npt.NDArray[np.bool_]) -> Ints:
    index = np.asarray(column, dtype=np.int64)[keep]
    return np.asarray(table, dtype=np.int64)[index] if index.size else np.empty(0, dtype=np.int64)


def _number(*columns: Ints) -> Ints:
    """Equal tuples of the columns get equal numbers from 0."""
    if columns[0].size == 0:
        return np.empty(0, dtype=np.int64)
    _, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return np.asarray(inverse, dtype=np.int64).reshape(-1)
