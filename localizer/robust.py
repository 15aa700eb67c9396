"""Robust statistics with floors: what is usual among peers, and how far out one of them is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation of a normal distribution."""


def spread_of(values: npt.NDArray[np.float64]) -> float:
    """Robust standard deviation of *values* (not empty), in their unit: median absolute deviation × 1.4826."""
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def robust_z(values: npt.NDArray[np.float64], floor_ratio: float, floor: float = 0.0) -> npt.NDArray[np.float64]:
    """Distance from the median in robust standard deviations, shape as *values*.

    The spread is taken as at least *floor_ratio* × median (a clean fleet has a MAD of 0) and *floor* (unit of *values*).
    """
    if values.size == 0:
        return values
    middle = float(np.median(values))
    spread = spread_of(values)
    return np.asarray((values - middle) / max(spread, floor_ratio * abs(middle), floor, 1e-12))
