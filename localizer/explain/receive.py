"""Receive waits of expert-parallel exchanges: the matrices once more."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.exchanges import DESTINATION, PAIR, RULE, SOURCE, find_exchanges
from eroica.localizer.explain.registry import MAX_PEERS, Explanation, Item, Unexplained, number, register
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.receive import Matrix

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
    rows: list[tuple[str, ...]] = [
        (f"{'→ ' if rank == mine else ''}rank {rank}", number(us / 1e3)) for rank, us in _first(order, ranks, waits, mine)
    ]
    return _again(item, _HOW.format(what, also), ("", "waits, ms"), rows)


def _first(order: Ints, ranks: Ints, waits: Floats, mine: int) -> list[tuple[int, float]]:
    every = [(int(ranks[i]), float(waits[i])) for i in order.tolist()]
    return [one for n, one in enumerate(every) if n < MAX_PEERS or one[0] == mine]


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
