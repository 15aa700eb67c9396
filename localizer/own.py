"""A worker's own time in each step: what is left of the step without the time in which it only communicates.

All ranks of a job end a step together, so the durations of steps say nothing. Own time does: who is slow has more of it than its
peers of the same role, and they have as much more waiting. What is compared is exposed time only; a transfer that compute hides
costs nobody anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.reference import (
    CLIPPED,
    MIN_PEERS,
    PAIR,
    Bools,
    as_before,
    by_growth,
    healthy,
    the_other,
    unequal_pairs,
)
from eroica.localizer.robust import MAD_TO_SIGMA, column_medians, median, row_medians, sorted_columns, spread_of

ONCE = ("data", "optimizer")
"""Phases that come once a step, however many micro-batches it has."""
FLOOR, FLOOR_FEW = 0.0075, 5.0
"""The lasting difference between equal machines is taken as at least this share of the own time, and as more in small roles,
whose spread is known badly: times 1 + the second / peers."""
FLOOR_KNOWN, FLOOR_KNOWN_FEW = 0.005, 3.0
"""The same where each worker's own way is known from the past."""
LASTING_KNOWN = 0.01
"""What lasts between peers counts up to this share of the own time against a worker whose own way is known."""
MAX_WIDER = 6.0
"""A limit is widened so many times at most for few samples; the floor guards the rest."""
RESTLESS, WILD = 0.02, 1.5
"""Where single steps spread by more than this share, chance has longer tails than the normal distribution: so many times."""
MAX_BIAS = 0.03
"""A worker that was slower than its role in the healthy past by more than this share is slow, not different."""
FALSE_ALARMS = 1e-3
"""Chance that a healthy frame holds an outlier by the normal distribution, however many workers it has."""

_N = TypeVar("_N", float, Floats)


@dataclass(frozen=True)
class Past:
    """What a healthy profile of the same job showed. Times in µs per step."""

    request: str
    event_time_us: int
    own_us: dict[str, float]
    """Class → usual own time."""
    step_us: float
    once_us: dict[str, float] = field(default_factory=dict)
    """Class → the part of its own time that comes once a step."""
    spread_us: dict[str, float] = field(default_factory=dict)
    """Class → spread of a worker's own time from step to step."""
    own_by_rank: dict[int, float] = field(default_factory=dict)
    """Rank → its own time, of roles small enough to tell."""
    busy_us: float = 0.0
    """What the own times make of a step, without communication."""
    lost_us: float = 0.0
    """Time of a step that went to ranks slower than usual in their role, whoever it was."""
    functions: dict[str, dict[str, float]] = field(default_factory=dict)
    """Class → function (as ``past.function_key``) → exclusive time per step."""
    transfers: dict[str, float] = field(default_factory=dict)
    """What a communicator does (``transfers.kind_keys``) → its usual duration."""


@dataclass(frozen=True)
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
    parts_us: Floats
    """Shape (2, n, s): own time that is spent once a step (loading, optimizer), and the rest."""
    usual_parts_us: Floats
    spread_us: Floats
    """Shape (n,): spread of a single step's own time in the role."""
    excess_us: Floats
    """Shape (n,): own time above the usual that most steps reach."""
    z: Floats
    """Shape (n,): ``excess_us`` in robust standard deviations of the role."""
    limit: Floats
    """Shape (n,): the ``z`` beyond which chance is no explanation, by the number of workers."""
    comparable: Bools
    """Shape (n,): whether the role is large enough to compare."""
    guessed: Bools
    """Shape (n,): whether only the job's growth tells who of the role is as usual."""
    _mended: dict[bytes, Floats] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def typical_wait_us(self) -> Floats:
        """Shape (n,): median of ``wait_us`` over the steps; 0 without steps."""
        return row_medians(self.wait_us) if self.steps.size else np.zeros(self.wait_us.shape[0])

    @cached_property
    def typical_usual_us(self) -> Floats:
        """Shape (n,): median of ``usual_us`` over the steps, of which there is at least one."""
        return row_medians(self.usual_us)

    def mended(self, rows: Ints) -> Floats:
        """``parts_us`` with *rows* as fast as usual; not to be written to."""
        if rows.size == 0:
            return self.parts_us
        if (key := rows.tobytes()) not in self._mended:
            out: Floats = self.parts_us.copy()
            out[:, rows] = np.minimum(out[:, rows], self.usual_parts_us[:, rows])
            out.setflags(write=False)
            self._mended[key] = out
        return self._mended[key]


