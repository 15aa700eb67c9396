"""The search itself: points in the space of thresholds, the front that no point beats, and folds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eroica.offline.score import Score
from eroica.schemas.errors import UsageError
from eroica.schemas.settings import LocalizeSettings

Point = dict[str, float]
"""Setting of the localizer → value."""
RANGES: dict[str, tuple[float, float]] = {
    "outlier_z": (2.5, 6.0),
    "min_effect": (0.01, 0.08),
    "mad_floor_ratio": (0.05, 0.20),
}
"""What a threshold may be; the published and the measured values lie inside."""
CONFIDENCE = "accuse_confidence"
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Below 0.5 nobody is accused by contract. Each is tried with every other point, since judging need not be repeated for it."""
NEAR = 0.15
"""The second half of the points lies this near to the front of the first, as share of each range."""


@dataclass(frozen=True)
class Outcome:
    """How a point does on some cases."""

    recall: float
    """Of the true causes, the share that is named; 1 without any."""
    right: float
    """Share of the faulty cases whose first cause is right; 1 without any."""
    false: float
    """Share of all cases in which a machine is accused that is not at fault: any in a healthy one, a wrong one else."""
    faulty: int
    healthy: int

    def beats(self, other: Outcome) -> bool:
        """Better in one of recall and false accusations, and no worse in the other."""
        return (
            self.recall >= other.recall and self.false <= other.false and (self.recall, self.false) != (other.recall, other.false)
        )


@dataclass(frozen=True)
class Tried:
    """A point with its scores, one a case."""

    point: Point
    scores: list[Score]

    def outcome(self, cases: Sequence[int] | None = None) -> Outcome:
        """On those *cases*, else on all."""
        return outcome([self.scores[i] for i in cases] if cases is not None else self.scores)


def outcome(scores: Sequence[Score]) -> Outcome:
    """Sum up *scores*."""
    faulty = [s for s in scores if s.of]
    wrong = sum(s.accused and not s.right for s in scores) + sum(s.waiter and s.right for s in faulty)
    return Outcome(
        recall=sum(s.found for s in faulty) / sum(s.of for s in faulty) if faulty else 1.0,
        right=sum(s.right for s in faulty) / len(faulty) if faulty else 1.0,
        false=wrong / len(scores) if scores else 0.0,
        faulty=len(faulty),
        healthy=len(scores) - len(faulty),
    )


def default_point(settings: LocalizeSettings) -> Point:
    """Where the search starts."""
    return {name: float(getattr(settings, name)) for name in (*RANGES, CONFIDENCE)}


def with_point(settings: LocalizeSettings, point: Point) -> LocalizeSettings:
    """*settings* at *point*."""
    values: dict[str, Any] = {**settings.model_dump(), **point}
    return LocalizeSettings(**values)


def search(
    settings: LocalizeSettings,
    judge: Callable[[LocalizeSettings, Sequence[float]], list[list[Score]]],
    points: int,
    seed: int,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> list[Tried]:
    """Try *points* points, each with every confidence: the settings' own, a Latin hypercube, and the neighbourhood of its front.

    The same seed and judge give the same points.

    :param judge: scores of all cases at some settings, one list for each of the confidences.
    """
    rng = np.random.default_rng(seed)
    tried: list[Tried] = []

    confidences = sorted({*CONFIDENCES, float(settings.accuse_confidence)})

    def attempt(point: Point, number: int) -> None:
        for confidence, scores in zip(confidences, judge(with_point(settings, point), confidences), strict=True):
            tried.append(Tried({**point, CONFIDENCE: confidence}, scores))
        tell(number, points)

    attempt({name: value for name, value in default_point(settings).items() if name != CONFIDENCE}, 1)
    first = max(1, (points - 1) // 2)
    for number, unit in enumerate(latin_hypercube(rng, min(first, points - 1), len(RANGES)), 2):
        attempt(_scaled(unit), number)
    for number in range(2 + min(first, points - 1), points + 1):
        centres = front(tried)
        centre = centres[int(rng.integers(len(centres)))].point
        unit = np.array([(centre[name] - low) / (high - low) for name, (low, high) in RANGES.items()])
        attempt(_scaled(np.clip(unit + NEAR * rng.uniform(-1, 1, len(RANGES)), 0, 1)), number)
    return tried


def latin_hypercube(rng: np.random.Generator, points: int, dimensions: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Points in the unit cube, one in each of *points* slices of every dimension; shape (points, dimensions)."""
    columns = [(rng.permutation(points) + rng.uniform(0, 1, points)) / max(points, 1) for _ in range(dimensions)]
    return np.stack(columns, axis=1) if points else np.empty((0, dimensions))


def _scaled(unit: Any) -> Point:
    return {name: round(low + float(u) * (high - low), 4) for u, (name, (low, high)) in zip(unit, RANGES.items(), strict=True)}


def front(tried: Sequence[Tried], cases: Sequence[int] | None = None) -> list[Tried]:
    """The points that none beats, one for each outcome (the one tried first), fewest false accusations first."""
    found: dict[tuple[float, float], Tried] = {}
    outcomes = {}
    for one in tried:
        result = one.outcome(cases)
        key = (result.false, -result.recall)
        if key not in found:
            found[key], outcomes[key] = one, result
    kept = [key for key, result in outcomes.items() if not any(other.beats(result) for other in outcomes.values())]
    return [found[key] for key in sorted(kept)]


def choose(tried: Sequence[Tried], max_false: float, cases: Sequence[int] | None = None) -> Tried:
    """The point of the front with most recall among those of at most *max_false*; if there is none, the one with least."""
    points = front(tried, cases)
    within = [one for one in points if one.outcome(cases).false <= max_false]
    return within[-1] if within else points[0]


def folds(jobs: Sequence[str], wanted: int, seed: int) -> list[list[int]]:
    """Cases of each fold; those of a job stay together, and folds are filled evenly.

    :raises UsageError: fewer jobs than two.
    """
    names = sorted(set(jobs))
    if len(names) < 2:
        raise UsageError(
            "all cases are of one job: nothing is left to hold the choice against",
            do="label more jobs, or give them names: job: …",
        )
    out: list[list[int]] = [[] for _ in range(min(wanted, len(names)))]
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    for name in sorted((names[i] for i in order), key=lambda name: -sum(j == name for j in jobs)):
        smallest = min(out, key=len)
        smallest.extend(i for i, job in enumerate(jobs) if job == name)
    return [sorted(fold) for fold in out]
