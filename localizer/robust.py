"""Robust statistics with floors: what is usual among peers, and how far out one of them is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation of a normal distribution."""


def robust_z(values: npt.NDArray[np.float64], floor_ratio: float, floor: float = 0.0) -> npt.NDArray[np.float64]:
    """Distance from the median in robust standard deviations, shape as *values*.

    The spread is taken as at least *floor_ratio* × median (a clean fleet has a MAD of 0) and *floor* (unit of *values*).
    """
    if values.size == 0:
        return values
    middle = float(np.median(values))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))
    return np.asarray((values - middle) / max(spread, floor_ratio * abs(middle), floor, 1e-12))


def persistent_z(values: npt.NDArray[np.float64], floor_ratio: float) -> npt.NDArray[np.float64]:
    """How far each peer stands out **in most steps**, in robust standard deviations.

    :param values: shape (peers, steps), all of one role.
    :param floor_ratio: with one step the spread is taken as at least this share of the median; with *s* steps as at least
        1/s of that, since chance does not pick the same peer each time.
    :returns: shape (peers,): the median over the steps of the distance from the step's median, over the spread of all
        such distances.
    """
    peers, steps = values.shape
    if peers == 0 or steps == 0:
        return np.zeros(peers)
    apart = values - np.median(values, axis=0)
    spread = MAD_TO_SIGMA * float(np.median(np.abs(apart)))
    floor = floor_ratio / steps * abs(float(np.median(values)))
    return np.asarray(np.median(apart, axis=1) / max(spread, floor, 1e-12))
