"""The job against its iterations before the request."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.history import MOST, exposed_us, grown_us, iterations
from eroica.localizer.causes.measures import ms
from eroica.localizer.explain.registry import Explanation, Item, Unexplained, number, register


@register("eroica/history", "duration of the iteration")
def iteration_against_history(item: Item) -> Explanation:
    """The iteration against those before, as the request tells."""
    observed, usual = _iterations(item)
    rows: list[tuple[str, ...]] = [("when the profile was asked for", number(observed / 1e3)), ("before", number(usual / 1e3))]
    return Explanation(
        "value: mean iteration when the profile was asked for; expected: that of the fastest window before; score: their ratio",
        ("", "iteration, ms"),
        rows,
        ms(observed),
        ms(usual),
        round(observed / usual, 3),
    )


@register("eroica/history", "exposed communication per step")
def waiting_against_history(item: Item) -> Explanation:
    """What the ranks wait against what the step has grown by."""
    _iterations(item)
    waits, grown = exposed_us(item.measures), grown_us(item.measures)
    columns = {"exposed communication, ms": item.measures.own.typical_wait_us / 1e3}
    return Explanation(
        f"value: what {MOST:.0%} of the ranks do not exceed; expected: growth of the iterations, as share of the profile's step; "
        "score: their ratio",
        ("", *columns),
        item.by_rank(columns, peers=np.arange(item.frame.size)),
        ms(waits),
        ms(grown),
        round(waits / max(grown, 1e-9), 3),
    )


def _iterations(item: Item) -> tuple[float, float]:
    told = iterations(item.frame)
    if told is None:
        raise Unexplained("the request says nothing of iterations before", where=item.evidence.compared_with[:100])
    return told
