"""The tables of many chunks as one set of columns: rows, functions and collectives numbered alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.localizer.frame import Executions, Floats, Ints, Pauses, Readings
from eroica.localizer.numbering import first_seen, heads_of, numbered, stable_order
from eroica.localizer.packed import PATTERN_FLOATS, PackedChunk
from eroica.schemas.groups import CommunicatorName, FunctionName
from eroica.schemas.ranks import RankRanges


@dataclass(frozen=True, slots=True)
class _Slots:
    """What is done where in a step: columns over the slots."""

    communicator: Ints
    op: Ints
    index: Ints
    side: Ints
    """Of a pair: whether it was a send or a receive, as its operation's number; else -1."""

    def and_then(self, other: _Slots) -> _Slots:
        """Both, one after the other."""
        mine = (self.communicator, self.op, self.index, self.side)
        theirs = (other.communicator, other.op, other.index, other.side)
        return _Slots(*(np.concatenate(columns) for columns in zip(mine, theirs, strict=True)))


class _Rows:
    """Rows in the frame of a table's entries, of all parts; entries of workers that are left out are taken away."""

    def __init__(self, columns: Iterable[Ints], rows: Sequence[Ints]) -> None:
        mapped = [mine[column] if mine.size else column - column - 1 for column, mine in zip(columns, rows, strict=True)]
        keep = [row >= 0 for row in mapped]
        self._keep = [None if bool(mask.all()) else mask for mask in keep]
        self.row: Ints = self.join(mapped, np.int64)

    def join(self, columns: Iterable[npt.NDArray[Any]], kind: type = np.float64) -> npt.NDArray[Any]:
        """A column of the table: one array a part."""
        kept = [column if keep is None else column[keep] for column, keep in zip(columns, self._keep, strict=True)]
        return np.concatenate(kept) if kept else np.empty(0, kind)


