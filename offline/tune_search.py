"""The search itself: points in the space of thresholds, the front that no point beats, and folds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eroica.offline.score import Score
from eroica.offline.tune_space import Point, Space, latin_hypercube
from eroica.schemas.errors import UsageError
from eroica.schemas.settings import LocalizeSettings

CONFIDENCE = "accuse_confidence"
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Below 0.5 nobody is accused by contract. Each is tried with every other point, since judging need not be repeated for it."""
NEAR = 0.15
"""Moves from a point of the front go so far at most, as share of each range."""
MOVES = 4
"""Moves that may be drawn for each point that is left: some lead to points that were tried."""
Judge = Callable[[LocalizeSettings, Sequence[float]], list[list[Score]]]


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


def default_point(settings: LocalizeSettings, space: Space) -> Point:
    """Where the search starts."""
    return {name: float(getattr(settings, name)) for name in (*space.ranges, CONFIDENCE)}


def with_point(settings: LocalizeSettings, point: Point) -> LocalizeSettings:
    """*settings* at *point*."""
    values: dict[str, Any] = {**settings.model_dump(), **point}
    return LocalizeSettings(**values)


@dataclass(frozen=True)
class Searched:
    """What a search tried."""

    tried: list[Tried]
    """Nearest to the start first, so that of points that do alike the one that changes least is taken."""
    idle: list[str]
    """Thresholds that changed no verdict from end to end of their range, and were left alone."""


def search(
    settings: LocalizeSettings,
    space: Space,
    judge: Judge,
    points: int,
    seed: int,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> Searched:
    """Try at most *points* points of *space*, each with every confidence.

    First the settings' own; then, if the budget allows, each threshold alone at both ends of its range, which shows those that
    decide nothing here; a Latin hypercube over the rest; and moves from points of the front so far, of one coordinate or of
    all. The same seed and judge give the same points.

    :param judge: scores of all cases at some settings, one list for each of the confidences.
    """
    tries = _Tries(settings, judge, points, tell)
    start = {name: value for name, value in default_point(settings, space).items() if name != CONFIDENCE}
    tries.attempt(start)
    idle = _idle(tries, space, start) if points > 2 * (1 + 2 * space.size) else []
    left = space.without(idle)
    rng = np.random.default_rng(seed)
    for unit in latin_hypercube(rng, tries.left // 2, left.size):
        tries.attempt({**start, **left.point(unit)})
    for turn in range(MOVES * tries.left if left.size else 0):
        if tries.left == 0:
            break
        centres = front(tries.tried)
        centre = left.unit(centres[int(rng.integers(len(centres)))].point)
        step = NEAR * rng.uniform(-1, 1, left.size)
        only = np.arange(left.size) == rng.integers(left.size) if turn % 2 else np.ones(left.size, dtype=bool)
        tries.attempt({**start, **left.point(np.clip(centre + np.where(only, step, 0.0), 0, 1))})
    origin = space.unit(start)

    def distance(one: Tried) -> tuple[float, float]:
        return float(np.abs(space.unit(one.point) - origin).sum()), abs(one.point[CONFIDENCE] - settings.accuse_confidence)

    return Searched(sorted(tries.tried, key=distance), idle)


class _Tries:
    """Points that were judged, within a budget."""

    def __init__(self, settings: LocalizeSettings, judge: Judge, points: int, tell: Callable[[int, int], None]) -> None:
        self.tried: list[Tried] = []
        self._seen: dict[tuple[float, ...], list[list[Score]]] = {}
        self._settings, self._judge, self._points, self._tell = settings, judge, points, tell
        self._confidences = sorted({*CONFIDENCES, float(settings.accuse_confidence)})

    @property
    def left(self) -> int:
        """How many points may still be judged."""
        return self._points - len(self._seen)

    def attempt(self, point: Point) -> list[list[Score]]:
        """Scores at *point*, a list for each confidence; what was judged already costs nothing."""
        key = tuple(point.values())
        if key not in self._seen:
            self._seen[key] = self._judge(with_point(self._settings, point), self._confidences)
            for confidence, scores in zip(self._confidences, self._seen[key], strict=True):
                self.tried.append(Tried({**point, CONFIDENCE: confidence}, scores))
            self._tell(len(self._seen), self._points)
        return self._seen[key]


def _idle(tries: _Tries, space: Space, start: Point) -> list[str]:
    """Thresholds that give every case the same scores at the start and at both ends of their range."""
    at_start = tries.attempt(start)
    wide = {name: r for name, r in space.ranges.items() if r.low < r.high}
    ends = {name: [tries.attempt({**start, name: end}) for end in (r.low, r.high)] for name, r in wide.items()}
    return [name for name, scores in ends.items() if all(one == at_start for one in scores)]


def front(tried: Sequence[Tried], cases: Sequence[int] | None = None) -> list[Tried]:
    """The points that none beats, one for each outcome (the first of its kind), fewest false accusations first."""
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
