"""Transfers of communicators, and the counters of links."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.links import communicator_text, find_links
from eroica.localizer.causes.measures import ms
from eroica.localizer.explain.registry import MAX_PEERS, Explanation, Item, Unexplained, number, register


@register("eroica/transfers", "transfer without waiting")
def transfer(item: Item) -> Explanation:
    """One communicator against what is usual for it; the slowest others beside it."""
    t = item.measures.transfers
    named = [c for c in np.flatnonzero(t.known).tolist() if communicator_text(item.measures, c) == item.evidence.subject]
    if not named:
        raise Unexplained("the recording holds no such communicator", where=item.evidence.subject[:100])
    at = named[0]
    return Explanation(
        "value: shortest duration among the members (so without waiting), all executions together; expected: what they usually "
        "take in communicators that do the same, or in the healthy profile; score: the median ratio, large ones counting more",
        ("communicator", "moved, ms", "usual, ms", "ratio", "costs a step, ms"),
        _rows(item, [at]),
        ms(float(t.moved_us[at])),
        ms(float(t.usual_us[at])),
        round(float(t.ratio[at]), 3),
    )


@register("eroica/transfers", "slow communicators")
def slow_communicators(item: Item) -> Explanation:
    """How many of a medium are slow, and how much of what they cost the named place covers."""
    return _again(
        item,
        "value: communicators of the medium that are slow; score: share of the time lost that goes through the named place",
        ("communicator", "moved, ms", "usual, ms", "ratio", "costs a step, ms"),
        _rows(item, []),
    )


@register("eroica/transfers", "exposed communication per step, nobody late")
def much_communication(item: Item) -> Explanation:
    """Communication of all ranks."""
    waits = np.median(item.measures.own.wait_us, axis=1) / 1e3
    rows = item.by_rank({"exposed communication, ms": waits}, np.arange(item.frame.size), np.empty(0, np.int64))
    return _again(item, "value: exposed communication, median of ranks and steps; score: its share of the step", ("", "ms"), rows)


@register("eroica/sick-host", "*")
@register("eroica/transfers", "*")
def reading(item: Item) -> Explanation:
    """A counter of the suspects against all other workers."""
    found = [(row, value) for row, name, value in item.frame.metrics if name.partition("[")[0] == item.evidence.metric]
    if not found:
        raise Unexplained("the recording holds no such reading", where=item.evidence.metric[:100])
    rows, values = np.array([row for row, _ in found]), np.array([value for _, value in found])
    mine = np.isin(rows, item.subject)
    each = np.full(item.frame.size, np.nan)
    each[rows] = values
    value, usual = float(np.median(values[mine])), float(np.median(values[~mine])) if (~mine).any() else 0.0
    return Explanation(
        "value: median of the suspects; expected: median of all other workers; score: their ratio",
        ("", item.evidence.unit or "reading"),
        item.by_rank({"reading": each}, peers=np.unique(rows)),
        round(value, 4),
        round(usual, 4),
        round(value / usual, 3) if usual else round(value, 3),
    )


def _rows(item: Item, first: list[int]) -> list[tuple[str, ...]]:
    """*first*, then the slowest communicators that can be compared."""
    t = item.measures.transfers
    known = np.flatnonzero(t.known)
    order = [c for c in known[np.lexsort((known, -t.ratio[known]))].tolist() if c not in first]
    rows = []
    for c in [*first, *order[:MAX_PEERS]]:
        mark = "→ " if c in first else ""
        figures = (t.moved_us[c] / 1e3, t.usual_us[c] / 1e3, t.ratio[c], t.lost_us[c] / 1e3)
        rows.append((mark + communicator_text(item.measures, c), *(number(float(v)) for v in figures)))
    return [*rows, (f"and {len(order) - MAX_PEERS} more", "", "", "", "")] if len(order) > MAX_PEERS else rows


def _again(item: Item, how: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Explanation:
    """The rule's own figures once more."""
    printed = item.evidence
    for finding in find_links(item.measures):
        for e in finding.evidence:
            if (e.metric, e.subject) == (printed.metric, printed.subject):
                return Explanation(how, columns, rows, e.value, e.expected, e.score)
    raise Unexplained("the recording shows no such transfers", where=printed.subject[:100])
