"""Waiting measured a second time, by clocks: those who meet end together, which puts every worker's clock right.

The rules use waiting without clocks (``waiting``): how long a collective took a member, less the shortest of its members. Here
the same waiting comes from when members arrived. Both hold only if members end together; where they differ that is not so, and
what either says of who waited is worth less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.waiting import Waiting, starts_of

MAX_ENTRIES = 2_000_000
"""Executions beyond which the check is left out: it is made where nobody is accused, and must not take longer than the rest."""
MAX_PASSES = 64
"""Clocks are learnt from those who met somebody whose clock is known: so many meetings between the first worker and the last."""
REFINED = 3


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks put right, and what they say of waiting."""

    offset_us: Floats
    """Shape (n,): what is added to a worker's own times to get those of the first of its component; NaN for who met nobody."""
    wait_us: Floats
    """Per execution: time from its member's arrival to that of the last one; 0 where that cannot be told."""
    agreement: float
    """Share of the waiting that both ways of measuring find, 0..1; 1 if there is none."""


def read_clocks(frame: Frame, waiting: Waiting) -> Clocks | None:
    """The check of *waiting* by clocks; ``None`` where nobody met anybody, or there is too much to look at."""
    e = frame.executions
    if e.size == 0 or e.size > MAX_ENTRIES:
        return None
    shared = np.flatnonzero(waiting.arriver >= 0)
    if shared.size == 0:
        return None
    start = starts_of(frame)[shared]
    row, instance = e.row[shared], np.unique(e.instance[shared], return_inverse=True)[1]
    duration = e.duration_us[shared]
    offset = _offsets(row, instance, start + duration, frame.size)
    arrived = start + offset[row]
    last = np.full(int(instance.max()) + 1, -np.inf)
    np.fmax.at(last, instance, arrived)
    by_clock = np.clip(np.nan_to_num(last[instance] - arrived, nan=0.0), 0.0, duration)
    without = duration - waiting.transfer_us[shared]
    most = float(np.maximum(by_clock, without).sum())
    out = np.zeros(e.size)
    out[shared] = by_clock
    return Clocks(offset, out, 1.0 - float(np.abs(by_clock - without).sum()) / most if most > 0 else 1.0)


def _offsets(row: Ints, instance: Ints, end_us: Floats, workers: int) -> Floats:
    """What each worker's clock is off by, from the ends of what it took part in; by medians, for single ends may be odd."""
    offset = np.full(workers, np.nan)
    instances = int(instance.max()) + 1
    todo = np.unique(row)
    refined = 0
    for _ in range(MAX_PASSES):
        unknown = todo[np.isnan(offset[todo])]
        if unknown.size == 0:
            refined += 1
            if refined > REFINED:
                break
        common = _medians(instance, end_us + offset[row], instances)
        found = _medians(row, common[instance] - end_us, workers)
        if unknown.size and np.isnan(found[unknown]).all():
            offset[unknown[0]] = 0.0  # nobody known meets any of the rest: another component begins
            continue
        offset = np.where(np.isnan(found), offset, found)
    return offset


def _medians(group: Ints, values: Floats, groups: int) -> Floats:
    """Median of each group's values that are no NaN, shape (groups,); NaN for a group without."""
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], group[known]))]
    count = np.bincount(group[order], minlength=groups)
    first = np.cumsum(count) - count
    some = np.flatnonzero(count)
    low, high = (first + (count - 1) // 2)[some], (first + count // 2)[some]
    out = np.full(groups, np.nan)
    out[some] = 0.5 * (values[order[low]] + values[order[high]])
    return out
