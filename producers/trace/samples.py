"""What stands in for the 10 kHz samples of [P] where only a few a second were taken: one level for all of the window."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from eroica.schemas.summaries import FunctionPattern

UNSAMPLED = "critical_share"
"""The resource of patterns whose resource nobody sampled."""
MAX_SAMPLES = 10_000
_CATEGORY_OF = {"sm_clock": "compute"}


class SampleSeries(msgspec.Struct, frozen=True):
    """Levels of one resource over the window, 0..1, ascending in time (µs since the epoch by the rank's host)."""

    resource: str
    at_us: list[int]
    value: list[float]


def with_levels(functions: Sequence[FunctionPattern], series: Sequence[SampleSeries]) -> tuple[list[FunctionPattern], list[str]]:
    """Give the functions of a sampled class the level's mean and deviation over the window as mu and sigma, and say so.

    A series too coarse to lie within single executions says the same of each: enough to see a GPU that is throttled, not which
    kernel suffers. Patterns that real samples gave stay as they are.
    """
    levels: dict[str, tuple[str, float, float, int]] = {}
    for one in series:
        value = np.array(one.value[:MAX_SAMPLES], np.float64)
        value = value[np.isfinite(value) & (value >= 0)]
        if one.resource in _CATEGORY_OF and value.size >= 2:
            mean, deviation = round(float(value.mean()), 4), round(float(value.std()), 4)
            levels[_CATEGORY_OF[one.resource]] = (one.resource, mean, deviation, int(value.size))
    out, used = list[FunctionPattern](), set[str]()
    for function in functions:
        level = levels.get(function.category)
        if level is None or function.resource != UNSAMPLED:
            out.append(function)
            continue
        used.add(function.category)
        out.append(msgspec.structs.replace(function, resource=level[0], mu=level[1], sigma=level[2]))
    notes = [
        f"mu and sigma of {category} are the {levels[category][0]} over all of the window ({levels[category][3]} samples), "
        "not within single executions"
        for category in sorted(used)
    ]
    return out, notes