def measure_own(
    frame: Frame, least_z: float, past: Past | None = None, sick: Bools | None = None, grown_us: float = 0.0
) -> OwnTime:
    """Own times of *frame* by step, compared within each role.

    :param least_z: no limit is below this.
    :param past: a healthy profile: tells which part of a role is as usual where there is doubt, and what is each rank's way.
    :param sick: shape (n,): workers whose readings are bad; where the past does not tell, they do not show what is usual.
    :param grown_us: what a step takes longer than the job's iterations did; it tells which of two grew, where no past does.
    """
    steps, step_us = frame.step_table()
    wait = np.minimum(_exposed(frame, steps), step_us)
    own = step_us - wait
    n = frame.size
    once = np.minimum(phase_table(frame, steps, ONCE), own)
    parts = np.stack((once, own - once))
    usual_parts = parts.copy()
    usual = own.copy()
    spread, excess, z, between, few = (np.zeros(n) for _ in range(5))
    comparable, known = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    level = np.ones(n)
    limit = np.full(n, max(least_z, chance_limit(n)))
    guessed = np.zeros(n, dtype=np.bool_)
    unequal = unequal_pairs(frame, own) if past is None and steps.size else {}
    for role in frame.roles if steps.size else []:
        rows = frame.rows_of(role)
        then = past.own_us.get(frame.classes[role], 0.0) if past else 0.0
        mine, its_parts = own[rows], parts[:, rows]
        told = _told_by_rank(frame.ranks[rows], past)
        known[rows] = ~np.isnan(told)
        each = told if bool((told > 0).all()) else None
        reference = as_before(mine, then, each, past.spread_us.get(frame.classes[role], 0.0) if past else 0.0)
        if reference is None and each is not None and mine.shape[0] == PAIR:
            reference = the_other(mine, each)
        if reference is None:
            reference = unequal.get(role)
        if reference is None and past is None and mine.shape[0] >= PAIR:
            reference = by_growth(mine, grown_us)
            guessed[rows] = reference is not None
        alone = reference is None
        if reference is None:
            well = np.ones(mine.shape[0], dtype=np.bool_) if sick is None else ~sick[rows]
            some = not bool(well.all()) and bool(well.any())
            reference = well if some else healthy(mine, frame.hosts.code[rows], frame.hosts.names)
        every = bool(reference.all())
        usual[rows] = column_medians(mine if every else mine[reference])
        for part in (0, 1):
            usual_parts[part, rows] = column_medians(its_parts[part] if every else its_parts[part][reference])
        level[rows] = median(usual[rows][0])
        if mine.shape[0] < MIN_PEERS and (mine.shape[0] < PAIR or alone):
            continue
        apart = mine - usual[rows]
        if past is not None:
            apart -= _own_bias(told, then)
        spread[rows], excess[rows], comparable[rows] = _noise(apart), lasting_level(apart), True
        between[rows] = _lasting_spread(excess[rows][reference])
        few[rows] = int(reference.sum())
    known &= comparable
    rows = np.flatnonzero(comparable)
    if rows.size:
        # Roles differ in what they do, hardly in how much chance does to it: all of them tell of the spread.
        pooled = median(between[rows] / level[rows]) * level[rows] * few_samples(float(limit[0]), rows.size - 1)
        single = 1.25 * spread[rows] / np.sqrt(steps.size) * few_samples(float(limit[0]), rows.size * (steps.size - 1))
        lasting = np.maximum(pooled, between[rows])
        # Who is held against its own past differs from it by the chance of two profiles, not by what lasts between peers.
        lasting = np.where(known[rows], np.minimum(lasting, LASTING_KNOWN * level[rows]), lasting)
        chance = np.hypot(np.where(known[rows], np.sqrt(2), 1.0) * single, lasting)
        chance = np.where(spread[rows] > RESTLESS * level[rows], WILD * chance, chance)
        share = np.where(known[rows], FLOOR_KNOWN * (1 + FLOOR_KNOWN_FEW / few[rows]), floor_share(few[rows]))
        floor = share * level[rows]
        z[rows] = excess[rows] / np.maximum(np.maximum(chance, floor), 1e-9)
    parts.setflags(write=False)
    return OwnTime(steps, step_us, wait, own, usual, parts, usual_parts, spread, excess, z, limit, comparable, guessed)


