"""How much slower a job became, by its iterations before the request: all that tells it where no healthy profile is known."""

from __future__ import annotations

import math

import numpy as np

from eroica.localizer.frame import Frame

GROWN = 0.10
"""Iterations that are longer by this share than the fastest before them are slow; chance and other inputs make up less."""
STILL = 0.5
"""The profile shows the job slow if its step is longer than the iteration was by at least this share of what it had grown by."""


def iterations(frame: Frame) -> tuple[float, float] | None:
    """Mean iteration when the request was made, and before, µs; ``None`` if it tells nothing of a degradation."""
    if frame.request.reason != "degradation":
        return None
    observed, usual = (float(frame.request.figures.get(name, 0.0)) for name in ("observed_us", "baseline_us"))
    return (observed, usual) if 0 < usual < observed and math.isfinite(observed) else None


def grown_us(frame: Frame) -> float:
    """What a step of the profile takes longer than before, µs: as share of it what iterations do, which no profiler slows.

    0 if the request does not tell, if it is too little to tell from chance, or if the profile does not show it.
    """
    told = iterations(frame)
    steps, step_us = frame.step_table()
    if told is None or steps.size == 0:
        return 0.0
    observed, usual = told
    typical = float(np.median(step_us))
    if observed < (1 + GROWN) * usual or typical < usual + STILL * (observed - usual):
        return 0.0
    return (1 - usual / observed) * typical
