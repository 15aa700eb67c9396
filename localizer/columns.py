"""The tables of many chunks as one set of columns: rows, functions and collectives numbered alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.localizer.frame import Executions, Floats, Ints, Pauses, Readings
from eroica.localizer.numbering import numbered, stable_order
from eroica.localizer.packed import PATTERN_FLOATS, PackedChunk
from eroica.schemas.groups import CommunicatorName, FunctionName
from eroica.schemas.ranks import parse_ranks

SlotKey = tuple[int, str, int, str]
"""Communicator, operation, index, and side of a pair."""


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

    def __init__(self, parts: Sequence[PackedChunk], rows: Sequence[Ints]) -> None:
        """Stack *parts*.

        :param rows: of each part: its workers' rows in the frame, -1 for those that are left out.
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
        self._slot_key: list[tuple[int, str, int]] = []
        self._slot_bytes: list[int] = []
        self._slot_of = self._number_slots(parts)
        self._parts, self._rows = parts, rows
        self.pauses, self.metrics = _pauses(parts, rows), _readings(parts, rows)

    def _number_slots(self, parts: Sequence[PackedChunk]) -> list[Ints]:
        """The common number of each part's slots."""
        communicators: dict[tuple[str, str], int] = {}
        slots: dict[tuple[int, str, int], int] = {}
        out = []
        for part in parts:
            of_communicator = []
            for c in part.communicators:
                number = communicators.setdefault((c.name, c.ranks), len(self.communicators))
                if number == len(self.communicators):
                    self.communicators.append(c)
                of_communicator.append(number)
            of_slot = []
            for s in part.slots:
                key = (of_communicator[s.communicator], s.op, s.index)
                number = slots.setdefault(key, len(self._slot_key))
                if number == len(self._slot_key):
                    self._slot_key.append(key)
                    self._slot_bytes.append(0)
                self._slot_bytes[number] = max(self._slot_bytes[number], s.bytes)
                of_slot.append(number)
            out.append(_ints(of_slot))
        return out

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
        # Slots by what their members share; the last one stands for a frame without any.
        keys = [(c, op, index, "") for c, op, index in self._slot_key]
        size = np.array(self._slot_bytes or [0], dtype=np.int64)[slot]
        shared, slot = self._pairs(ranks, row, slot, keys)
        kinds: dict[tuple[str, str, str, int], int] = {}
        kind_of, place_of, communicator_of = (np.zeros(max(len(shared), 1), np.int64) for _ in range(3))
        places: dict[tuple[str, str, str, int, str], int] = {}
        for number, (communicator, op, index, side) in enumerate(shared):
            c = self.communicators[communicator]
            what = (c.kind or c.name, c.backend, op, index)
            kind_of[number] = kinds.setdefault(what, len(kinds))
            place_of[number] = places.setdefault((*what, side), len(places))
            communicator_of[number] = communicator
        met: dict[tuple[int, str, int], int] = {}
        meeting = np.array([met.setdefault(key[:3], len(met)) for key in shared] or [0], dtype=np.int64)
        entries = Executions(
            row=row,
            step=step,
            communicator=communicator_of[slot],
            instance=numbered(meeting[slot], step, occurrence)[0],
            kind=kind_of[slot],
            place=numbered(cls[row] if row.size else row, place_of[slot], occurrence)[0],
            bytes=size,
            start_us=start,
            duration_us=ordered(t.duration_us for t in tables),
            exposed_us=ordered(t.exposed_us for t in tables),
        )
        return entries, [f"{op} {index}" for _, _, op, index in kinds]

    def _pairs(self, ranks: Ints, row: Ints, slot: Ints, keys: list[SlotKey]) -> tuple[list[SlotKey], Ints]:
        """Sends and receives between two ranks under one key: the k-th sent one way is the k-th received at the other end.

        :returns: keys (communicator, operation, index, side), and the key of each entry.
        """
        ends: dict[int, int] = {}
        for number, c in enumerate(self.communicators):
            if c.size == 2 and c.ranks and (pair := parse_ranks(c.ranks)).size == 2:
                ends[number] = int(pair[0])
        wanted = [n for n, (c, op, *_) in enumerate(keys) if op in ("send", "recv") and c in ends]
        if not wanted or row.size == 0:
            return keys, slot
        low = np.full(len(keys), -1, np.int64)
        low[wanted] = [ends[keys[n][0]] for n in wanted]
        lowest = low[slot]
        at = np.flatnonzero(lowest >= 0)
        code = slot[at] * 2 + (ranks[row[at]] == lowest[at])
        seen = np.zeros(2 * len(keys), np.bool_)
        seen[code] = True
        found = np.flatnonzero(seen).tolist()
        out, of_code = list(keys), np.zeros(2 * len(keys), np.int64)
        order: dict[tuple[int, str, bool], int] = {}
        for one in sorted(found, key=lambda one: (keys[one // 2][:3], one % 2)):
            communicator, op, _, _ = keys[one // 2]
            lower = bool(one % 2)
            k = order.get((communicator, op, lower), 0)
            order[communicator, op, lower] = k + 1
            of_code[one] = len(out)
            out.append((communicator, "send up" if (op == "send") == lower else "send down", k, op))
        moved = slot.copy()
        moved[at] = of_code[code]
        return out, moved


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
    order = np.lexsort(columns[::-1])
    row, code, count, total, longest = (column[order] for column in columns)
    return Pauses(row, code, kinds, count, total, longest)


def _readings(parts: Sequence[PackedChunk], rows: Sequence[Ints]) -> Readings:
    tables = [part.readings for part in parts]
    joined = _Rows((t.row for t in tables), rows)
    name, names = _renamed([(t.name, t.names) for t in tables])
    row, code, mean = joined.row, joined.join(name, np.int64), joined.join(t.mean for t in tables)
    order = np.lexsort((mean, code, row))
    return Readings(row[order], code[order], names, mean[order])


def _renamed(tables: Sequence[tuple[Ints, list[str]]]) -> tuple[list[Ints], list[str]]:
    """Codes of several tables as places among all their names, which ascend."""
    known = sorted(set(chain.from_iterable(names for _, names in tables)))
    place = {name: i for i, name in enumerate(known)}
    return [_ints([place[name] for name in names])[code] for code, names in tables], known


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
