"""The tables of many chunks as one set of columns: rows, functions and collectives numbered alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eroica.localizer.frame import Executions, Floats, Ints
from eroica.schemas.groups import CommunicatorName, FunctionName, GroupChunk
from eroica.schemas.ranks import parse_ranks

PATTERN_FLOATS = ("beta", "mu", "sigma", "total_us", "exclusive_us", "p50_us", "p99_us", "max_us")


class Stacked:
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
        phases: dict[str, list[Floats]] = {name: [] for name in sorted({n for c in parts for n in c.steps.phases_us})}
        execution: list[list[npt.NDArray[np.float64]]] = [[] for _ in range(6)]
        slots: dict[tuple[int, str, int], int] = {}
        slot_key: list[tuple[int, str, int]] = []
        self._slot_bytes: list[int] = []
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
            for name, column in phases.items():
                told = chunk.steps.phases_us.get(name)
                column.append(np.zeros(int(keep.sum())) if told is None else np.asarray(told, dtype=np.float64)[keep])
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
                    self._slot_bytes.append(0)
                self._slot_bytes[slots[slot]] = max(self._slot_bytes[slots[slot]], s.bytes)
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
        self.phases_us = {name: np.concatenate(column) for name, column in phases.items()}
        self._execution = [np.concatenate(column) if column else np.empty(0) for column in execution]
        self._slot_key = slot_key
        self._occurrence = _join(occurrence)
        self.pauses.sort()
        self.metrics.sort()

    def executions(self, ranks: Ints, cls: Ints) -> tuple[Executions, list[str]]:
        """Entries in the order of worker, step and start, with instances, kinds and places numbered, and the kinds in words.

        *ranks* and *cls* by row.
        """
        row, slot, step = (column.astype(np.int64) for column in self._execution[:3])
        start, duration, exposed = self._execution[3:]
        order = np.lexsort((slot, start, step, row))
        row, slot, step, occurrence = row[order], slot[order], step[order], self._occurrence[order]
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
            instance=_number(meeting[slot], step, occurrence),
            kind=kind_of[slot],
            place=_number(cls[row] if row.size else row, place_of[slot], occurrence),
            bytes=size,
            start_us=start[order],
            duration_us=duration[order],
            exposed_us=exposed[order],
        )
        return entries, [f"{op} {index}" for _, _, op, index in kinds]

    def _pairs(
        self, ranks: Ints, row: Ints, slot: Ints, keys: list[tuple[int, str, int, str]]
    ) -> tuple[list[tuple[int, str, int, str]], Ints]:
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
        at = np.flatnonzero(low[slot] >= 0)
        code = slot[at] * 2 + (ranks[row[at]] == low[slot[at]])
        found, inverse = np.unique(code, return_inverse=True)
        out, of_found = list(keys), np.empty(found.size, np.int64)
        order: dict[tuple[int, str, bool], int] = {}
        for i in sorted(range(found.size), key=lambda i: (keys[int(found[i]) // 2][:3], int(found[i]) % 2)):
            communicator, op, _, _ = keys[int(found[i]) // 2]
            lower = bool(found[i] % 2)
            k = order.get((communicator, op, lower), 0)
            order[communicator, op, lower] = k + 1
            of_found[i] = len(out)
            out.append((communicator, "send up" if (op == "send") == lower else "send down", k, op))
        moved = slot.copy()
        moved[at] = of_found[inverse.reshape(-1)]
        return out, moved


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
