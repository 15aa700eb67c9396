"""Which steps of two workers are the same, by the collectives that both took part in: told without numbers and without clocks.

Where collectives carry their sequence number in a communicator that both name alike, equal numbers are one collective. Else the
order of kinds and sizes must fit, and the ends, which come at one moment for all members, must agree at one place alone: steps
that repeat exactly fit at many, and then nothing is said. Pure.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from eroica.producers.trace.columns import Ints
from eroica.producers.trace.pulse import MIN_SHARED, SPREAD_US, Pulse, fits, limit_us

__all__ = ["apart", "shift_to"]

AGREE = 0.9
"""Share of the shared collectives that must say the same."""
CLEAR = 3.0
"""The next best place of the one list against the other must fit so many times worse."""
CLEAR_US = 1.0
MIN_STEPS = 2
"""The order of collectives in a single step fits that of any other."""
ONE_WAY = ("send", "recv")
"""Not all members take part in these, so that they count them differently."""


def shift_to(own: Pulse, other: Pulse) -> int | None:
    """What to add to *own*'s step numbers to get *other*'s; ``None`` if their collectives do not tell."""
    pairs = _by_sequence(own, other)
    if pairs is None:
        pairs = _by_order(own, other)
    if pairs is None:
        return None
    mine, theirs = pairs
    a, b = _step_of(own, mine), _step_of(other, theirs)
    both = (a >= 0) & (b >= 0)
    if np.count_nonzero(both) < MIN_SHARED:
        return None
    found = Counter((other.steps.number[b[both]] - own.steps.number[a[both]]).tolist()).most_common(1)[0]
    return int(found[0]) if found[1] >= AGREE * np.count_nonzero(both) else None


def apart(own: Pulse, other: Pulse, by: int = 0) -> bool:
    """Whether no clock says that steps of one number, with *by* added to *own*'s, were at one time."""
    place = {int(n): i for i, n in enumerate(other.steps.number.tolist())}
    pairs = [(i, place[n + by]) for i, n in enumerate(own.steps.number.tolist()) if n + by in place]
    if not pairs:
        return True
    mine = np.array([own.steps.start_us[i] + own.origin_us for i, _ in pairs])
    theirs = np.array([other.steps.start_us[i] + other.origin_us for _, i in pairs])
    length = float(np.median(other.steps.end_us - other.steps.start_us))
    return float(np.median(np.abs(mine - theirs))) >= length / 2


def _by_sequence(own: Pulse, other: Pulse) -> tuple[Ints, Ints] | None:
    """Collectives with one number in one communicator, of one kind; ``None`` with too few, or where most are of two kinds."""
    place: dict[tuple[str, int], list[int]] = {}
    for i, key in enumerate(other.number):
        if key is not None:
            place.setdefault(key, []).append(i)
    pairs = []
    seen: set[tuple[str, int]] = set()
    for i, key in enumerate(own.number):
        if key is not None and key not in seen and not own.kind[i].startswith(ONE_WAY) and len(place.get(key, ())) == 1:
            seen.add(key)
            pairs.append((i, place[key][0]))
    same = [(a, b) for a, b in pairs if own.kind[a] == other.kind[b] and own.size[a] == other.size[b]]
    if len(same) < max(MIN_SHARED, AGREE * len(pairs)):
        return None
    mine, theirs = np.array(same, np.int64).T
    ahead = own.end[mine] - other.end[theirs]
    return (mine, theirs) if np.median(np.abs(ahead - np.median(ahead))) <= limit_us(other) else None


def _by_order(own: Pulse, other: Pulse) -> tuple[Ints, Ints] | None:
    """Collectives in the one order that fits; ``None`` if none does, or several."""
    if min(own.steps.number.size, other.steps.number.size) < MIN_STEPS:
        return None
    found = sorted(fits(own, other))
    if not found or found[0][0] > SPREAD_US or (len(found) > 1 and found[1][0] <= CLEAR * found[0][0] + CLEAR_US):
        return None
    _, lag, _ = found[0]
    theirs = np.arange(max(0, -lag), min(len(other.kind), len(own.kind) - lag))
    same = np.array([own.size[b + lag] == other.size[b] for b in theirs.tolist()])
    return (theirs + lag, theirs) if same.mean() >= AGREE else None


def _step_of(pulse: Pulse, rows: Ints) -> Ints:
    """Place of the step in which each was issued; −1 outside of all."""
    at = pulse.issued[rows] - pulse.origin_us
    place = pulse.steps.of(at)
    return np.where((place >= 0) & (at < pulse.steps.end_us[np.maximum(place, 0)]), place, -1)
