"""The whole job against its own iterations before the trigger: all that there is to hold it against without a healthy profile.

Iterations have a length and nothing else, so this tells that the job became slower and never in what. What is found must make up
for it: else the growth is a cause of its own, as what all ranks have in common that would.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.causes.spread import common_pauses, pause_finding, pause_gain_us, pauses_by_kind
from eroica.localizer.causes.stages import heavier_stage
from eroica.localizer.growth import iterations
from eroica.localizer.judgement import Finding
from eroica.localizer.reference import MATCHES
from eroica.schemas.verdicts import Evidence
from eroica.schemas.wording import say_share

RULE = "eroica/history"
EXPLAINED, PLACED, PLACED_EXPLAINED = 0.5, frozenset({"worker", "host", "link"}), 0.3
"""Findings that make up so much of the growth explain it; those that name a machine from the last share on, for of two machines
that are slow after each other each seems to give back little …"""
LOADED = 0.75
"""… loading that all ranks share, of which every job has some, from this share on."""
HEAVIER = (0.9, MATCHES[1])
"""A stage that has as much more work than the others as the step has grown by, between so many times: it is what grew."""
MOST, EXPOSED = 0.8, 0.5
"""So many ranks wait, or transfer between hosts, for less than this share of the growth: then most of it is work of theirs …"""
UNEQUAL = 0.25
"""… on all alike, if no more than this share of it is lost to ranks that differ."""
HALF = 0.5
"""Ranks that spend this share of what the median does in a pause take it as all do."""
DOUBT = 0.35
"""Lengths alone do not tell a slower job from one that was given more to do."""


def growth_notes(measures: Measures, findings: list[Finding]) -> list[str]:
    """That iterations became longer, where nothing is found that made them so; where nobody knows what did, whether a slower
    network could have.
    """
    told = iterations(measures.frame)
    if told is None or measures.past is not None or measures.grown_us <= 0:
        return []
    if any(f.cls == "unknown" for f in findings):
        transfers = transferred_us(measures)
        if min(exposed_us(measures), transfers) < measures.grown_us:
            return ["a slower network alone does not explain it: too little is transferred between hosts"]
        return [f"a slower network could explain it, or more work on all ranks: transfers take {ms(transfers)} ms of a step"]
    if findings:
        return []
    return [f"iterations take {say_share(told[0] / told[1] - 1)} longer than before ({ms(told[1])} ms)"]


def exposed_us(measures: Measures) -> float:
    """Exposed communication per step that :data:`MOST` of the ranks do not exceed, µs."""
    return float(np.quantile(measures.own.typical_wait_us, MOST, method="higher"))


def transferred_us(measures: Measures) -> float:
    """What :data:`MOST` of the ranks do not exceed of ``Measures.between_hosts_us``: no slower network costs more. (Slower
    transfers inside of every host at once are no fault that is known.)
    """
    return float(np.quantile(measures.between_hosts_us, MOST, method="higher"))


def with_growth(measures: Measures, found: list[Finding]) -> list[Finding]:
    """*found*, and what else made the job slower, if they make up for too little of what its iterations grew by.

    A pause that all ranks take, a stage that is heavier than the others by just that, the work of all ranks (``whole_job``), or
    ``unknown``.
    """
    frame, grown = measures.frame, measures.grown_us
    # Who is missing may be the one that all wait for; what a healthy past tells is more.
    if measures.past is not None or grown <= 0 or frame.missing.size:
        return found
    # Most jobs have a stage that is heavier than the others: that alone explains nothing.
    standing = [f for f in found if f.stages and f.cls == "pipeline_stage"]
    told = [f for f in found if f.cls != "unknown" and f not in standing]
    share = PLACED_EXPLAINED if any(f.cls in PLACED for f in told) else EXPLAINED
    if sum(f.gain_us for f in told) >= share * grown:
        return found
    if (pause := _pause(measures)) is not None:
        return [pause, *told]
    heavier, above = heavier_stage(measures)
    if heavier and HEAVIER[0] * grown <= above <= HEAVIER[1] * grown:
        return found if standing else [*(replace(f, gain_us=max(f.gain_us, min(above, grown))) for f in heavier), *found]
    return [*found, *_history(measures, nothing=not found)]


def _pause(measures: Measures) -> Finding | None:
    """The pause that :data:`MOST` ranks take alike, within a half, which makes up for most of the growth, if one does."""
    by_rank, common = pauses_by_kind(measures.frame), common_pauses(measures)
    gains = {
        what: pause_gain_us(measures, what, each) / (LOADED if what == "loader" else EXPLAINED)
        for what, each in common.items()
        if float(np.mean(by_rank[what] >= HALF * np.median(by_rank[what]))) >= MOST
    }
    best = max(sorted(gains), key=lambda what: gains[what], default="")
    if not best or gains[best] < measures.grown_us:
        return None
    return pause_finding(measures, best, common[best])


def _history(measures: Measures, *, nothing: bool) -> list[Finding]:
    """The growth as a finding.

    :param nothing: there is no other.
    """
    grown, told = measures.grown_us, iterations(measures.frame)
    waits, transfers = exposed_us(measures), transferred_us(measures)
    alike = min(waits, transfers) <= EXPOSED * grown and measures.lost_own_us <= UNEQUAL * grown
    if told is None or (nothing and not alike and not measures.own.comparable.any()):
        return []  # who is slow cannot be told here: that is no cause
    observed, usual = told
    evidence = [
        Evidence(
            kind="step", metric="duration of the iteration", subject="all ranks", value=ms(observed), unit="ms",
            expected=ms(usual), score=round(observed / usual, 3),
            score_kind="ratio", rule=RULE, compared_with="the job's iterations before",
        ),
        *(
            Evidence(
                kind="wait", metric=metric, subject="all ranks", value=ms(value), unit="ms", expected=ms(grown),
                score=round(value / grown, 3), score_kind="ratio", rule=RULE, compared_with="what the step has grown by",
            )
            for metric, value in (
                ("exposed communication per step", waits),
                ("transfers between hosts per step", transfers),
            )
        ),
    ]  # fmt: skip
    return [
        Finding(
            cls="whole_job" if alike else "unknown", ranks=measures.frame.ranks[:0], explains=0.0, confidence=0.0,
            evidence=evidence, gain_us=grown, doubt=DOUBT,
        )
    ]  # fmt: skip
