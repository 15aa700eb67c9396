"""A worker's own time in each step: what is left of the step without the time in which it only communicates.

All ranks of a job end a step together, so the durations of steps say nothing. Own time does: who is slow has more of it than its
peers of the same role, and they have as much more waiting. What is compared is exposed time only; a transfer that compute hides
costs nobody anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.robust import MAD_TO_SIGMA

MIN_PEERS = 3
"""Fewer workers in a role cannot show which of them is the odd one."""
FLOOR = 0.01
"""The lasting difference between equal machines is taken as at least this share of the own time …"""
FLOOR_FEW = 3.0
"""… and more in small roles, whose spread is known badly: times 1 + this / peers."""
MIN_HEALTHY = 1 / 3
"""The faster cluster of a role counts as usual if it has at least this share of its workers."""
GAP_SPREADS, GAP_SHARE = 6.0, 0.02
"""Two clusters lie apart by so many spreads of the faster one, and by this share of the own time."""
FALSE_ALARMS = 1e-3
"""Chance that a healthy frame holds an outlier by the normal distribution, however many workers it has."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OwnTime:
    """Tables over the frame's workers and the steps that all of them profiled; µs."""

    steps: Ints
    step_us: Floats
    """Shape (n, s), as all below."""
    wait_us: Floats
    """Exposed time in collectives and point-to-point transfers."""
    own_us: Floats
    usual_us: Floats
    """Own time that is usual in the role, step by step."""
    spread_us: Floats
    """Shape (n,): spread of a single step's own time in the role."""
    excess_us: Floats
    """Shape (n,): own time above the usual in the median step."""
    z: Floats
    """Shape (n,): ``excess_us`` in robust standard deviations of the role."""
    limit: Floats
    """Shape (n,): the ``z`` beyond which chance is no explanation, by the number of workers."""
    comparable: Bools
    """Shape (n,): whether the role is large enough to compare."""

    def mended(self, rows: Ints) -> Floats:
        """Own times with *rows* as fast as usual."""
        out = self.own_us.copy()
        out[rows] = np.minimum(out[rows], self.usual_us[rows])
        return out


def measure_own(frame: Frame, least_z: float) -> OwnTime:
    """Own times of *frame* by step, compared within each role.

    :param least_z: no limit is below this.
    """
    steps, step_us = frame.step_table()
    wait = np.minimum(_exposed(frame, steps), step_us)
    own = step_us - wait
    n = frame.size
    usual = own.copy()
    spread, excess, z = np.zeros(n), np.zeros(n), np.zeros(n)
    comparable = np.zeros(n, dtype=np.bool_)
    limit = np.full(n, max(least_z, -NormalDist().inv_cdf(FALSE_ALARMS / max(n, 1))))
    for role in np.unique(frame.cls).tolist() if steps.size else []:
        rows = np.flatnonzero(frame.cls == role)
        reference = _healthy(own[rows])
        usual[rows] = np.median(own[rows][reference], axis=0)
        if rows.size < MIN_PEERS:
            continue
        apart = own[rows] - usual[rows]
        lasting = np.median(apart, axis=1)
        each = MAD_TO_SIGMA * float(np.median(np.abs(apart[reference] - lasting[reference][:, None])))
        between = MAD_TO_SIGMA * float(np.median(np.abs(lasting[reference] - np.median(lasting[reference]))))
        floor = FLOOR * (1 + FLOOR_FEW / int(reference.sum())) * float(np.median(usual[rows[0]]))
        spread[rows], excess[rows], comparable[rows] = each, lasting, True
        z[rows] = lasting / max(between, 1.25 * each / np.sqrt(steps.size), floor, 1e-9)
    return OwnTime(steps, step_us, wait, own, usual, spread, excess, z, limit, comparable)


def _healthy(own: Floats) -> Bools:
    """Which peers show what is usual: all, or the faster ones where the role falls into two.

    :param own: shape (peers, steps). With a host of a small job half a role may be slow, and the median lies between the halves.
    """
    level = np.median(own - np.median(own, axis=0), axis=1)
    everyone = np.ones(level.size, dtype=np.bool_)
    if level.size < MIN_PEERS + 1:
        return everyone
    order = np.sort(level)
    least = max(2, int(np.ceil(MIN_HEALTHY * level.size)))
    gaps = np.diff(order)[least - 1 :]
    if gaps.size == 0:
        return everyone
    at = least - 1 + int(np.argmax(gaps))
    lower = order[: at + 1]
    within = max(MAD_TO_SIGMA * float(np.median(np.abs(lower - np.median(lower)))), 1e-9)
    gap = float(order[at + 1] - order[at])
    if gap < GAP_SPREADS * within or gap < GAP_SHARE * float(np.median(own)):
        return everyone
    return np.asarray(level <= order[at])


def _exposed(frame: Frame, steps: Ints) -> Floats:
    """Exposed communication of each worker in *steps*, shape (n, s): as its phases tell, else the sum of its executions."""
    table = np.zeros((frame.size, steps.size))
    if steps.size == 0:
        return table
    told = np.zeros(frame.size, dtype=np.bool_)
    if "comm_wait" in frame.phases_us:
        inside = np.isin(frame.step, steps)
        at = np.searchsorted(steps, frame.step[inside])
        table[frame.step_row[inside], at] = frame.phases_us["comm_wait"][inside]
        told[frame.step_row[sum(frame.phases_us.values(), np.zeros(frame.step.size)) > 0]] = True
    e = frame.executions
    mine = np.flatnonzero(np.isin(e.step, steps) & ~told[e.row]) if e.size else np.empty(0, np.int64)
    np.add.at(table, (e.row[mine], np.searchsorted(steps, e.step[mine])), np.maximum(e.exposed_us[mine], 0.0))
    return table
