"""Scores of the published rule sets."""

from __future__ import annotations

import numpy as np

from eroica.localizer.explain.registry import Explanation, Item, Unexplained, register
from eroica.localizer.rules.guide import guide_scores
from eroica.localizer.rules.paper import paper_scores


def _column(item: Item, *tables: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> int:
    """Of the functions that have the label, the one whose score is printed."""
    row = item.one()
    named = [f for f, function in enumerate(item.frame.functions) if function.name == item.label]
    if not named:
        raise Unexplained("the recording holds no such function", where=item.evidence.subject[:100])
    return min(named, key=lambda f: abs(float(tables[0][row, f]) - item.evidence.score))


@register("paper", "share of peers at distance >= 0.4")
def paper(item: Item) -> Explanation:
    """Δ ([P] §4.3)."""
    scores, row = paper_scores(item.frame, item.judged.settings), item.one()
    f = _column(item, scores.delta)
    columns = {"Δ": scores.delta[:, f], "β": scores.beta[:, f], "D": scores.distance[:, f]}
    value = round(float(scores.delta[row, f]), 4)
    return Explanation(
        "value and score: Δ, the share of sampled peers at Manhattan distance of at least 0.4 in (β, μ, σ), each over its "
        "maximum; expected: median Δ of all workers",
        ("", *columns),
        item.by_rank(columns),
        value,
        round(float(np.median(scores.delta[:, f])), 4),
        value,
    )


@register("guide", "p50")
def guide(item: Item) -> Explanation:
    """Z of the median duration ([G])."""
    z, p50, usual = guide_scores(item.frame)
    row, f = item.one(), _column(item, np.minimum(z, 1e6))
    columns = {"p50, ms": p50[:, f] / 1e3, "median of the class, ms": usual[:, f] / 1e3, "z": np.minimum(z[:, f], 1e6)}
    return Explanation(
        "value: median duration of the function; expected: median of the class; score: distance over 1.4826 MAD, at most 1e6",
        ("", *columns),
        item.by_rank(columns),
        round(float(p50[row, f]) / 1e3, 4),
        round(float(usual[row, f]) / 1e3, 4),
        round(min(float(z[row, f]), 1e6), 2),
    )
