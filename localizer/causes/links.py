"""Slow transfers: nobody is late, and yet communicators take long. Which link, NIC or part of the fabric they have in common.

Tomography: a place is at fault if all that goes through it is slow and little that is slow goes elsewhere. The smallest such
place is named: a rank (its NIC, its NVLink), a pair of hosts, a host; many hosts are the fabric.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.causes.readings import OddReading, odd_link_readings, reading_evidence, tells_of
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.judgement import Finding, name_rows
from eroica.localizer.robust import spread_of
from eroica.localizer.transfers import Bools, Transfers
from eroica.schemas.verdicts import CauseClass, Evidence
from eroica.schemas.wording import say_count

RULE = "eroica/transfers"
TOLD_ERRORS = 0.5
"""What chance may do counts by this share where a link's own counters say that it is bad."""
SLOW_RATIO = 1.2
"""A communicator is slow if its median transfer takes so many times as long as usual …"""
PROVEN_RATIO = 1.1
"""… so many, where a healthy profile of the same job shows what is usual …"""
SLOW_SPREADS = 6.0
"""… and lies so many spreads of all ratios above them."""
MIN_SPREAD = 8
"""Fewer communicators have no spread worth the name."""
SLOW_ERRORS = 4.0
"""… and by so many standard errors of its own median."""
THROUGH = 0.75
"""Of what goes through a place at fault, at least this share is slow …"""
COVERED = 0.75
"""… and it covers this share of the time lost."""
MANY = 2
"""Without a place in common, fewer slow communicators are not the fabric."""
SINGLE_HOSTS = 2
"""Transfers over more hosts than these are the fabric's, where no smaller place fits."""
WAIT_SHARE = 0.10
"""A link is accused by its counters alone only if communication takes at least this share of the step."""
INCOMPLETE_DOUBT = 0.2
"""Where a member of the slow communicators is not seen, it may be the one that all wait for …"""
ONLY_INCOMPLETE_DOUBT = 0.5
"""… and most likely is, where those whose members are all seen are not slow."""
UNTOLD_DOUBT, UNTOLD_SHARE, UNTOLD_SMALL_DOUBT = 0.2, 0.10, 0.5
"""A link that no past and none of its counters call bad may be slow by chance: surely where it costs less than this share."""
GREW = 0.5
"""… unless it makes up this share of what iterations have grown by."""
STEADY = 0.5
"""In a slow ring the link at fault is evenly slow, the others come in bursts: its sigma is below this share of theirs ([P])."""


@dataclass(frozen=True)
class _Place:
    """What may be at fault: rows, hosts or links."""

    cls: CauseClass
    rows: Ints
    hosts: list[str]
    links: list[str]
    covered: float


def find_links(measures: Measures) -> list[Finding]:
    """The places that slow transfers have in common, by medium; where no transfers can be compared, odd counters of links."""
    if measures.frame.collectives.size == 0:
        return []
    odd = odd_link_readings(measures.frame)
    found = []
    for medium in ("nic", "nvlink"):
        if (finding := _medium(measures, medium, [o for o in odd if o.medium == medium])) is not None:
            found.append(finding)
    return found or _by_readings(measures, odd)