class Stacked:
    """Tables of all chunks with common numbering."""

    def __init__(self, parts: Sequence[PackedChunk], rows: Sequence[Ints], *, release: bool = False) -> None:
        """Stack *parts*.

        :param rows: of each part: its workers' rows in the frame, -1 for those that are left out.
        :param release: free the parts' large tables on the way; they can be stacked this once.
        """
        functions: dict[FunctionName, int] = {}
        function_of = [_ints([functions.setdefault(f, len(functions)) for f in p.functions]) for p in parts]
        self.functions = list(functions)
        patterns = _Rows((p.pattern_row for p in parts), rows)
        self.pattern_row: Ints = patterns.row
        self.pattern_function: Ints = patterns.join(
            (of[p.pattern_function] for of, p in zip(function_of, parts, strict=True)), np.int64
        )
        self.pattern: dict[str, Floats] = {name: patterns.join(p.pattern[name] for p in parts) for name in PATTERN_FLOATS}
        self._release = release
        if release:
            for part in parts:
                part.drop_patterns()
        steps = _Rows((p.step_row for p in parts), rows)
        self.step_row: Ints = steps.row
        self.step: Ints = steps.join((p.step for p in parts), np.int64)
        self.step_us: Floats = steps.join(p.step_us for p in parts)
        self.step_start_us: Floats = steps.join(p.step_start_us for p in parts)
        self.phases_us: dict[str, Floats] = {
            name: steps.join(p.phases_us[name] if name in p.phases_us else np.zeros(p.step.size) for p in parts)
            for name in sorted({name for p in parts for name in p.phases_us})
        }
        self.communicators: list[CommunicatorName] = []
        self._slot_of = self._number_slots(parts)
        self._parts, self._rows = parts, rows
        self.pauses, self.metrics = _pauses(parts, rows), _readings(parts, rows)

    def _number_slots(self, parts: Sequence[PackedChunk]) -> list[Ints]:
        """The common number of each part's slots."""
        communicators: dict[tuple[str, str], int] = {}
        of_slot = []
        for part in parts:
            own = []
            for c in part.communicators:
                number = communicators.setdefault((c.name, c.ranks), len(self.communicators))
                if number == len(self.communicators):
                    self.communicators.append(c)
                own.append(number)
            of_slot.append(_ints(own)[part.slots.communicator] if own else part.slots.communicator)
        tables = [part.slots for part in parts]
        ops, self._ops = _renamed([(t.op, t.ops) for t in tables])
        communicator, op = np.concatenate(of_slot), np.concatenate(ops)
        index, size = np.concatenate([t.index for t in tables]), np.concatenate([t.bytes for t in tables])
        numbers, first = first_seen(communicator, op, index)
        self._slots = _Slots(communicator[first], op[first], index[first], np.full(first.size, -1, np.int64))
        self._slot_bytes = np.zeros(max(first.size, 1), np.int64)
        np.maximum.at(self._slot_bytes, numbers, size)
        return np.split(numbers, np.cumsum([t.op.size for t in tables])[:-1])

    def executions(self, ranks: Ints, cls: Ints) -> tuple[Executions, list[str]]:
        """Entries in the order of worker, step and start, with instances, kinds and places numbered, and the kinds in words.

        *ranks* and *cls* by row.
        """
        tables = [part.executions for part in self._parts]
        joined = _Rows((t.row for t in tables), self._rows)
        row = joined.row
        slot = joined.join((of[t.slot] for of, t in zip(self._slot_of, tables, strict=True)), np.int64)
        step = joined.join((t.step for t in tables), np.int64)
        start: Floats = joined.join(t.start_us for t in tables)
        order = _in_order(row, step, start, slot)

        def ordered(columns: Iterable[npt.NDArray[Any]], kind: type = np.float64) -> npt.NDArray[Any]:
            column = joined.join(columns, kind)
            return column if order is None else column[order]

        if order is not None:
            row, slot, step, start = row[order], slot[order], step[order], start[order]
        occurrence = ordered((t.occurrence for t in tables), np.int64)
        duration, exposed = ordered(t.duration_us for t in tables), ordered(t.exposed_us for t in tables)
        if self._release:
            tables.clear()
            for part in self._parts:
                part.drop_executions()
        size = self._slot_bytes[slot]
        slots, slot, ops = self._pairs(ranks, row, slot)
        identities: dict[tuple[str, str], int] = {}
        identity = _ints(identities.setdefault((c.kind or c.name, c.backend), len(identities)) for c in self.communicators)
        kind, kinds = first_seen(identity[slots.communicator], slots.op, slots.index)
        place, _ = first_seen(kind, slots.side)
        meeting, _ = first_seen(slots.communicator, slots.op, slots.index)
        entries = Executions(
            row=row,
            step=step,
            communicator=slots.communicator[slot],
            instance=numbered(meeting[slot], step, occurrence)[0],
            kind=kind[slot],
            place=numbered(cls[row] if row.size else row, place[slot], occurrence)[0],
            bytes=size,
            start_us=start,
            duration_us=duration,
            exposed_us=exposed,
        )
        told = zip(slots.op[kinds].tolist(), slots.index[kinds].tolist(), strict=True)
        return entries, [f"{ops[op]} {index}" for op, index in told]

    def _pairs(self, ranks: Ints, row: Ints, slot: Ints) -> tuple[_Slots, Ints, list[str]]:
        """Sends and receives between two ranks under one slot: the k-th sent one way is the k-th received at the other end.

        :returns: slots, the one of each entry, and operations by their number.
        """
        slots, ops = self._slots, [*self._ops, "send up", "send down"]
        up, down = len(ops) - 2, len(ops) - 1
        sends = np.isin(slots.op, [i for i, op in enumerate(self._ops) if op == "send"])
        both = sends | np.isin(slots.op, [i for i, op in enumerate(self._ops) if op == "recv"])
        lower_end = np.full(len(self.communicators), -1, np.int64)
        for number in np.unique(slots.communicator[both]).tolist():
            c = self.communicators[number]
            if c.size == 2 and len(pair := RankRanges.parse(c.ranks)) == 2:
                lower_end[number] = pair.firsts[0]
        low = np.where(both, lower_end[slots.communicator], -1)
        if row.size == 0 or not (low >= 0).any():
            return slots, slot, ops
        lowest = low[slot]
        at = np.flatnonzero(lowest >= 0)
        code = slot[at] * 2 + (ranks[row[at]] == lowest[at])
        seen = np.zeros(2 * low.size, np.bool_)
        seen[code] = True
        found = np.flatnonzero(seen)
        of, lower = found // 2, found % 2
        order = np.lexsort((lower, slots.index[of], slots.op[of], slots.communicator[of]))
        found, of, lower = found[order], of[order], lower[order]
        way, _ = numbered(slots.communicator[of], slots.op[of], lower)
        together = stable_order(way)
        heads = heads_of(way[together])
        before = np.empty(found.size, np.int64)
        before[together] = np.arange(found.size) - np.repeat(heads, np.diff(np.append(heads, found.size)))
        of_code = np.zeros(2 * low.size, np.int64)
        of_code[found] = low.size + np.arange(found.size)
        moved = slot.copy()
        moved[at] = of_code[code]
        added = _Slots(slots.communicator[of], np.where(sends[of] == (lower == 1), up, down), before, slots.op[of])
        return slots.and_then(added), moved, ops


