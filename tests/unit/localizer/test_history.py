"""A job that became slower, of which no healthy profile is known: its own iterations are all that it is held against."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scenes import Scene, steady

from eroica.localizer.actions import Advice
from eroica.localizer.build import build_frame
from eroica.localizer.core import LocalizerCore
from eroica.localizer.explain import explain_verdict
from eroica.localizer.judged import Judged
from eroica.localizer.rules.eroica import judge_eroica
from eroica.localizer.verdict import make_verdict
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Verdict

pytestmark = pytest.mark.unit

STEP_US = 51_000.0
"""50 ms of work and 1 ms of transfer, as the scenes below have it."""


def judge(scene: Scene) -> Verdict:
    core = LocalizerCore(LocalizeSettings())
    (output,) = [o for at, chunk in enumerate(scene.chunks()) for o in core.feed(chunk, InputRef("groups", 0, at))]
    assert isinstance(output.message, Verdict)
    return output.message


def told(ratio: float, observed: float = STEP_US) -> dict[str, float]:
    return {"observed_us": observed, "baseline_us": observed / ratio}


@pytest.mark.parametrize(
    ("ranks", "slow", "figures", "causes"),
    [
        (8, {}, told(1.3), ["whole_job"]),  # all work, all alike, and more of it than before
        (8, {}, told(1.3, observed=0.8 * STEP_US), ["whole_job"]),  # the profiler makes steps longer
        (8, {}, told(1.3, observed=2 * STEP_US), []),  # the profile shows a job that has recovered
        (8, {}, told(1.05), []),  # no more than chance does
        (8, {}, {}, []),
        (8, {}, {"observed_us": STEP_US}, []),
        (8, {}, {"observed_us": STEP_US, "baseline_us": 0.0}, []),
        (8, {}, {"observed_us": STEP_US, "baseline_us": -1.0}, []),
        (8, {}, {"observed_us": math.inf, "baseline_us": 1.0}, []),
        (2, {}, told(1.3), ["whole_job"]),
        (2, {1: 1.5}, told(1.5, observed=1.5 * STEP_US), ["worker"]),  # of two, one is slower by what the job became slower by
        (2, {1: 1.5}, told(1.15, observed=1.5 * STEP_US), []),  # it was slower before: nobody tells which is the odd one
        (8, {1: 1.5, 2: 1.5, 3: 1.5, 4: 1.5}, told(1.5, observed=1.5 * STEP_US), ["worker"] * 4),  # or half of them are
        (8, {1: 1.5, 2: 1.5, 3: 1.5, 4: 1.5}, told(1.2, observed=1.5 * STEP_US), ["unknown"]),  # they were slower before
        (8, {3: 1.5}, told(1.5, observed=1.5 * STEP_US), ["worker"]),  # who is found is not hidden behind what is not
    ],
)
def test_what_the_iterations_before_tell(
    ranks: int, slow: dict[int, float], figures: dict[str, float], causes: list[str]
) -> None:
    verdict = judge(Scene(ranks, steady(50_000.0, slow), figures=figures))
    assert [cause.class_ for cause in verdict.causes] == causes
    for cause in verdict.causes:
        assert cause.class_ == "worker" or (cause.suspects.ranks == "" and cause.confidence < 0.9)


def test_a_missing_rank_may_be_the_one_that_all_wait_for() -> None:
    assert judge(Scene(8, steady(50_000.0, {}), absent=[5], figures=told(1.3))).causes == []


def test_of_two_it_is_said_that_nobody_can_be_compared_and_that_iterations_are_longer() -> None:
    verdict = judge(Scene(2, steady(50_000.0, {1: 1.5}), figures=told(1.15, observed=1.5 * STEP_US)))
    assert verdict.status == "insufficient_data"
    assert "fewer than three workers cannot be compared" in verdict.headline
    assert any(note.startswith("iterations take 15% longer than before") for note in verdict.coverage.notes)


@pytest.mark.parametrize(("slow", "ratio", "cls"), [({}, 1.4, "whole_job"), ({1: 1.5, 2: 1.5, 3: 1.5, 4: 1.5}, 1.2, "unknown")])
def test_its_evidence_is_made_again_and_what_it_costs_is_said(slow: dict[int, float], ratio: float, cls: str) -> None:
    scene: Any = Scene(8, steady(50_000.0, slow), figures=told(ratio, observed=STEP_US * max([1.0, *slow.values()])))
    frame, settings, advice = build_frame(scene.chunks()), LocalizeSettings(), Advice()
    judgement = judge_eroica(frame, settings)
    verdict = make_verdict(frame, judgement, settings, advice)
    assert [cause.class_ for cause in verdict.causes] == [cls]
    items = list(explain_verdict(Judged(frame, None, judgement, advice, settings, verdict)))
    assert len(items) == 3
    assert all(item.explanation is not None and item.explanation.agrees(item.evidence) for item in items)
    explained = [note for note in judgement.notes if note.startswith("a slower network alone does not explain it")]
    assert len(explained) == (cls == "unknown")
    assert verdict.waiters.ranks == ""
    assert verdict.impact.slowdown == pytest.approx(ratio, rel=0.01)
