"""How long communicators take to move their bytes, waiting taken off, against others that do the same.

All members of a collective end together and the last to arrive waits for nobody, so the shortest duration is the transfer. Who is
late lengthens the others' durations and not the transfer; a slow link lengthens the transfer itself, on all members alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.robust import MAD_TO_SIGMA

Bools = npt.NDArray[np.bool_]
USUAL_QUANTILE = 0.25
"""What the faster communicators of a family reach is usual: faults only make transfers slower."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Columns over the communicators of a frame; µs."""

    members: list[Ints]
    """Rows seen in each communicator, ascending."""
    hosts: list[frozenset[str]]
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
    lost_us: Floats
    """Exposed time per step that its slow transfers cost its worst-hit member."""


@dataclass(frozen=True, slots=True)
class Meetings:
    """Executions by what their members share: columns over the instances of a frame."""

    first: Ints
    """An entry of each instance: that of the member that waited least."""
    transfer_us: Floats
    members: Ints
    communicator: Ints
    kind: Ints


def meetings(frame: Frame) -> Meetings:
    """All instances; the transfer of one of which a single member was seen is an upper bound."""
    e = frame.executions
    order = np.lexsort((np.arange(e.size), e.duration_us, e.instance))
    heads = np.flatnonzero(np.diff(e.instance[order], prepend=-1))
    first = order[heads]
    return Meetings(
        first=first,
        transfer_us=e.duration_us[first],
        members=np.diff(np.append(heads, e.size)),
        communicator=e.communicator[first],
        kind=e.kind[first],
    )


def measure_transfers(frame: Frame, past: dict[str, float] | None = None) -> Transfers:
    """Transfers of each communicator against its family.

    A family are the communicators that make the same operations (kind of group, operation, place in the step, bytes) with equally
    many members on equally many hosts.

    :param past: usual transfer by :func:`kind_keys` in a healthy profile of the same job, µs; it stands for the family.
    """
    e, count = frame.executions, len(frame.communicators)
    members: list[Ints] = [np.empty(0, np.int64)] * count
    if e.size == 0:
        nothing = np.zeros(count)
        return Transfers(
            members, [frozenset()] * count, nothing + 1, nothing, nothing > 0, nothing, nothing, nothing > 0, nothing
        )
    pairs = np.unique(np.stack((e.communicator, e.row)), axis=1)
    for part in np.split(pairs, np.flatnonzero(np.diff(pairs[0])) + 1, axis=1):
        members[int(part[0, 0])] = part[1]
    hosts = [frozenset(frame.hosts[row] for row in rows.tolist()) for rows in members]
    m = meetings(frame)
    shape = np.array(
        [(c.size or rows.size, len(where)) for c, rows, where in zip(frame.communicators, members, hosts, strict=True)]
    )
    key = np.stack((m.kind, e.bytes[m.first], shape[m.communicator, 0], shape[m.communicator, 1]))
    _, family = np.unique(key, axis=1, return_inverse=True)
    family = family.reshape(-1)
    usual = _usual(family, m, count)
    if past:
        keys = kind_keys(frame, m)
        known = np.array([past.get(k, 0.0) for k in keys])
        usual = np.where(known > 0, known, usual)
    usable = (usual > 0) & (m.members > 1)
    moved, expected = np.zeros(count), np.zeros(count)
    np.add.at(moved, m.communicator[usable], m.transfer_us[usable])
    np.add.at(expected, m.communicator[usable], usual[usable])
    excess = np.where(usable, np.maximum(m.transfer_us - usual, 0.0), 0.0)
    at = np.flatnonzero(usable)
    ratio = np.ones(count)
    found, middle = weighted_medians(m.communicator[at], m.transfer_us[at] / usual[at], usual[at])
    ratio[found] = middle
    error = np.zeros(count)
    logs = np.log(np.maximum(m.transfer_us[at] / usual[at], 1e-6)) - np.log(np.maximum(ratio[m.communicator[at]], 1e-6))
    _, off = weighted_medians(m.communicator[at], np.abs(logs), usual[at])
    number = np.bincount(m.communicator[at], minlength=count)[found]
    error[found] = 1.25 * MAD_TO_SIGMA * off / np.sqrt(np.maximum(number, 1))
    complete = np.array([rows.size >= c.size for c, rows in zip(frame.communicators, members, strict=True)], dtype=np.bool_)
    return Transfers(members, hosts, ratio, error, expected > 0, moved, expected, complete, _lost(frame, excess))


def weighted_medians(group: Ints, values: Floats, weights: Floats) -> tuple[Ints, Floats]:
    """Groups that occur, ascending, and the weighted median of each."""
    order = np.lexsort((values, group))
    group, values, weights = group[order], values[order], weights[order]
    heads = np.flatnonzero(np.diff(group, prepend=-1))
    ends = np.append(heads[1:], group.size) - 1
    total = np.cumsum(weights)
    before = np.concatenate(([0.0], total))[heads]
    at = np.searchsorted(total, before + 0.5 * (total[ends] - before)) if group.size else heads
    return group[heads], values[np.clip(at, heads, ends)]


def kind_keys(frame: Frame, m: Meetings) -> list[str]:
    """What an instance does, by name: equal in every profile of the same job."""
    e = frame.executions
    names: dict[tuple[int, int], str] = {}
    out = []
    for communicator, kind, size in zip(m.communicator.tolist(), m.kind.tolist(), e.bytes[m.first].tolist(), strict=True):
        key = (communicator, kind)
        if key not in names:
            c = frame.communicators[communicator]
            names[key] = f"{c.kind or c.name}/{c.backend}/{frame.kinds[kind]}/{size}/{c.size}"
        out.append(names[key])
    return out


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


def _lost(frame: Frame, excess: Floats) -> Floats:
    """What slow transfers cost a step at the worst-hit member of each communicator, and no more than what of them is exposed."""
    e = frame.executions
    steps = np.unique(e.step)
    _, instance = np.unique(e.instance, return_inverse=True)
    key = np.stack((e.communicator, e.row, e.step))
    cells, inverse = np.unique(key, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    slow, exposed = np.zeros(cells.shape[1]), np.zeros(cells.shape[1])
    np.add.at(slow, inverse, excess[instance.reshape(-1)])
    np.add.at(exposed, inverse, np.maximum(e.exposed_us, 0.0))
    by_member, at = np.unique(cells[:2], axis=1, return_inverse=True)
    lost = np.zeros(by_member.shape[1])
    np.add.at(lost, at.reshape(-1), np.minimum(slow, exposed) / max(steps.size, 1))
    out = np.zeros(len(frame.communicators))
    np.maximum.at(out, by_member[0], lost)
    return out
