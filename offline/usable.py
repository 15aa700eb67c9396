"""Traces that cannot be compared with the others: cut ones, and ones without what all others have."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.schemas.summaries import Summary, SummaryError

ON_DEVICE = frozenset({"compute", "memory"})
MOST = 0.5


def usable(summaries: Sequence[Summary]) -> list[Summary | SummaryError]:
    """*summaries*, those that would mislead as an error that says why: what a trace lacks looks like time of its own.

    If none would remain they stay as they are.
    """
    on_device = [_works_on_device(s) for s in summaries]
    many = sum(on_device) > MOST * len(summaries)
    whys = [_why(s, lacks=many and not device) for s, device in zip(summaries, on_device, strict=True)]
    if all(whys):
        return list(summaries)
    return [
        SummaryError(who=s.who, error=why, ended_at_us=s.ended_at_us) if why else s
        for s, why in zip(summaries, whys, strict=True)
    ]


def _works_on_device(summary: Summary) -> bool:
    """As its functions tell, or, where they are all too small to be listed, its figures."""
    listed = any(f.category in ON_DEVICE for f in summary.functions)
    return listed or any(summary.figures.get(f"{category}_share", 0.0) > 0 for category in ON_DEVICE)


def _why(summary: Summary, *, lacks: bool) -> str:
    if summary.lost.get("file_truncated"):
        return "its trace is cut: it is left out of the comparison"
    return "its trace holds no work of the device, unlike the others: it is left out of the comparison" if lacks else ""
