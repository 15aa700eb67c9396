"""Thresholds of the default rules over labelled cases: the front of recall against false accusations, never one winner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eroica.offline.score import Score
from eroica.offline.tune_cases import Case
from eroica.offline.tune_search import Outcome, Tried, choose, default_point, folds, front, outcome, search
from eroica.offline.tune_space import Space, space_of
from eroica.schemas.errors import UsageError
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.wording import say_count


@dataclass(frozen=True)
class Plan:
    """How to search."""

    points: int = 40
    folds: int = 5
    seed: int = 1
    ranges: tuple[str, ...] = ()
    """``NAME=LOW:HIGH`` in place of a threshold's own range."""
    max_false: float = 0.0
    """The chosen point accuses falsely in at most this share of the cases, if any does."""


@dataclass(frozen=True)
class Fold:
    """One fold: what is chosen without it, and how that does on it."""

    jobs: list[str]
    chosen: Tried
    inside: Outcome
    """On the cases that it was chosen by."""
    outside: Outcome


@dataclass(frozen=True)
class Tuning:
    """What a search came to."""

    plan: Plan
    cases: list[Case]
    settings: LocalizeSettings
    """Where it started."""
    space: Space
    """What was searched."""
    idle: list[str]
    """Of it, thresholds that decide nothing on these cases."""
    tried: list[Tried]
    front: list[Tried]
    chosen: Tried
    folds: list[Fold]
    unseen: Outcome
    """Of all folds together: what a choice made like this does on jobs that it has not seen."""
    in_folds: list[int]
    """For each point of the front, without how many of the folds it stands there too."""

    @property
    def start(self) -> Tried:
        """The settings that the search started from."""
        return next(one for one in self.tried if one.point == default_point(self.settings, self.space))


def tune(
    cases: Sequence[Case], settings: LocalizeSettings, plan: Plan, tell: Callable[[int, int], None] = lambda *_: None
) -> Tuning:
    """Search, and hold the way of choosing against jobs that it did not see. Equal input gives an equal result.

    :raises UsageError: no case is faulty, none is healthy, all are of one job, or a range is none.
    """
    space = space_of(settings, plan.ranges)
    if plan.points < 1 or plan.folds < 2:
        raise UsageError("at least one point and two folds are needed", where="--points, --folds")
    if not any(case.label.healthy for case in cases) or all(case.label.healthy for case in cases):
        raise UsageError(
            "both are needed: cases with a fault, for what is found, and healthy ones, for who is accused falsely",
            where=f"{say_count(len(cases), 'case')}, {sum(case.label.healthy for case in cases)} healthy",
        )
    parts = folds([case.job for case in cases], plan.folds, plan.seed)

    def judge(at: LocalizeSettings, confidences: Sequence[float]) -> list[list[Score]]:
        by_case = [case.scores(at, confidences) for case in cases]
        return [list(column) for column in zip(*by_case, strict=True)]

    searched = search(settings, space, judge, plan.points, plan.seed, tell)
    tried = searched.tried
    best = front(tried)
    made, unseen, in_folds = [], [], [0] * len(best)
    for part in parts:
        rest = [i for i in range(len(cases)) if i not in set(part)]
        chosen = choose(tried, plan.max_false, rest)
        made.append(Fold(sorted({cases[i].job for i in part}), chosen, chosen.outcome(rest), chosen.outcome(part)))
        unseen += [chosen.scores[i] for i in part]
        results = [one.outcome(rest) for one in tried]
        for number, one in enumerate(best):
            in_folds[number] += not any(other.beats(one.outcome(rest)) for other in results)
    return Tuning(
        plan=plan, cases=list(cases), settings=settings, space=space, idle=searched.idle, tried=tried,
        front=best, chosen=choose(tried, plan.max_false),
        folds=made, unseen=outcome(unseen), in_folds=in_folds,
    )  # fmt: skip
