"""Slow transfers: nobody is late, and yet communicators take long. Which link, NIC or part of the fabric they have in common.

The place that they have in common: ``tomography``.
"""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.causes.readings import OddReading, odd_link_readings, reading_evidence, tells_of
from eroica.localizer.causes.tomography import COVERED, common_place
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.judgement import Finding, name_rows
from eroica.localizer.robust import spread_of
from eroica.localizer.transfers import Bools, Transfers
from eroica.schemas.verdicts import Evidence
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
    place = common_place(measures, mine, slow, weight, odd)
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