def _medium(measures: Measures, medium: str, odd: list[OddReading]) -> Finding | None:
    t = measures.transfers
    across = t.host_count > 1
    mine = t.known & (across if medium == "nic" else ~across)
    error = np.where(_told(t, odd), TOLD_ERRORS, 1.0) * t.error
    slow = mine & _slow(t.ratio, error, mine, proven=bool(measures.past and measures.past.transfers))
    if not slow.any():
        return None
    loss = float(t.lost_us[slow].max(initial=0.0))
    if loss < measures.settings.min_effect * measures.step_us:
        return None
    # Slow communicators that cost nothing are evidence all the same, but they do not decide.
    weight = np.where(slow, np.maximum(t.lost_us, 1e-3 * loss), 0.0)
    place = _common(measures, mine, slow, weight, odd)
    if place is None:
        return None
    counts = slow & (t.lost_us >= COVERED * loss)
    doubt = 0.0 if t.complete[counts].all() else INCOMPLETE_DOUBT
    if not t.complete[counts].any() and (mine & ~slow & t.complete).any():
        doubt = ONLY_INCOMPLETE_DOUBT
    # That the job became slower, and by this, is as good as a past.
    proven = measures.past is not None or 0 < GREW * measures.grown_us <= loss
    if place.cls == "link" and not odd and not proven and tells_of(measures.frame, medium):
        doubt = max(doubt, UNTOLD_DOUBT if measures.share(loss) >= UNTOLD_SHARE else UNTOLD_SMALL_DOUBT)
    worst = int(np.argmax(np.where(slow, t.lost_us, -1.0)))
    evidence = [
        Evidence(
            kind="transfer", metric="transfer without waiting", subject=communicator_text(measures, worst),
            value=ms(float(t.moved_us[worst])), unit="ms", expected=ms(float(t.usual_us[worst])),
            score=round(float(t.ratio[worst]), 3), score_kind="ratio", rule=RULE,
            compared_with=_compared(measures, int(mine.sum()) - int(slow.sum())),
        ),
        Evidence(
            kind="transfer", metric="slow communicators", subject=f"{medium} traffic", value=float(slow.sum()), unit="count",
            expected=0.0, score=round(place.covered, 3),
            score_kind="share", rule=RULE, compared_with=f"{int(mine.sum())} that could be compared",
        ),
        *_reading_evidence(measures, odd, place.rows),
    ]  # fmt: skip
    return Finding(
        cls=place.cls, ranks=measures.frame.ranks[place.rows], explains=0.0, confidence=0.0, evidence=evidence,
        hosts=place.hosts, links=place.links, gain_us=loss, doubt=doubt,
    )  # fmt: skip


def _told(t: Transfers, odd: list[OddReading]) -> Bools:
    """Which communicators have members whose counters are bad: they have to be slow by less chance."""
    told = np.zeros(t.known.size, dtype=np.bool_)
    if odd:
        communicator, row = t.frame.collectives.members
        told[communicator[np.isin(row, np.concatenate([o.rows for o in odd]))]] = True
    return told


def _slow(ratio: Floats, error: Floats, mine: Bools, *, proven: bool) -> Bools:
    """Which communicators are slow: against their families, and beyond what chance does to the medium's others.

    :param proven: the ratios are to a healthy past. Else they are to the faster communicators, and the typical one lies above 1.
    """
    logs = np.log(np.maximum(ratio, 1e-6))
    if not mine.any():
        return mine
    lower = logs[mine][logs[mine] <= np.median(logs[mine])]
    spread = spread_of(lower)
    usual = 0.0 if proven else float(np.clip(np.median(lower), 0.0, np.log(SLOW_RATIO)))
    if proven:
        least = float(np.log(PROVEN_RATIO))
    else:
        least = max(float(np.log(SLOW_RATIO)), SLOW_SPREADS * spread if np.count_nonzero(mine) >= MIN_SPREAD else 0.0)
    return np.asarray((logs - usual >= least) & (logs - usual >= SLOW_ERRORS * error))


def _common(measures: Measures, mine: Bools, slow: Bools, weight: Floats, odd: list[OddReading]) -> _Place | None:
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
        return _Place("link", np.empty(0, np.int64), list(pair), ["|".join(pair)], dict(pairs)[pair] / total)
    hosts = _hosts(t, np.flatnonzero(mine).tolist(), set(slow_at), weight)
    single = _only(hosts, total, None)
    if single is not None:
        return _Place("link", np.array(measures.rows_of_hosts[single], dtype=np.int64), [single], [], dict(hosts)[single] / total)
    if len(slow_at) < MANY:
        return None  # slow, and yet nothing that the others go through too: chance, or a place that cannot be told
    return _Place("fabric", np.empty(0, np.int64), [], [], 1.0)


