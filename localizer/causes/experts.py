"""What receive waits add to the other findings: evidence, a narrower place, causes that only they show, or a note.

Whether a rank that comes late is to blame for it is own time's to say; of a side that is slow the matrix alone can tell.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eroica.localizer.causes.exchanges import HELD, MAX_NOTES, Exchange, find_exchanges
from eroica.localizer.causes.measures import Measures
from eroica.localizer.judgement import Finding
from eroica.schemas.ranks import format_ranks, say_ranks
from eroica.schemas.verdicts import NOT_ENOUGH, CauseClass


def join_exchanges(measures: Measures, own_time: list[Finding], links: list[Finding]) -> tuple[list[Finding], list[str]]:
    """All findings with what receive waits add: evidence to who is found already, what only they show, and notes on the rest."""
    exchanges, notes = find_exchanges(measures)
    own_time, links, added = list(own_time), list(links), list[Finding]()
    for one in exchanges:
        by_time, by_link = _names(measures, own_time, one), _names(measures, links, one)
        if one.kind in ("late", "sends") and by_time is not None:
            own_time[by_time] = _with(own_time[by_time], one)
        elif one.kind != "late" and by_link is not None:
            links[by_link] = _narrowed(links[by_link], one)
        elif by_time is not None or links or (one.kind in ("late", "sends") and own_time):
            notes.append(_unsaid(one, "other findings say otherwise"))
        elif one.kind == "late" and not _own_agrees(measures, one):
            notes.append(_unsaid(one, "its own time does not say why it comes late"))
        else:
            added.append(_finding(measures, one))
    return [*own_time, *links, *added], notes[:MAX_NOTES]


def _names(measures: Measures, findings: list[Finding], one: Exchange) -> int | None:
    """Which of *findings* names the place already."""
    for i, finding in enumerate(findings):
        if one.ranks.size and np.isin(one.ranks, finding.ranks).any():
            return i
        if one.kind == "hosts" and "|".join(one.hosts) in finding.links:
            return i
    return None


def _with(finding: Finding, one: Exchange) -> Finding:
    return replace(finding, evidence=[*finding.evidence, *one.evidence])


def _narrowed(finding: Finding, one: Exchange) -> Finding:
    """A link with the evidence, and of several ranks the one that the matrix tells."""
    if one.kind == "link" and finding.ranks.size > 1:
        finding = replace(finding, ranks=one.ranks, hosts=list(one.hosts), links=[f"rank {int(one.ranks[0])}"])
    return _with(finding, one)


def _own_agrees(measures: Measures, one: Exchange) -> bool:
    """Whether the own time of a late rank leads the same way; or nobody can tell, for it has no peers."""
    own = measures.own
    row = int(np.searchsorted(measures.frame.ranks, one.ranks[0]))
    if not own.comparable[row]:
        return True
    return bool(own.z[row] >= HELD * own.limit[row] and own.excess_us[row] >= HELD * one.gain_us)


def _finding(measures: Measures, one: Exchange) -> Finding:
    rank = one.ranks.tolist()
    by_kind: dict[str, tuple[CauseClass, list[str]]] = {
        "late": ("worker", []),
        "sends": ("worker", []),
        "hosts": ("link", ["|".join(one.hosts)]),
        "pair": ("link", ["|".join(f"rank {r}" for r in rank)]),
    }
    cls, links = by_kind.get(one.kind, ("link", [f"rank {r}" for r in rank]))
    named = one.ranks if len(rank) == 1 else np.empty(0, np.int64)
    hosts = [] if cls == "worker" else list(one.hosts)
    return Finding(
        cls=cls, ranks=named, explains=0.0, confidence=0.0, evidence=one.evidence, hosts=hosts, links=links,
        gain_us=one.gain_us, seen=min(1.0, 0.5 * one.plain),
    )  # fmt: skip


def _unsaid(one: Exchange, why: str) -> str:
    what = {"late": "all wait for", "sends": "all wait for", "receives": "all are waited for by"}.get(one.kind, "long waits at")
    who = say_ranks(format_ranks(one.ranks)) if one.ranks.size else f"hosts {' and '.join(one.hosts)}"
    return f"{NOT_ENOUGH}: by receive waits {what} {who}; {why}"
