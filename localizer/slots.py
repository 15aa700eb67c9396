"""What is done where in a step, numbered alike for all chunks: the places of collectives, and the two sides of transfers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from eroica.localizer.numbering import first_seen, heads_of, numbered, stable_order
from eroica.localizer.packed import PackedChunk
from eroica.localizer.tables import Ints
from eroica.schemas.groups import CommunicatorName
from eroica.schemas.ranks import RankRanges

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Slots:
    """Columns over the slots."""

    communicators: list[CommunicatorName]
    communicator: Ints
    op: Ints
    """Index into ``ops``."""
    index: Ints
    side: Ints
    """Of a pair: whether it was a send or a receive, as its operation's number; else -1."""
    bytes: Ints
    ops: list[str]

    @cached_property
    def kind(self) -> Ints:
        """Number of (kind of communicator, operation, index)."""
        return self._kinds[0]

    @cached_property
    def kinds(self) -> list[str]:
        """Operation and index of each ``kind``, in words."""
        first = self._kinds[1]
        return [f"{self.ops[op]} {i}" for op, i in zip(self.op[first].tolist(), self.index[first].tolist(), strict=True)]

    @cached_property
    def place(self) -> Ints:
        """Number of (``kind``, ``side``)."""
        return first_seen(self.kind, self.side)[0]

    @cached_property
    def meeting(self) -> tuple[Ints, Ints]:
        """Number of (communicator, operation, index) of each slot, and a slot of each number."""
        return first_seen(self.communicator, self.op, self.index)

    @cached_property
    def _kinds(self) -> tuple[Ints, Ints]:
        identities: dict[tuple[str, str], int] = {}
        of = ints(identities.setdefault((c.kind or c.name, c.backend), len(identities)) for c in self.communicators)
        return first_seen(of[self.communicator], self.op, self.index)

    @cached_property
    def lower_end(self) -> Ints:
        """Of slots in which two ranks send and receive: the lower rank; else -1."""
        both = self._does("send", "recv")
        ends = np.full(len(self.communicators), -1, np.int64)
        for number in np.unique(self.communicator[both]).tolist():
            c = self.communicators[number]
            if c.size == 2 and len(pair := RankRanges.parse(c.ranks)) == 2:
                ends[number] = pair.firsts[0]
        return np.where(both, ends[self.communicator], -1) if self.op.size else self.op

    def _does(self, *ops: str) -> Bools:
        """Whether each slot is of one of *ops*."""
        return np.isin(self.op, [i for i, op in enumerate(self.ops) if op in ops])

    def paired(self, seen: Bools) -> tuple[Slots, Ints]:
        """Sends and receives between two ranks under one slot: the k-th sent one way is the k-th received at the other end.

        :param seen: by code: whether there is an entry of it. The code of an entry is twice its slot, plus 1 where its worker
            is the lower end.
        :returns: these slots and those of the pairs, and the slot of each code.
        """
        sends = self._does("send")
        ops, size = [*self.ops, "send up", "send down"], self.op.size
        up, down = len(ops) - 2, len(ops) - 1
        found = np.flatnonzero(seen)
        of, lower = found // 2, found % 2
        order = np.lexsort((lower, self.index[of], self.op[of], self.communicator[of]))
        found, of, lower = found[order], of[order], lower[order]
        way, _ = numbered(self.communicator[of], self.op[of], lower)
        together = stable_order(way)
        heads = heads_of(way[together])
        before = np.empty(found.size, np.int64)
        before[together] = np.arange(found.size) - np.repeat(heads, np.diff(np.append(heads, found.size)))
        of_code = np.zeros(2 * size, np.int64)
        of_code[found] = size + np.arange(found.size)
        return Slots(
            self.communicators,
            np.concatenate((self.communicator, self.communicator[of])),
            np.concatenate((self.op, np.where(sends[of] == (lower == 1), up, down))),
            np.concatenate((self.index, before)),
            np.concatenate((self.side, self.op[of])),
            np.concatenate((self.bytes, self.bytes[of])),
            ops,
        ), of_code


def number_slots(parts: Sequence[PackedChunk]) -> tuple[Slots, list[Ints]]:
    """The slots of all *parts*, and the common number of each part's own."""
    known: list[CommunicatorName] = []
    numbers: dict[tuple[str, str], int] = {}
    of_slot = []
    for part in parts:
        own = []
        for c in part.communicators:
            number = numbers.setdefault((c.name, c.ranks), len(known))
            if number == len(known):
                known.append(c)
            own.append(number)
        of_slot.append(ints(own)[part.slots.communicator] if own else part.slots.communicator)
    tables = [part.slots for part in parts]
    ops, names = renamed([(t.op, t.ops) for t in tables])
    communicator, op = np.concatenate(of_slot), np.concatenate(ops)
    index, size = np.concatenate([t.index for t in tables]), np.concatenate([t.bytes for t in tables])
    number_of, first = first_seen(communicator, op, index)
    largest = np.zeros(first.size, np.int64)
    np.maximum.at(largest, number_of, size)
    slots = Slots(known, communicator[first], op[first], index[first], np.full(first.size, -1, np.int64), largest, names)
    return slots, np.split(number_of, np.cumsum([t.op.size for t in tables])[:-1])


def renamed(tables: Sequence[tuple[Ints, list[str]]]) -> tuple[list[Ints], list[str]]:
    """Codes of several tables as places among all their names, which ascend."""
    known = sorted(set(chain.from_iterable(names for _, names in tables)))
    place = {name: i for i, name in enumerate(known)}
    return [ints([place[name] for name in names])[code] for code, names in tables], known


def ints(values: Iterable[int]) -> Ints:
    """*values* as a column."""
    return np.array(list(values), dtype=np.int64)
