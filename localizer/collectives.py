"""The collectives of all chunks, numbered alike: who met whom, read chunk by chunk, so that no column of all of them is made.

What rules ask for most, how long each collective took without waiting and who takes part, needs one pass over the chunks, some at
a time; what is computed on the way stays in the processor's cache. The table of all executions is made for those who ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.localizer.blocks import Block
from eroica.localizer.numbering import heads_of, numbered, stable_order
from eroica.localizer.packed import PackedChunk
from eroica.localizer.slots import Slots, number_slots
from eroica.localizer.tables import Executions, Floats, Ints, Meetings

AT_ONCE = 131_072
"""Entries."""
SPARSE = 2
"""A table of all collectives that may have been is worth its memory up to so many an entry."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one look at all entries tells."""

    size: int
    steps: Ints
    """Steps that occur, ascending."""
    occurrence: tuple[int, int]
    """Least and greatest."""
    slots: Slots
    of_code: Ints | None
    """Slot by code (``Slots.paired``), where sends and receives are matched."""


class Collectives:
    """Of all chunks of a request."""

    def __init__(self, parts: Sequence[PackedChunk], rows: Sequence[Ints], ranks: Ints, cls: Ints) -> None:
        """Number the slots of *parts*.

        :param rows: of each part: its workers' rows in the frame, -1 for those that are left out.
        :param ranks: by row, like *cls*.
        """
        self._parts, self._rows, self._ranks, self._cls = parts, rows, ranks, cls
        self._slots, self._slot_of = number_slots(parts)
        self.communicators = self._slots.communicators

    @property
    def size(self) -> int:
        """Number of entries."""
        return self._bounds.size

    @property
    def steps(self) -> Ints:
        """Steps that occur, ascending."""
        return self._bounds.steps

    @property
    def slots(self) -> Slots:
        """What is done where in a step."""
        return self._bounds.slots

    def blocks(self) -> Iterator[Block]:
        """All entries, those of whole chunks at a time."""
        low = entries = 0
        for high, part in enumerate(self._parts, 1):
            entries += part.executions.row.size
            if entries and (entries >= AT_ONCE or high == len(self._parts)):
                yield Block(self._parts[low:high], self._rows[low:high], self._slot_of[low:high])
                low, entries = high, 0

    def slot(self, block: Block) -> Ints:
        """Slot of each entry of *block*: a send and its receive have slots of their own, of one meeting."""
        of_code = self._bounds.of_code
        if of_code is None:
            return block.told_slot
        at, code = self._codes(block)
        slot: Ints = block.told_slot.copy()
        slot[at] = of_code[code]
        return slot

    def _codes(self, block: Block) -> tuple[Ints, Ints]:
        """Entries of pairs, and their codes (``Slots.paired``)."""
        lowest = self._slots.lower_end[block.told_slot]
        at = np.flatnonzero(lowest >= 0)
        return at, block.told_slot[at] * 2 + (self._ranks[block.row[at]] == lowest[at])

    @cached_property
    def _bounds(self) -> Bounds:
        pairs = bool((self._slots.lower_end >= 0).any())
        seen = np.zeros(2 * self._slots.op.size, np.bool_)
        size, steps, low, high = 0, set[int](), 2**62, -(2**62)
        for block in self.blocks():
            if block.row.size == 0:
                continue
            size += block.row.size
            steps.update(_distinct(block.step))
            occurrence = block.ints("occurrence")
            low, high = min(low, int(occurrence.min())), max(high, int(occurrence.max()))
            if pairs:
                seen[self._codes(block)[1]] = True
        ascending = np.array(sorted(steps), dtype=np.int64)
        slots, of_code = self._slots.paired(seen) if pairs and size else (self._slots, None)
        return Bounds(size, ascending, (low, high) if size else (0, 0), slots, of_code)

    def met(self) -> Iterator[tuple[Block, Ints, Ints]]:
        """Blocks with their entries' slots and what they have in common: equal numbers met, ascending as :attr:`meetings`."""
        b, width, at = self._bounds, self._width, 0
        meeting = b.slots.meeting[0]
        for block in self.blocks():
            slot = self.slot(block)
            if width:
                step = block.step - b.steps[0]
                number = meeting[slot] * width + step
                if width > b.steps[-1] - b.steps[0] + 1:
                    occurrences = b.occurrence[1] - b.occurrence[0] + 1
                    number += step * (occurrences - 1) + (block.ints("occurrence") - b.occurrence[0])
            else:
                number = self._by_sorting[at : at + block.row.size]
            at += block.row.size
            yield block, slot, number

    @cached_property
    def _width(self) -> int:
        """How many numbers there are for one meeting; 0 where they are too many for a table."""
        b = self._bounds
        width = int(b.steps[-1] - b.steps[0] + 1) * (b.occurrence[1] - b.occurrence[0] + 1) if b.size else 1
        return width if width * b.slots.meeting[1].size <= max(SPARSE * b.size, 1_024) else 0

    @cached_property
    def _by_sorting(self) -> Ints:
        """The numbers of all entries, block by block."""
        meeting = self.slots.meeting[0]
        columns = [(meeting[self.slot(block)], block.step, block.ints("occurrence")) for block in self.blocks()]
        return numbered(*(np.concatenate(column) for column in zip(*columns, strict=True)))[0]

    @cached_property
    def _look(self) -> _Look:
        """One pass over all entries."""
        slots, communicators = self.slots, len(self.communicators)
        numbers = self._width * slots.meeting[1].size if self._width else int(self._by_sorting.max()) + 1
        shortest, members = np.full(numbers, np.inf), np.zeros(numbers, np.int64)
        slot_of = np.zeros(numbers, np.int64)
        pairs = []
        for block, slot, number in self.met():
            took = block.floats("duration_us")
            before = shortest[number]
            np.minimum.at(shortest, number, took)
            np.add.at(members, number, 1)
            # Of members that waited equally little the first entry counts.
            best = np.flatnonzero((took < before) & (took == shortest[number]))[::-1]
            slot_of[number[best]] = slot[best]
            pair = block.row * communicators + slots.communicator[slot]
            pair = np.sort(pair[heads_of(pair)])
            pairs.append(pair[heads_of(pair)])
        used = np.flatnonzero(members)
        slot = slot_of[used]
        pair = np.concatenate(pairs) if pairs else np.empty(0, np.int64)
        meetings = Meetings(shortest[used], members[used], slots.communicator[slot], slots.kind[slot], slots.bytes[slot])
        return _Look(used, numbers, meetings, pair // max(communicators, 1), pair % max(communicators, 1))

    @property
    def meetings(self) -> Meetings:
        """All instances. The transfer of one of which a single member was seen is an upper bound."""
        return self._look.meetings

    @cached_property
    def members(self) -> tuple[Ints, Ints]:
        """Communicators and the rows that take part in them, by communicator and row; each pair once."""
        row, communicator = self._look.row, self._look.communicator
        order = stable_order(row)
        order = order[stable_order(communicator[order])]
        return communicator[order], row[order]

    def lost_us(self, excess: Floats) -> Floats:
        """Time per step of *excess* by :attr:`meetings` at the worst-hit member of each communicator, no more than is exposed."""
        look, out = self._look, np.zeros(len(self.communicators))
        by_number = np.zeros(look.numbers)
        by_number[look.used] = excess
        for block, slot, number in self.met():
            communicator = self.slots.communicator[slot]
            # Entries of a member are in the order of their steps.
            member = block.row * len(self.communicators) + communicator
            order = np.argsort(member, kind="stable")
            member, step = member[order], block.step[order]
            new = np.concatenate(([True], (step[1:] != step[:-1]) | (member[1:] != member[:-1])))[: member.size]
            cell = np.cumsum(new) - 1
            slow = np.bincount(cell, by_number[number[order]])
            exposed = np.bincount(cell, np.maximum(block.floats("exposed_us")[order], 0.0))
            heads = heads_of(member)
            begins = np.zeros(member.size, np.int64)
            begins[heads] = 1
            which = np.cumsum(begins[new]) - 1
            lost = np.bincount(which, np.minimum(slow, exposed) / max(self.steps.size, 1))
            np.maximum.at(out, communicator[order[heads]], lost)
        return out

    def transfers_of(self, slots: npt.NDArray[np.bool_]) -> tuple[Ints, Floats]:
        """Of the executions in some *slots*: how many each worker made, and what they took once all were there, µs; by row."""
        look = self._look
        shortest = np.full(look.numbers, np.inf)
        shortest[look.used] = look.meetings.transfer_us
        count, total = np.zeros(self._ranks.size, np.int64), np.zeros(self._ranks.size)
        for block, slot, number in self.met():
            mine = np.flatnonzero(slots[slot])
            np.add.at(count, block.row[mine], 1)
            np.add.at(total, block.row[mine], shortest[number[mine]])
        return count, total

    def done(self) -> set[tuple[int, int, int]]:
        """Communicator, kind and bytes of all that some worker did."""
        s, seen = self.slots, np.zeros(self.slots.op.size, np.bool_)
        for block in self.blocks():
            seen[self.slot(block)] = True
        return set(zip(s.communicator[seen].tolist(), s.kind[seen].tolist(), s.bytes[seen].tolist(), strict=True))

    @cached_property
    def executions(self) -> Executions:
        """All entries as one table, in the order of worker, step and start."""
        slots, size = self.slots, self.size
        if not size:
            none, nothing = np.empty(0, np.int64), np.empty(0)
            return Executions(none, none, none, none, none, none, nothing, nothing, nothing)
        whole: list[npt.NDArray[Any]] = [np.empty(size, kind) for kind in (np.int64,) * 5 + (np.float64,) * 3]
        low = 0
        for block in self.blocks():
            high = low + block.row.size
            columns = (
                block.row, block.step, block.told_slot, self.slot(block), block.ints("occurrence"), block.floats("start_us"),
                block.floats("duration_us"), block.floats("exposed_us"),
            )  # fmt: skip
            for column, part in zip(whole, columns, strict=True):
                column[low:high] = part
            low = high
        order = _in_order(whole[0], whole[1], whole[5], whole[2])
        row, step, _, slot, occurrence, start, duration, exposed = whole if order is None else [column[order] for column in whole]
        return Executions(
            row=row,
            step=step,
            communicator=slots.communicator[slot],
            instance=numbered(slots.meeting[0][slot], step, occurrence)[0],
            kind=slots.kind[slot],
            place=numbered(self._cls[row], slots.place[slot], occurrence)[0],
            start_us=start,
            duration_us=duration,
            exposed_us=exposed,
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """What one pass over all entries tells."""

    used: Ints
    """The numbers that occur, ascending."""
    numbers: int
    """How many there may be."""
    meetings: Meetings
    row: Ints
    """Worker of each pair of worker and communicator …"""
    communicator: Ints
    """… and communicator."""


def _distinct(column: Ints) -> list[int]:
    """Numbers that occur in *column*."""
    some: list[int] = np.unique(column[heads_of(column)]).tolist()
    return some


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
