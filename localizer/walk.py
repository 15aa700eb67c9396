"""The walk: each wait is handed back to the worker who caused it, as far as its own excess explains it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.numbering import distinct, heads_of, numbered, stable_order, sums
from eroica.localizer.waiting import Waiting

MAX_DEPTH = 4_096
"""Longest chain that is followed; a chain is at most as long as the collectives of the window."""
NEGLIGIBLE_US = 0.5
"""Waiting below this is not followed further."""
AT_ONCE = 1_000_000
"""Entries that are copied at once."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Waiting, in µs, by who caused it. ``kept`` has shape (n, s) over workers and ``steps``."""

    steps: Ints
    kept: Floats
    waited: Floats
    """Waiting of each worker in each step, shape (n, s)."""
    unexplained_us: float
    """What no member's own excess explains: slow transfers, jitter below the peers' spread."""
    before_window_us: float
    """What the chains lead to at the start of the window: late before the profile began."""

    @property
    def total_us(self) -> float:
        """All waiting that was handed back."""
        return float(self.waited.sum())


def walk(frame: Frame, waiting: Waiting) -> Blame:
    """Hand back all waiting, step by step of the chains, all chains at once.

    An entry that waited *w* for its last arriver *a*: *a* keeps the share ``excess(a) / w``, where the excess is *a*'s own
    time since its previous collective above the median of its role at the same place; the share
    ``wait(previous of a) / w`` is passed to the last arriver there, unless the waiter was a member too (that wait ended
    for both together). The rest is unexplained, or, where *a* has no previous collective, late before the window.
    """
    e = frame.executions
    steps, column = distinct(e.step)
    kept, waited = np.zeros(frame.size * steps.size), np.zeros((frame.size, steps.size))
    if e.size == 0:
        return Blame(steps, waited, waited, 0.0, 0.0)
    cell = e.row * steps.size + column
    waited = sums(cell, waiting.wait_us, kept.size).reshape(frame.size, steps.size)
    excess = np.maximum(waiting.own_us - _usual(frame, waiting.own_us, column), 0.0)
    amount = waiting.wait_us.copy()
    unexplained = before = 0.0
    active = np.flatnonzero((amount > NEGLIGIBLE_US) & (waiting.arriver >= 0))
    for _ in range(MAX_DEPTH):
        if active.size == 0:
            break
        late = waiting.arriver[active]
        lateness = np.maximum(waiting.wait_us[active], NEGLIGIBLE_US)
        keeps = np.clip(excess[late] / lateness, 0.0, 1.0)
        back = waiting.previous[late]
        has_back = back >= 0
        safe = np.maximum(back, 0)
        own_back = waiting.previous[active]
        together = has_back & (own_back >= 0) & (e.instance[safe] == e.instance[np.maximum(own_back, 0)])
        inherited = np.where(has_back & ~together, waiting.wait_us[safe], 0.0)
        passes = np.minimum(np.clip(inherited / lateness, 0.0, 1.0), 1.0 - keeps)
        blamed = amount[active]
        # Guilt belongs to the step in which the waiting was suffered first: the entry of the arriver.
        np.add.at(kept, cell[late], blamed * keeps)
        rest = blamed * (1.0 - keeps - passes)
        unexplained += float(rest[has_back].sum())
        before += float(rest[~has_back].sum())
        amount[active] = 0.0
        passed = passes > 0
        met = safe[passed]
        amount[met] = 0.0
        np.add.at(amount, met, (blamed * passes)[passed])
        met = np.sort(met)
        met = met[heads_of(met)]
        active = met[(amount[met] > NEGLIGIBLE_US) & (waiting.arriver[met] >= 0)]
    return Blame(steps, kept.reshape(waited.shape), waited, unexplained, before)


def _usual(frame: Frame, own_us: Floats, step: Ints) -> Floats:
    """Median own time of a role at a place and step, for each entry; of fewer than three peers the shortest."""
    group, count = numbered(frame.executions.place, step)
    order = stable_order(group)
    heads = heads_of(group[order])
    size = np.diff(np.append(heads, group.size))
    values = own_us[order]
    middle = np.empty(count)
    # Groups of one size at a time, side by side: there are few sizes, since a role's workers do the same.
    for n in np.unique(size).tolist():
        which = np.flatnonzero(size == n)
        low, high = (n - 1) // 2, n // 2
        for some in np.array_split(which, -(-which.size * n // AT_ONCE)):
            block = np.sort(values[heads[some][:, None] + np.arange(n)], axis=1)
            middle[some] = 0.5 * (block[:, low] + block[:, high]) if n >= 3 else block[:, 0]
    return np.asarray(middle[group])