T = TypeVar("T")


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


def _narrowed(measures: Measures, rows: Ints, odd: list[OddReading], covered: float) -> _Place:
    """Ranks that share all slow communicators, told apart by their counters or by how evenly their link is slow."""
    frame = measures.frame
    by_counter = np.unique(np.concatenate([o.rows for o in odd])) if odd else rows[:0]
    ends = _ends(measures, odd)
    if ends is not None and len({frame.hosts[row] for row in rows.tolist()}) > 2 and by_counter.size > 2:
        return _Place("link", rows[:0], list(ends), ["|".join(ends)], covered)
    named = np.intersect1d(rows, by_counter)
    if named.size == 0:
        named = _steady(measures, rows)
    rows = named if named.size else rows
    hosts = sorted({frame.hosts[row] for row in rows.tolist()})
    by_host = measures.rows_of_hosts
    whole = len(hosts) > 1 and rows.size == sum(len(by_host[h]) for h in hosts) and max(len(by_host[h]) for h in hosts) > 1
    if whole and ends is not None and list(ends) == hosts and len(by_host) > SINGLE_HOSTS:
        return _Place("link", rows[:0], hosts, ["|".join(hosts)], covered)
    if len(hosts) > SINGLE_HOSTS or whole:
        return _Place("fabric", rows[:0], hosts if whole else [], [], covered)
    return _Place("link", rows, hosts, [f"rank {int(r)}" for r in frame.ranks[rows].tolist()] if rows.size == 1 else [], covered)


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


MAX_PAIRED_HOSTS = 32
"""Pairs of hosts are looked for in communicators of so many hosts at most: larger ones tell nothing of a pair."""


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


def _by_readings(measures: Measures, odd: list[OddReading]) -> list[Finding]:
    """Where every communicator is alone of its kind: much communication, nobody late, and a link whose counters are bad."""
    own, frame = measures.own, measures.frame
    waiting = float(np.median(own.wait_us)) if own.wait_us.size else 0.0
    comparable = bool(measures.transfers.known.any())
    if not odd or comparable or measures.share(waiting) < WAIT_SHARE:
        return []
    rows = np.unique(np.concatenate([o.rows for o in odd]))
    ends = sorted({frame.hosts[row] for row in rows.tolist()})
    pair = len(ends) == 2 and rows.size > 2
    evidence = [
        Evidence(
            kind="wait", metric="exposed communication per step, nobody late", subject="all ranks", value=ms(waiting), unit="ms",
            expected=0.0, score=round(measures.share(waiting), 3), score_kind="share", rule=RULE, compared_with="the step",
        ),
        *_reading_evidence(measures, odd, rows),
    ]  # fmt: skip
    return [
        Finding(
            cls="link", ranks=frame.ranks[:0] if pair else frame.ranks[rows], explains=0.0, confidence=0.0, evidence=evidence,
            hosts=ends[:8], links=["|".join(ends)] if pair else [f"rank {int(r)}" for r in frame.ranks[rows].tolist()][:8],
            gain_us=0.5 * waiting,
        )
    ]  # fmt: skip


def _reading_evidence(measures: Measures, odd: list[OddReading], rows: Ints) -> list[Evidence]:
    near = [o for o in odd if rows.size == 0 or np.isin(o.rows, rows).any()]
    return reading_evidence(measures.frame, near, RULE)


def communicator_text(measures: Measures, number: int) -> str:
    """How evidence names a communicator."""
    c = measures.frame.communicators[number]
    return f"{c.kind or 'communicator'} {c.name} ({name_rows(measures.frame, measures.transfers.members[number])})"[:300]


def _compared(measures: Measures, others: int) -> str:
    if measures.past is not None and measures.past.transfers:
        return f"the same transfers in the healthy profile {measures.past.request}"
    return f"{say_count(others, 'communicator')} of the medium, those that do the same first"