def _in_order(row: Ints, step: Ints, start: Floats, slot: Ints) -> Ints | None:
    """The order by row, step, start and slot, of parts that are in the order of row, step and start; ``None`` if it is this."""
    order = None
    if not bool((row[1:] >= row[:-1]).all()):
        order = stable_order(row)
        row, step, start, slot = row[order], step[order], start[order], slot[order]
    tied = (row[1:] == row[:-1]) & (step[1:] == step[:-1]) & (start[1:] == start[:-1])
    if not bool((tied & (slot[1:] < slot[:-1])).any()):
        return order
    run = np.concatenate(([0], np.cumsum(~tied)))
    again = np.lexsort((slot, run))
    return again if order is None else order[again]


def _pauses(parts: Sequence[PackedChunk], rows: Sequence[Ints]) -> Pauses:
    tables = [part.pauses for part in parts]
    joined = _Rows((t.row for t in tables), rows)
    what, kinds = _renamed([(t.what, t.kinds) for t in tables])
    columns = [
        joined.row, joined.join(what, np.int64), joined.join((t.counts for t in tables), np.int64),
        joined.join(t.total_us for t in tables), joined.join(t.max_us for t in tables),
    ]  # fmt: skip
    order = _by_name(joined.row, columns[1], len(kinds), *columns[2:])
    row, code, count, total, longest = (column[order] for column in columns)
    return Pauses(row, code, kinds, count, total, longest)


def _readings(parts: Sequence[PackedChunk], rows: Sequence[Ints]) -> Readings:
    tables = [part.readings for part in parts]
    joined = _Rows((t.row for t in tables), rows)
    name, names = _renamed([(t.name, t.names) for t in tables])
    row, code, mean = joined.row, joined.join(name, np.int64), joined.join(t.mean for t in tables)
    order = _by_name(row, code, len(names), mean)
    return Readings(row[order], code[order], names, mean[order])


def _by_name(row: Ints, code: Ints, codes: int, *values: npt.NDArray[Any]) -> Ints:
    """The order by row, code and values; entries of a row stand together, mostly one a code."""
    key = row * codes + code
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    return np.lexsort((*values[::-1], key)) if bool((ranked[1:] == ranked[:-1]).any()) else order


def _renamed(tables: Sequence[tuple[Ints, list[str]]]) -> tuple[list[Ints], list[str]]:
    """Codes of several tables as places among all their names, which ascend."""
    known = sorted(set(chain.from_iterable(names for _, names in tables)))
    place = {name: i for i, name in enumerate(known)}
    return [_ints([place[name] for name in names])[code] for code, names in tables], known


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
