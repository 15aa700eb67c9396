"""The whole job against its own iterations before the trigger: all that there is to hold it against without a healthy profile.

Iterations have a length and nothing else, so this tells that the job became slower and never in what. It speaks only where no
rank, link, stage or pause was found to explain it.
"""

from __future__ import annotations

import math

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.frame import Frame
from eroica.localizer.judgement import Finding
from eroica.schemas.verdicts import Evidence
from eroica.schemas.wording import say_share

RULE = "eroica/history"
GROWN = 0.10
"""Iterations that are longer by this share than the fastest before them are slow; chance and other inputs make up less."""
STILL = 0.5
"""The profile shows the job slow if its step is longer than the iteration was by at least this share of what it had grown by."""
MOST, EXPOSED = 0.8, 0.5
"""So many ranks wait for less than this share of the growth: then most of it is their own work, on all alike …"""
UNEQUAL = 0.25
"""… if no more than this share of it is lost to ranks that differ."""
DOUBT = 0.35
"""Lengths alone do not tell a slower job from one that was given more to do."""


def iterations(frame: Frame) -> tuple[float, float] | None:
    """Mean iteration when the request was made, and before, µs; ``None`` if it tells nothing of a degradation."""
    if frame.request.reason != "degradation":
        return None
    observed, usual = (float(frame.request.figures.get(name, 0.0)) for name in ("observed_us", "baseline_us"))
    return (observed, usual) if 0 < usual < observed and math.isfinite(observed) else None


def grown_us(measures: Measures) -> float:
    """What a step of the profile takes longer than before, µs: as share of it what iterations do, which no profiler slows.

    0 if the request does not tell, if it is too little to tell from chance, or if the profile does not show it.
    """
    told = iterations(measures.frame)
    if told is None or measures.own.steps.size == 0:
        return 0.0
    observed, usual = told
    typical = float(np.median(measures.own.step_us))
    if observed < (1 + GROWN) * usual or typical < usual + STILL * (observed - usual):
        return 0.0
    return (1 - usual / observed) * typical


def grown_note(measures: Measures) -> list[str]:
    """That iterations became longer, where nothing is found that would have made them so."""
    told = iterations(measures.frame)
    if told is None or grown_us(measures) <= 0:
        return []
    return [f"iterations take {say_share(told[0] / told[1] - 1)} longer than before ({ms(told[1])} ms)"]


def exposed_us(measures: Measures) -> float:
    """Exposed communication per step that :data:`MOST` of the ranks do not exceed, µs."""
    return float(np.quantile(measures.own.typical_wait_us, MOST, method="higher"))


def find_history(measures: Measures) -> list[Finding]:
    """A job that became slower, without a healthy profile: the whole job if the growth is work of all ranks, else unknown."""
    frame, grown = measures.frame, grown_us(measures)
    told = iterations(frame)
    # Who is missing may be the one that all wait for.
    if measures.past is not None or told is None or grown <= 0 or frame.missing.size:
        return []
    waits = exposed_us(measures)
    alike = waits <= EXPOSED * grown and measures.lost_own_us <= UNEQUAL * grown
    if not alike and not measures.own.comparable.any():
        return []  # who is slow cannot be told here: that is no cause
    observed, usual = told
    evidence = [
        Evidence(
            kind="step", metric="duration of the iteration", subject="all ranks", value=ms(observed), unit="ms",
            expected=ms(usual), score=round(observed / usual, 3),
            score_kind="ratio", rule=RULE, compared_with="the job's iterations before",
        ),
        Evidence(
            kind="wait", metric="exposed communication per step", subject="all ranks", value=ms(waits), unit="ms",
            expected=ms(grown), score=round(waits / grown, 3),
            score_kind="ratio", rule=RULE, compared_with="what the step has grown by",
        ),
    ]  # fmt: skip
    return [
        Finding(
            cls="whole_job" if alike else "unknown", ranks=frame.ranks[:0], explains=0.0, confidence=0.0, evidence=evidence,
            gain_us=grown, doubt=DOUBT,
        )
    ]  # fmt: skip
