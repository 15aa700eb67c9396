"""Whether a condition holds of a cause, and the comparison that says so. Pure; nothing of a file is ever run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eroica.localizer.frame import Floats
from eroica.localizer.playbook.facts import Facts
from eroica.localizer.playbook.model import Condition, Limit
from eroica.schemas.verdicts import Evidence

KNOWN_SHARE = 0.5
"""At least this share of the suspects must tell a quantity."""
WITHOUT_PEERS = frozenset({"excess_share", "pause_share"})
"""Quantities that are made from the peers already, or of all suspects together."""
ACCUSER = "playbook/"
"""Rule of the evidence of a leaf, in front of the fault's name."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A quantity of the suspects, and what the peers make of it; ``expected`` is NaN where nobody can be compared with."""

    value: float
    expected: float
    unit: str
    name: str = ""
    """Of the reading, where it is one."""


def measure(condition: Condition, facts: Facts) -> Measured | None:
    """The quantity of *condition*; ``None`` where too few of the suspects tell it."""
    if condition.looks_at in ("stack", "named"):
        share = facts.share(condition)
        return Measured(share, math.nan, "1") if share > 0 else None
    values, unit, name = facts.values(condition)
    own, others = values[: facts.count], values[facts.count :]
    if own.size == 0 or np.isfinite(own).mean() < KNOWN_SHARE:
        return None
    known = np.isfinite(others)
    compares = condition.quantity not in WITHOUT_PEERS and condition.take != "spread"
    expected = _taken(condition, others[known]) if compares and known.any() else math.nan
    unit = "1" if condition.take == "spread" else unit
    return Measured(_taken(condition, own[np.isfinite(own)]), expected, unit, name)


def holds(condition: Condition, measured: Measured) -> bool:
    """Whether the limits of *condition* are passed."""
    above, below = condition.above, condition.below
    return (above is None or _passed(above, measured, 1.0)) and (below is None or _passed(below, measured, -1.0))


def _passed(limit: Limit, measured: Measured, sign: float) -> bool:
    value, expected = measured.value, measured.expected
    if limit.ratio is not None and not (expected > 0 if sign < 0 else value > 0):
        return False  # nothing is not a share of nothing
    bounds = [] if limit.value is None else [limit.value]
    if limit.ratio is not None:
        bounds.append(limit.ratio * expected)
    if limit.difference is not None:
        bounds.append(expected + sign * limit.difference)
    # A comparison with NaN is false: without peers nothing is passed.
    return all(sign * value >= sign * bound for bound in bounds)


def _taken(condition: Condition, values: Floats) -> float:
    if condition.take == "mean":
        return float(values.mean())
    if condition.take == "max":
        return float(values.max())
    if condition.take == "min":
        return float(values.min())
    middle = float(np.median(values))
    return float(values.max()) / middle if condition.take == "spread" and middle > 0 else middle


def evidence(condition: Condition, measured: Measured, facts: Facts, fault: str) -> Evidence:
    """The comparison as an item of the verdict. Without peers ``expected`` is the limit of the signature."""
    compared = math.isfinite(measured.expected)
    expected = measured.expected if compared else _limit(condition)
    value = round(measured.value, 4)
    expected = round(expected, 4)
    return Evidence(
        kind={"named": "function", "communicator": "transfer"}.get(condition.looks_at, condition.looks_at),
        metric=condition.text(measured.name),
        subject=facts.suspects_text,
        value=value,
        unit=measured.unit,
        expected=expected,
        score=round(value / expected, 3) if expected else value,
        score_kind="ratio" if expected else "value",
        rule=f"{ACCUSER}{fault}",
        compared_with=facts.peers_text if compared else "the limit of the signature",
    )


def _limit(condition: Condition) -> float:
    for limit in (condition.above, condition.below):
        if limit is not None and limit.value is not None:
            return limit.value
    return 0.0
