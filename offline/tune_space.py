"""What is searched: the thresholds of each rule set that decide who is accused, and how far each may go. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.schemas.errors import UsageError
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.wording import did_you_mean

__all__ = ["RANGES", "Point", "Range", "Space", "latin_hypercube", "space_of"]

Point = dict[str, float]
"""Setting of the localizer → value."""
Unit = npt.NDArray[np.float64]
"""A point in the unit cube, shape (dimensions,)."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a threshold, ends included; spaced by ratio where they are several times apart."""

    low: float
    high: float

    @property
    def by_ratio(self) -> bool:
        """Whether equal steps are equal ratios."""
        return self.low > 0 and self.high >= 4 * self.low

    def value(self, unit: float) -> float:
        """From 0..1, four digits."""
        apart = self.high - self.low
        raw = self.low * (self.high / self.low) ** unit if self.by_ratio else self.low + unit * apart
        return min(self.high, max(self.low, float(f"{raw:.4g}")))

    def unit(self, value: float) -> float:
        """To 0..1, what lies outside to the nearer end."""
        if self.high == self.low:
            return 0.0
        if self.by_ratio:
            raw = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            raw = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, raw))


RANGES: Mapping[str, Mapping[str, Range]] = {
    "eroica": {
        "outlier_z": Range(2.5, 6.0),
        "min_effect": Range(0.01, 0.08),
        "mad_floor_ratio": Range(0.05, 0.20),
    },
    "paper": {
        "beta_min": Range(0.001, 0.05),
        "python_beta_max": Range(0.003, 0.10),
        "collective_beta_max": Range(0.10, 0.60),
        "peer_distance": Range(0.1, 1.0),
        "mad_factor": Range(2.0, 10.0),
    },
    "guide": {"guide_z": Range(2.0, 8.0)},
}
"""Rule set → its thresholds; the published and the measured values lie inside."""


@dataclass(frozen=True)
class Space:
    """The thresholds that are searched, in order."""

    ranges: Mapping[str, Range]

    @property
    def size(self) -> int:
        """Number of dimensions."""
        return len(self.ranges)

    def point(self, unit: Unit) -> Point:
        """The point at *unit*."""
        return {name: r.value(float(u)) for u, (name, r) in zip(unit, self.ranges.items(), strict=True)}

    def unit(self, point: Point) -> Unit:
        """Where *point* lies."""
        return np.array([r.unit(point[name]) for name, r in self.ranges.items()], dtype=np.float64)

    def without(self, names: Sequence[str]) -> Space:
        """The same without some of its dimensions."""
        return Space({name: r for name, r in self.ranges.items() if name not in names})


def space_of(settings: LocalizeSettings, asked: Sequence[str] = ()) -> Space:
    """What is searched for the rules of *settings*.

    :param asked: ``NAME=LOW:HIGH``; with equal bounds the threshold stays there.
    :raises UsageError: no such threshold, or no bounds that it can have.
    """
    ranges = dict(RANGES[settings.rules])
    for text in asked:
        name, _, bounds = (part.strip() for part in text.partition("="))
        where = f"--range {text[:60]}"
        if name not in ranges:
            do = f"{did_you_mean(name, ranges)}thresholds of the rules {settings.rules}: {', '.join(ranges)}"
            raise UsageError(f"{name[:40]!r} is no threshold that is searched", where=where, do=do)
        low, _, high = bounds.partition(":")
        try:
            given = Range(float(low), float(high or low))
            for end in (given.low, given.high):
                LocalizeSettings(**{**settings.model_dump(), name: end})
        except ValueError as error:  # not a number, or outside of the setting's own bounds
            raise UsageError("no bounds that it can have", where=where, do="write e.g. --range outlier_z=3:5") from error
        if given.low > given.high:
            raise UsageError("the lower bound is above the upper one", where=where, do="write e.g. --range outlier_z=3:5")
        ranges[name] = given
    return Space(ranges)


def latin_hypercube(rng: np.random.Generator, points: int, dimensions: int) -> npt.NDArray[np.float64]:
    """Points in the unit cube, one in each of *points* slices of every dimension; shape (points, dimensions)."""
    columns = [(rng.permutation(points) + rng.uniform(0, 1, points)) / max(points, 1) for _ in range(dimensions)]
    return np.stack(columns, axis=1) if points and dimensions else np.empty((points, dimensions))