def chance_limit(count: int) -> float:
    """Standard deviations that none of *count* reaches but by a chance of :data:`FALSE_ALARMS`."""
    return -NormalDist().inv_cdf(FALSE_ALARMS / max(count, 1))


def few_samples(limit: float, freedom: int) -> float:
    """How much wider a limit of the normal distribution must be where the spread comes from few samples.

    Ratio of Student's quantile to the normal one, by the first terms of its expansion (Hill, CACM 13 (1970), algorithm 396).
    """
    n = max(freedom, 1)
    return min(MAX_WIDER, 1 + (limit**2 + 1) / (4 * n) + (5 * limit**4 + 16 * limit**2 + 3) / (96 * n**2))


def floor_share(peers: _N) -> _N:
    """Share of the own time that lasting differences between so many equal machines are taken as at least."""
    return FLOOR * (1 + FLOOR_FEW / peers)


def _lasting_spread(lasting: Floats) -> float:
    """Spread of what lasts between peers, those far out left aside, so that three culprits do not hide each other."""
    middle = median(lasting)
    spread = spread_of(lasting)
    near = lasting[np.abs(lasting - middle) <= CLIPPED * spread]
    return spread_of(near) if near.size else spread


def _noise(apart: Floats) -> float:
    """Spread of a single step around each worker's own way, shape (peers, s) → one figure."""
    return MAD_TO_SIGMA * median(np.abs(apart - row_medians(apart)[:, None]))


def lasting_level(table: Floats) -> Floats:
    """Value that two thirds of the columns of each row reach: what happens in one of two or three steps does not last."""
    return np.asarray(sorted_columns(table)[(table.shape[1] - 1) // 3])


def _told_by_rank(ranks: Ints, past: Past | None) -> Floats:
    """Own time of each of *ranks* in the healthy profile, shape (peers,); NaN where it does not tell."""
    known = past.own_by_rank if past is not None else {}
    return np.array([known.get(rank, np.nan) for rank in ranks.tolist()]) if known else np.full(ranks.size, np.nan)


def _own_bias(told: Floats, usual: float) -> Floats:
    """How much slower than the *usual* of its role each worker was in the healthy past, shape (peers, 1); 0 where not *told*."""
    then = np.where(np.isnan(told), usual, told)
    return np.asarray(np.clip(then - usual, -MAX_BIAS * usual, MAX_BIAS * usual))[:, None]


def phase_table(frame: Frame, steps: Ints, names: tuple[str, ...]) -> Floats:
    """Time of some phases by worker and step, shape (n, s)."""
    table = np.zeros((frame.size, steps.size))
    for name in names if steps.size else ():
        if name in frame.phases_us:
            table += frame.phase_table(steps, name)
    return table


def _exposed(frame: Frame, steps: Ints) -> Floats:
    """Exposed communication of each worker in *steps*, shape (n, s): as its phases tell, else the sum of its executions."""
    table = phase_table(frame, steps, ("comm_wait",))
    if steps.size == 0:
        return table
    told = np.zeros(frame.size, dtype=np.bool_)
    if "comm_wait" in frame.phases_us:
        for name in ("comm_wait", *frame.phases_us):
            if told.all():
                return table
            told[frame.step_row[frame.phases_us[name] > 0]] = True
    for block in frame.collectives.blocks():
        mine = np.flatnonzero(~told[block.row])
        mine = mine[np.isin(block.step[mine], steps)]
        at = (block.row[mine], np.searchsorted(steps, block.step[mine]))
        np.add.at(table, at, np.maximum(block.floats("exposed_us")[mine], 0.0))
    return table
