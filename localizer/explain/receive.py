"""Receive waits of expert-parallel exchanges: the matrices, sources against destinations, once more."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.exchanges import DESTINATION, PAIR, RULE, SOURCE, find_exchanges
from eroica.localizer.explain.registry import MAX_PEERS, Explanation, Item, Unexplained, number, register
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.receive import Matrix

MAX_ACROSS = 8
"""Columns of a matrix that are shown: what fits on a line."""
_HOW = (
    "value: median wait per step, less the longest report where there are three; expected: without what the {} has beyond the "
    "median of pairs that are as near{}; score: their ratio"
)


@register(RULE, SOURCE)
def source(item: Item) -> Explanation:
    """How long its destinations wait for each source."""
    return _side(item, 1, "source", "")


@register(RULE, DESTINATION)
def destination(item: Item) -> Explanation:
    """How long each destination waits for its sources."""
    return _side(item, 0, "destination", " and its sources have")


@register(RULE, PAIR)
def pair(item: Item) -> Explanation:
    """The longest waits of single pairs."""
    matrix = _matrix(item)
    wait = np.nan_to_num(matrix.wait_us, nan=-1.0)
    ranks = item.frame.ranks[matrix.rows]
    order = np.argsort(-wait, axis=None, kind="stable")[:MAX_PEERS]
    rows: list[tuple[str, ...]] = []
    for at in order.tolist():
        s, d = divmod(at, wait.shape[1])
        rows.append((f"rank {int(matrix.sources[s])} → rank {int(ranks[d])}", number(float(wait[s, d]) / 1e3)))
    return _again(item, _HOW.format("pair", ", its source and its destination have"), ("", "waits, ms"), rows)


def _side(item: Item, axis: int, what: str, also: str) -> Explanation:
    matrix = _matrix(item)
    ranks = matrix.sources if axis == 1 else item.frame.ranks[matrix.rows]
    waits = _median(matrix.wait_us if axis == 1 else matrix.wait_us.T)
    order = np.lexsort((ranks, -waits))
    mine = int(item.frame.ranks[item.one()])
    table = matrix.wait_us if axis == 1 else matrix.wait_us.T
    others = item.frame.ranks[matrix.rows] if axis == 1 else matrix.sources
    shown = _across(others, mine)
    side = "from" if axis == 0 else "at"
    columns = ("", "median, ms", *(f"{side} {int(others[other])}, ms" for other in shown))
    rows: list[tuple[str, ...]] = [
        (
            f"{'→ ' if rank == mine else ''}rank {rank}",
            number(float(waits[at]) / 1e3),
            *(number(float(table[at, other]) / 1e3) for other in shown),
        )
        for at, rank in _first(order, ranks, mine)
    ]
    lines = "lines: sources; columns: at their destinations" if axis == 1 else "lines: destinations; columns: from their sources"
    return _again(item, f"{_HOW.format(what, also)}; {lines}", columns, rows)


def _first(order: Ints, ranks: Ints, mine: int) -> list[tuple[int, int]]:
    """Lines of the matrix and their ranks: the longest first, and in any case that of the rank that the evidence is about."""
    every = [(at, int(ranks[at])) for at in order.tolist()]
    return [one for n, one in enumerate(every) if n < MAX_PEERS or one[1] == mine]


def _across(others: Ints, mine: int) -> list[int]:
    """Columns of the matrix: the ranks nearest to that of the evidence, ascending."""
    near = np.argsort(np.abs(others - mine), kind="stable")[:MAX_ACROSS]
    return sorted(near.tolist(), key=lambda at: int(others[at]))


def _median(table: Floats) -> Floats:
    return np.array([float(np.median(line[np.isfinite(line)])) if np.isfinite(line).any() else 0.0 for line in table])


def _matrix(item: Item) -> Matrix:
    """The exchange that the evidence is from: its name is what it was compared in."""
    frame = item.frame
    for matrix in frame.receive.matrices(frame.ranks, frame.steps_of):
        if item.evidence.compared_with.endswith(matrix.label):
            return matrix
    raise Unexplained("the recording holds no such exchange", where=item.evidence.compared_with[:100])


def _again(item: Item, how: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Explanation:
    printed = item.evidence
    for one in find_exchanges(item.measures)[0]:
        for e in one.evidence:
            if (e.metric, e.subject, e.compared_with) == (printed.metric, printed.subject, printed.compared_with):
                return Explanation(how, columns, rows, e.value, e.expected, e.score)
    raise Unexplained("the recording shows no such waits", where=printed.subject[:100])
