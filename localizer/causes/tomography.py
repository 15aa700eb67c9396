"""Which place slow communicators have in common: a rank (its NIC, its NVLink), a pair of hosts, a host; many hosts: the fabric.

A place is at fault if all that goes through it is slow and little that is slow goes elsewhere. The smallest such place is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from eroica.localizer.causes.measures import Measures
from eroica.localizer.causes.readings import OddReading
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.transfers import Bools, Transfers
from eroica.schemas.verdicts import CauseClass

THROUGH = 0.75
"""Of what goes through a place at fault, at least this share is slow …"""
COVERED = 0.75
"""… and it covers this share of the time lost."""
MANY = 2
"""Without a place in common, fewer slow communicators are not the fabric."""
SINGLE_HOSTS = 2
"""Transfers over more hosts than these are the fabric's, where no smaller place fits."""
STEADY = 0.5
"""In a slow ring the link at fault is evenly slow, the others come in bursts: its sigma is below this share of theirs ([P])."""
MAX_PAIRED_HOSTS = 32
"""Pairs of hosts are looked for in communicators of so many hosts at most: larger ones tell nothing of a pair."""

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """What may be at fault: rows, hosts or links."""

    cls: CauseClass
    rows: Ints
    hosts: list[str]
    links: list[str]
    covered: float


def common_place(measures: Measures, mine: Bools, slow: Bools, weight: Floats, odd: list[OddReading]) -> Place | None:
    """The smallest place that what is slow goes through; ``None`` if there is none and little is slow.

    :param mine: communicators of the medium that can be compared, shape (communicators,); the next two are of that shape too.
    :param slow: which of them are slow.
    :param weight: time that each loses, µs.
    :param odd: counters of the medium that are bad.
    """
    frame, t = measures.frame, measures.transfers
    total = float(weight.sum())
    through, bad, covered = np.zeros(frame.size), np.zeros(frame.size), np.zeros(frame.size)
    for c in np.flatnonzero(mine).tolist():
        through[t.members[c]] += t.usual_us[c]
        if slow[c]:
            bad[t.members[c]] += t.usual_us[c]
            covered[t.members[c]] += weight[c] / total
    rows = np.flatnonzero((through > 0) & (bad >= THROUGH * through) & (covered >= COVERED))
    if rows.size:
        rows = rows[covered[rows] >= covered[rows].max() - 1e-9]
        return _narrowed(measures, rows, odd, float(covered[rows].max()))
    slow_at = np.flatnonzero(slow).tolist()
    pairs = _pairs(t, np.flatnonzero(mine & ~slow).tolist(), slow_at, weight)
    pair = _only(pairs, total, _ends(measures, odd))
    if pair is not None:
        return Place("link", np.empty(0, np.int64), list(pair), ["|".join(pair)], dict(pairs)[pair] / total)
    hosts = _hosts(t, np.flatnonzero(mine).tolist(), set(slow_at), weight)
    single = _only(hosts, total, None)
    if single is not None:
        return Place("link", np.array(measures.rows_of_hosts[single], dtype=np.int64), [single], [], dict(hosts)[single] / total)
    if len(slow_at) < MANY:
        return None  # slow, and yet nothing that the others go through too: chance, or a place that cannot be told
    return Place("fabric", np.empty(0, np.int64), [], [], 1.0)


def _only(places: list[tuple[T, float]], total: float, told: T | None) -> T | None:
    """The one place that covers the time lost; of several that cover it alike the one that the counters tell, else none."""
    if not places or places[0][1] < COVERED * total:
        return None
    alike = [place for place, share in places if share >= places[0][1] * (1 - 1e-6)]
    if told is not None and told in alike:
        return told
    return alike[0] if len(alike) == 1 else None


def _ends(measures: Measures, odd: list[OddReading]) -> tuple[str, str] | None:
    """The two hosts of which several workers each have odd counters, if it is just two."""
    rows = np.unique(np.concatenate([o.rows for o in odd])).tolist() if odd else []
    hosts = sorted({measures.frame.hosts[row] for row in rows})
    return (hosts[0], hosts[1]) if len(hosts) == 2 else None


