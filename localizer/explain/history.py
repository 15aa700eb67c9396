"""The job against its iterations before the request."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.history import MOST, exposed_us, transferred_us
from eroica.localizer.causes.measures import ms
from eroica.localizer.explain.registry import Explanation, Item, Unexplained, number, register
from eroica.localizer.growth import iterations


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
    waits, grown = exposed_us(item.measures), item.measures.grown_us
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


@register("eroica/history", "transfers between hosts per step")
def transfers_against_history(item: Item) -> Explanation:
    """What the ranks transfer between hosts, waiting taken off, against what the step has grown by."""
    _iterations(item)
    frame, grown = item.frame, item.measures.grown_us
    value = transferred_us(item.measures)
    columns = {"transfers between hosts, ms": item.measures.between_hosts_us / 1e3}
    return Explanation(
        f"value: what {MOST:.0%} of the ranks do not exceed; expected: growth of the iterations, as share of the profile's step; "
        "score: their ratio",
        ("", *columns),
        item.by_rank(columns, peers=np.arange(frame.size)),
        ms(value),
        ms(grown),
        round(value / max(grown, 1e-9), 3),
    )


def _iterations(item: Item) -> tuple[float, float]:
    told = iterations(item.frame)
    if told is None:
        raise Unexplained("the request says nothing of iterations before", where=item.evidence.compared_with[:100])
    return told
