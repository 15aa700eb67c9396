"""Who waited for whom, without comparing clocks: all members of a collective end together, so the shortest waited least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.localizer.frame import Executions, Floats, Frame, Ints
from eroica.localizer.numbering import distinct

QUEUED_US = 100.0
"""Executions of a communicator that follow each other this closely stood in its queue: a wait in one delays the next."""
AT_ONCE = 131_072
"""Entries."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Per entry of ``Frame.executions``.

    ``wait_us`` = duration − shortest duration among the members, and no more than what of it reaches the critical path, in this
    execution or in those that queue behind it.
    ``arriver`` is the entry of the member that arrived last, -1 where nobody waited for anybody. ``previous`` is the
    worker's entry before, -1 at the start of the window.
    """

    wait_us: Floats
    transfer_us: Floats
    arriver: Ints
    previous: Ints
    own_us: Floats
    """The worker's own time since its previous synchronisation."""

    @property
    def total_us(self) -> float:
        """All waiting."""
        return float(self.wait_us.sum())


def measure(frame: Frame) -> Waiting:
    """Measure waiting and own time.

    Own time before a collective is its start less the end of the worker's previous one, across step boundaries too: what follows
    the last collective of a step (the optimizer, the next batch) counts for the first of the next. Before the first collective of
    the window only the time since the step's start is known.
    """
    e = frame.executions
    n = e.size
    if n == 0:
        empty, none = np.empty(0), np.empty(0, np.int64)
        return Waiting(empty, empty, none, none, empty)
    m = frame.meetings
    shortest, shared = m.transfer_us[e.instance], (m.members > 1)[e.instance]
    wait = np.where(shared, e.duration_us - shortest, 0.0)
    start = starts_of(frame)
    wait = _exposed(frame, start, wait)
    same = np.concatenate(([False], e.row[1:] == e.row[:-1]))
    return Waiting(
        wait_us=wait,
        transfer_us=shortest,
        arriver=np.where(shared, _arrivers(e, shortest, m.members.size)[e.instance], -1),
        previous=np.where(same, np.arange(n) - 1, -1),
        own_us=_own_time(e, start, same),
    )


def _arrivers(e: Executions, shortest: Floats, instances: int) -> Ints:
    """An entry of each instance: that of the member that waited least; of several the first."""
    first = np.empty(instances, np.int64)
    least = np.flatnonzero(e.duration_us == shortest)[::-1]
    first[e.instance[least]] = least
    return first


def partial(frame: Frame) -> Ints:
    """Instances of which a member is missing: the true last arriver may be unseen."""
    m, size = frame.meetings, np.array([c.size for c in frame.communicators], dtype=np.int64)
    return np.flatnonzero(m.members < size[m.communicator]) if size.size else np.empty(0, np.int64)


def _exposed(frame: Frame, start: Floats, wait: Floats) -> Floats:
    """What of each wait reaches the critical path, µs.

    A wait may hide behind compute and still cost its whole length: what queues behind it on the same communicator comes later by
    it and is hidden no more. Within such a queue the waits are paid, in order, by what is exposed from there on; what is not paid
    by its end was hidden.
    """
    e, order = frame.executions, frame.members.order
    if bool(((e.row[1:] == e.row[:-1]) & (start[1:] < start[:-1])).any()):
        # Steps that overlap by the worker's own clock: entries are not in the order of their starts.
        order = np.lexsort((start, e.communicator, e.row))
    paid = np.empty_like(wait)
    for low, high in _blocks(e.row):
        part = order[low:high]
        paid[part] = _paid(
            wait[part], np.maximum(e.exposed_us[part], 0.0), start[part], e.duration_us[part], e.row[part], e.communicator[part]
        )
    return paid


def _blocks(row: Ints) -> Iterator[tuple[int, int]]:
    """Entries of whole workers, some ``AT_ONCE`` at a time: what is computed on the way stays in the processor's cache."""
    low = 0
    while low < row.size:
        high = min(low + AT_ONCE, row.size)
        high = int(np.searchsorted(row, row[high - 1], side="right"))
        yield low, high
        low = high


def _paid(w: Floats, x: Floats, begin: Floats, duration: Floats, row: Ints, communicator: Ints) -> Floats:
    """The part of the waits *w* that the exposed times *x* pay, entries by worker, communicator and start."""
    end = begin + duration
    broken = (row[1:] != row[:-1]) | (communicator[1:] != communicator[:-1]) | (begin[1:] - end[:-1] > QUEUED_US)
    heads = np.concatenate(([0], np.flatnonzero(broken) + 1))
    queue = np.concatenate(([0], np.cumsum(broken)))
    tails = np.append(heads[1:], w.size) - 1
    owed = np.cumsum(w - x)
    owed -= (owed[heads] - (w - x)[heads])[queue]
    hidden = owed[tails] - np.minimum(np.minimum.reduceat(owed, heads), 0.0)
    waited = np.cumsum(w)
    later = waited[tails][queue] - waited
    return np.asarray(w - np.clip(hidden[queue] - later, 0.0, w))


def _own_time(e: Executions, start: Floats, same: npt.NDArray[np.bool_]) -> Floats:
    """Start of each entry on its worker's own time line, less the latest end before it."""
    end = start + e.duration_us
    # The latest end so far of the same worker, since collectives may overlap: workers are kept apart by an offset.
    span = float(end.max(initial=0.0)) - min(0.0, float(start.min(initial=0.0))) + 1.0
    latest = np.maximum.accumulate(end + e.row * span) - e.row * span
    before = np.where(same, np.concatenate(([0.0], latest[:-1])), start - e.start_us)
    return np.maximum(start - before, 0.0)


def starts_of(frame: Frame) -> Floats:
    """Start of each execution in its worker's window, by the worker's own clock, µs."""
    e = frame.executions
    return np.asarray(_step_starts(frame, e) + e.start_us)


def _step_starts(frame: Frame, e: Executions) -> Floats:
    """Start of each entry's step in its worker's window, µs; 0 where the worker does not tell the step."""
    if frame.step.size == 0:
        return np.zeros(e.size)
    steps, at = distinct(np.concatenate((frame.step, e.step)))
    table = np.zeros((frame.size, steps.size))
    known = frame.step.size
    # A worker that tells a step twice: the first counts.
    table[frame.step_row[::-1], at[:known][::-1]] = frame.step_start_us[::-1]
    return np.asarray(table[e.row, at[known:]])
