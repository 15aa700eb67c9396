"""Which workers of a role show what is usual in it, where the median of all of them does not.

In a role of two, and where half of a role is slow, own times alone do not tell who is the odd one. The healthy past tells, or the
other pairs of the job, or by how much the job became slower; else nobody knows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.robust import MAD_TO_SIGMA, column_medians, median, row_medians, spread_of

MIN_PEERS = 3
"""Fewer workers in a role cannot show which of them is the odd one."""
PAIR = 2
CLIPPED = 3.0
"""Peers beyond so many spreads do not count for the spread."""
UNEQUAL, UNEQUAL_SPREADS = 0.08, 8.0
"""Without a past, two workers of a role differ if by this share and so many times as much as the other pairs of the job do."""
MIN_HEALTHY = 1 / 3
"""The faster cluster of a role counts as usual if it has at least this share of its workers."""
SAME, CHANGED, MIN_SAME = 0.03, 0.05, 0.25
"""A worker is as before within this share of its role's own time then; a role changed beyond this; so many must be as before."""
GAP_SPREADS, GAP_SHARE = 6.0, 0.02
"""Two clusters lie apart by so many spreads of the faster one, and by this share of the own time."""
MATCHES = (0.7, 1.6)
"""Workers that differ by between so many times of what the step has grown by: the slower grew by it."""

Bools = npt.NDArray[np.bool_]


def as_before(own: Floats, then_us: float, each: Floats | None, spread_us: float) -> Bools | None:
    """Peers that are as fast as they were, where most of the role is not; ``None`` if the past does not tell.

    :param own: shape (peers, steps).
    :param each: shape (peers,): own times then where they are known one by one; else all are held against their role.
    :param spread_us: of a single step then.
    """
    if then_us <= 0:
        return None
    level = row_medians(own)
    if median(level) <= (1 + CHANGED) * then_us:
        return None
    if each is None:
        same, least = np.abs(level - then_us) <= SAME * then_us, 2
    else:
        chance = 2 * 1.25 * spread_us * np.sqrt(2 / own.shape[1])
        growth, least = level - each, 1
        same = (growth <= max(SAME * then_us, min(chance, CHANGED * then_us))) & (growth >= -2 * CHANGED * then_us)
    # Whoever is late now and then is not as before: unequal work meets all.
    same &= own.max(axis=1) <= (1 + 2 * CHANGED) * then_us + CLIPPED * spread_us
    return np.asarray(same) if int(same.sum()) >= max(least, int(np.ceil(MIN_SAME * level.size))) else None


def the_other(own: Floats, each: Floats) -> Bools | None:
    """Of a pair, the one that is as it was, if the other has become slower: no third is there to ask.

    :param own: shape (2, steps).
    :param each: shape (2,): own times then.
    """
    growth = row_medians(own) / each - 1
    out = growth <= growth.min()
    return np.asarray(out) if abs(growth.min()) <= SAME and growth.max() - growth.min() >= CHANGED else None


def by_growth(own: Floats, grown_us: float) -> Bools | None:
    """The faster ones of a role of which at least half are slower, by as much as the job became slower: that they always were,
    and something else made the job slower by just that, is less likely.

    :param own: shape (peers, steps), of two peers at least.
    :param grown_us: what a step takes longer than before.
    """
    level = row_medians(own)
    order = np.sort(level)
    least, most = max(1, int(np.ceil(MIN_SAME * order.size))), order.size // 2
    if grown_us <= 0 or least > most:
        return None
    fast = least + int(np.argmax(np.diff(order)[least - 1 : most]))
    apart = median(order[fast:]) - median(order[:fast])
    within = spread_of(order[:fast])
    told = MATCHES[0] * grown_us <= apart <= MATCHES[1] * grown_us and order[fast] - order[fast - 1] >= GAP_SPREADS * within
    return level <= order[fast - 1] if told else None


def unequal_pairs(frame: Frame, own: Floats) -> dict[int, Bools]:
    """Of roles of two workers who differ far more than the other pairs of the job do: which of the two shows what is usual.

    That one of them is slow is far likelier than that the other does its work in less than it takes.

    :param own: shape (n, steps).
    :returns: role → shape (2,).
    """
    pairs = [role for role, count in enumerate(np.bincount(frame.cls).tolist()) if count == PAIR]
    if len(pairs) < MIN_PEERS:
        return {}
    level = row_medians(own)
    each = np.stack([level[frame.rows_of(role)] for role in pairs])
    gap = (each[:, 0] - each[:, 1]) / np.maximum(each.min(axis=1), 1e-9)
    # Equal workers differ by nothing on the whole.
    far = np.abs(gap) >= max(UNEQUAL, UNEQUAL_SPREADS * MAD_TO_SIGMA * median(np.abs(gap)))
    return {pairs[at]: each[at] <= each[at].min() for at in np.flatnonzero(far).tolist()}


def healthy(own: Floats, host: Ints, names: list[str]) -> Bools:
    """Which peers show what is usual: all, or all but one host where that is far slower and makes up half of the role.

    In a small job the median lies between the halves. That several hosts are the slow half is as likely as that the others are
    the odd ones: then nobody knows.

    :param own: shape (peers, steps).
    :param host: of each peer, as an index into *names*.
    """
    level = row_medians(own - column_medians(own))
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
    within = max(spread_of(lower), 1e-9)
    gap = float(order[at + 1] - order[at])
    if gap < GAP_SPREADS * within or gap < GAP_SHARE * median(own):
        return everyone
    reference = level <= order[at]
    fast, slow = ({names[i] for i in np.unique(host[side]).tolist()} for side in (reference, ~reference))
    # A host that has fast workers too, or no name, is not what the slow ones have in common.
    return np.asarray(reference) if len(slow) == 1 and not slow & (fast | {""}) else everyone
