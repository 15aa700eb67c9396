"""From a dose, by how much the step gets longer, to the strength that does it."""

from __future__ import annotations

from collections.abc import Callable

from eroica.simulator.problem import ScenarioError

__all__ = ["strength_for"]

MAX_STRENGTH = 1e5
TOLERANCE = 0.002
"""Of what the step gains, relative."""
MAX_TRIES = 40


def strength_for(dose: float, step_us: Callable[[float], float], healthy_us: float, first: float, at: str) -> float:
    """The strength at which ``step_us(strength)`` is *dose* × *healthy_us*.

    The step grows with the strength, at first perhaps not at all (what is slow is hidden), later in proportion: bracket, then
    regula falsi (Illinois).

    :param at: the path of the dose.
    :raises ScenarioError: no strength does it: the fault does not touch this job.
    """
    goal = dose * healthy_us
    low, f_low = 0.0, healthy_us - goal
    high = first
    f_high = step_us(high) - goal
    while f_high < 0:
        low, f_low = high, f_high
        high *= 4
        if high > MAX_STRENGTH:
            raise ScenarioError(
                f"no strength makes a step {dose:g} times as long",
                at,
                do="the fault does not touch this job: place it elsewhere, or give the job such traffic",
            )
        f_high = step_us(high) - goal
    side = 0
    for _ in range(MAX_TRIES):
        middle = (low * f_high - high * f_low) / (f_high - f_low) if f_high > f_low else high
        f = step_us(middle) - goal
        if abs(f) <= TOLERANCE * (dose - 1.0) * healthy_us:
            return middle
        if f < 0:
            low, f_low = middle, f
            f_high = f_high / 2 if side == -1 else f_high
            side = -1
        else:
            high, f_high = middle, f
            f_low = f_low / 2 if side == 1 else f_low
            side = 1
    return high