def _narrowed(measures: Measures, rows: Ints, odd: list[OddReading], covered: float) -> Place:
    """Ranks that share all slow communicators, told apart by their counters or by how evenly their link is slow."""
    frame = measures.frame
    by_counter = np.unique(np.concatenate([o.rows for o in odd])) if odd else rows[:0]
    ends = _ends(measures, odd)
    if ends is not None and len({frame.hosts[row] for row in rows.tolist()}) > 2 and by_counter.size > 2:
        return Place("link", rows[:0], list(ends), ["|".join(ends)], covered)
    named = np.intersect1d(rows, by_counter)
    if named.size == 0:
        named = _steady(measures, rows)
    rows = named if named.size else rows
    hosts = sorted({frame.hosts[row] for row in rows.tolist()})
    by_host = measures.rows_of_hosts
    whole = len(hosts) > 1 and rows.size == sum(len(by_host[h]) for h in hosts) and max(len(by_host[h]) for h in hosts) > 1
    if whole and ends is not None and list(ends) == hosts and len(by_host) > SINGLE_HOSTS:
        return Place("link", rows[:0], hosts, ["|".join(hosts)], covered)
    if len(hosts) > SINGLE_HOSTS or whole:
        return Place("fabric", rows[:0], hosts if whole else [], [], covered)
    return Place("link", rows, hosts, [f"rank {int(r)}" for r in frame.ranks[rows].tolist()] if rows.size == 1 else [], covered)


def _steady(measures: Measures, rows: Ints) -> Ints:
    """Rows whose collectives are evenly slow while those of the others in *rows* come in bursts."""
    frame = measures.frame
    collective = np.array(
        [f.category == "collective" and f.resource in ("nic", "nvlink") for f in frame.functions], dtype=np.bool_
    )
    if not collective.any() or rows.size < 3:
        return rows[:0]
    use = collective[frame.pattern_function]
    weight, sigma = np.zeros(frame.size), np.zeros(frame.size)
    np.add.at(weight, frame.pattern_row[use], frame.pattern["total_us"][use])
    np.add.at(sigma, frame.pattern_row[use], frame.pattern["total_us"][use] * frame.pattern["sigma"][use])
    mine = sigma[rows] / np.maximum(weight[rows], 1e-9)
    even = mine < STEADY * float(np.median(mine))
    return rows[even] if 0 < int(even.sum()) <= max(1, rows.size // 4) else rows[:0]


def _pairs(t: Transfers, fine: list[int], slow: list[int], weight: Floats) -> list[tuple[tuple[str, str], float]]:
    """Pairs of hosts that a slow communicator joins, by time lost; those that carry much that is fine are left out."""
    lost: dict[tuple[str, str], float] = {}
    bad: dict[tuple[str, str], float] = {}
    for c in slow:
        for pair in _two(t.hosts[c]):
            lost[pair] = lost.get(pair, 0.0) + float(weight[c])
            bad[pair] = bad.get(pair, 0.0) + float(t.usual_us[c])
    through = dict(bad)
    for c in fine:
        for pair in _two(t.hosts[c]):
            if pair in through:
                through[pair] += float(t.usual_us[c])
    kept = [(p, v) for p, v in lost.items() if bad[p] >= THROUGH * through[p]]
    return sorted(kept, key=lambda item: (-item[1], item[0]))


def _two(hosts: frozenset[str]) -> Iterable[tuple[str, str]]:
    if len(hosts) > MAX_PAIRED_HOSTS:
        return
    ordered = sorted(hosts)
    for i, one in enumerate(ordered):
        for other in ordered[i + 1 :]:
            yield one, other


def _hosts(t: Transfers, mine: list[int], slow: set[int], weight: Floats) -> list[tuple[str, float]]:
    """Hosts of which nearly all traffic is slow, by time lost."""
    through: dict[str, float] = {}
    bad: dict[str, float] = {}
    lost: dict[str, float] = {}
    for c in mine:
        for host in t.hosts[c]:
            through[host] = through.get(host, 0.0) + float(t.usual_us[c])
            if c in slow:
                bad[host] = bad.get(host, 0.0) + float(t.usual_us[c])
                lost[host] = lost.get(host, 0.0) + float(weight[c])
    kept = [(h, v) for h, v in lost.items() if bad[h] >= THROUGH * through[h]]
    return sorted(kept, key=lambda item: (-item[1], item[0]))
