"""How long communicators take to move their bytes, waiting taken off, against others that do the same.

All members of a collective end together and the last to arrive waits for nobody, so the shortest duration is the transfer. Who is
late lengthens the others' durations and not the transfer; a slow link lengthens the transfer itself, on all members alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.localizer.frame import Floats, Frame, Ints, Meetings
from eroica.localizer.numbering import heads_of, numbered, stable_order, sums
from eroica.localizer.robust import MAD_TO_SIGMA

Bools = npt.NDArray[np.bool_]
USUAL_QUANTILE = 0.25
"""What the faster communicators of a family reach is usual: faults only make transfers slower."""


@dataclass(frozen=True)
class Transfers:
    """Columns over the communicators of a frame; µs."""

    members: Sequence[Ints]
    """Rows seen in each communicator, ascending."""
    hosts: Sequence[frozenset[str]]
    ratio: Floats
    """How many times as long as usual its transfers take: the median, large ones counting more; 1 if nothing is known."""
    error: Floats
    """Standard error of the logarithm of ``ratio``."""
    known: Bools
    """Whether there is anything to compare it with."""
    moved_us: Floats
    """Time of the transfers that could be compared, all steps together …"""
    usual_us: Floats
    """… and what they usually take."""
    complete: Bools
    """Whether all its members were seen; else a late one may be unseen, and its transfers are upper bounds."""
    host_count: Ints
    """On how many hosts its members are."""
    excess_us: Floats
    """What each instance (``Frame.meetings``) took longer than usual."""
    frame: Frame

    @cached_property
    def lost_us(self) -> Floats:
        """Exposed time per step that its slow transfers cost its worst-hit member."""
        return self.frame.collectives.lost_us(self.excess_us)


class _Members(Sequence[Ints]):
    """Rows seen in each communicator, ascending."""

    def __init__(self, communicator: Ints, row: Ints, count: int) -> None:
        self._row, self._ends = row, np.searchsorted(communicator, np.arange(count + 1))

    def __len__(self) -> int:
        return int(self._ends.size) - 1

    def __getitem__(self, communicator: Any) -> Any:
        return self._row[self._ends[communicator] : self._ends[communicator + 1]]


class _Hosts(Sequence[frozenset[str]]):
    """Hosts by communicator, looked up when they are asked for: most communicators are healthy, and nobody asks."""

    def __init__(self, frame: Frame, members: Sequence[Ints]) -> None:
        self._members = members
        self._host_of, self._names = frame.host_of

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, communicator: Any) -> Any:
        return frozenset(self._names[i] for i in set(self._host_of[self._members[communicator]].tolist()))


def measure_transfers(frame: Frame, past: dict[str, float] | None = None) -> Transfers:
    """Transfers of each communicator against its family.

    A family are the communicators that make the same operations (kind of group, operation, place in the step, bytes) with equally
    many members on equally many hosts.

    :param past: usual transfer by :func:`kind_keys` in a healthy profile of the same job, µs; it stands for the family.
    """
    count = len(frame.communicators)
    if frame.collectives.size == 0:
        nothing, none = np.zeros(count), np.zeros(count, np.int64)
        return Transfers(
            [none[:0]] * count, [frozenset()] * count, nothing + 1, nothing, nothing > 0, nothing, nothing, nothing > 0,
            none, nothing[:0], frame,
        )  # fmt: skip
    communicator, row = frame.collectives.members
    members = _Members(communicator, row, count)
    host_count = _distinct_by(communicator, frame.host_of[0][row], count)
    m = frame.meetings
    size = np.array([c.size for c in frame.communicators], dtype=np.int64)
    seen = np.bincount(communicator, minlength=count)
    shape = np.where(size > 0, size, seen)
    family, _ = numbered(m.kind, m.bytes, shape[m.communicator], host_count[m.communicator])
    usual = _usual(family, m, count)
    if past:
        names, name_of = _kind_names(frame, m)
        known = np.array([past.get(name, 0.0) for name in names])[name_of]
        usual = np.where(known > 0, known, usual)
    usable = (usual > 0) & (m.members > 1)
    at = np.flatnonzero(usable)
    of = m.communicator[at]
    moved, expected = sums(of, m.transfer_us[at], count), sums(of, usual[at], count)
    excess = np.where(usable, np.maximum(m.transfer_us - usual, 0.0), 0.0)
    ratio = np.ones(count)
    found, middle = weighted_medians(of, m.transfer_us[at] / usual[at], usual[at])
    ratio[found] = middle
    error = np.zeros(count)
    logs = np.log(np.maximum(m.transfer_us[at] / usual[at], 1e-6)) - np.log(np.maximum(ratio[of], 1e-6))
    _, off = weighted_medians(of, np.abs(logs), usual[at])
    number_of = np.bincount(of, minlength=count)[found]
    error[found] = 1.25 * MAD_TO_SIGMA * off / np.sqrt(np.maximum(number_of, 1))
    return Transfers(
        members,
        _Hosts(frame, members),
        ratio,
        error,
        expected > 0,
        moved,
        expected,
        seen >= size,
        host_count,
        excess,
        frame,
    )


def _distinct_by(group: Ints, value: Ints, groups: int) -> Ints:
    """How many different values each group has, shape (groups,)."""
    span = int(value.max(initial=0)) + 1
    key = group * span + value
    if not bool((key[1:] >= key[:-1]).all()):
        key = np.sort(key)
    return np.bincount(key[heads_of(key)] // span, minlength=groups)


def weighted_medians(group: Ints, values: Floats, weights: Floats) -> tuple[Ints, Floats]:
    """Groups that occur, ascending, and the weighted median of each."""
    order = np.argsort(values, kind="stable")
    order = order[stable_order(group[order])]
    group, values, weights = group[order], values[order], weights[order]
    heads = np.flatnonzero(np.diff(group, prepend=-1))
    ends = np.append(heads[1:], group.size) - 1
    total = np.cumsum(weights)
    before = np.concatenate(([0.0], total))[heads]
    at = np.searchsorted(total, before + 0.5 * (total[ends] - before)) if group.size else heads
    return group[heads], values[np.clip(at, heads, ends)]


def kind_keys(frame: Frame, m: Meetings) -> list[str]:
    """What an instance does, by name: equal in every profile of the same job."""
    names, name_of = _kind_names(frame, m)
    return [names[i] for i in name_of.tolist()]


def _kind_names(frame: Frame, m: Meetings) -> tuple[list[str], Ints]:
    """Names, one a communicator and kind, and which of them each instance has; bytes are those of the first instance."""
    name_of, count = numbered(m.communicator, m.kind)
    first = np.empty(count, np.int64)
    first[name_of[::-1]] = np.arange(name_of.size)[::-1]
    names = []
    for at, size in zip(first.tolist(), m.bytes[first].tolist(), strict=True):
        c = frame.communicators[int(m.communicator[at])]
        names.append(f"{c.kind or c.name}/{c.backend}/{frame.kinds[int(m.kind[at])]}/{size}/{c.size}")
    return names, name_of


def _usual(family: Ints, m: Meetings, communicators: int) -> Floats:
    """Usual transfer of each instance: a low quantile of the medians of its family's communicators; 0 without peers."""
    whole = np.flatnonzero(m.members > 1)
    usual = np.zeros(int(family.max(initial=-1)) + 1)
    if whole.size == 0:
        return usual[family]
    cell = family[whole] * communicators + m.communicator[whole]
    cells, mean = weighted_medians(cell, m.transfer_us[whole], np.ones(whole.size))
    of_cell = cells // communicators
    order = np.lexsort((mean, of_cell))
    heads = np.flatnonzero(np.diff(of_cell[order], prepend=-1))
    size = np.diff(np.append(heads, order.size))
    at = heads + np.floor(USUAL_QUANTILE * (size - 1)).astype(np.int64)
    low = mean[order][at]
    usual[of_cell[order][heads]] = np.where(size > 1, low, 0.0)
    return usual[family]
