"""The whole job against its own healthy past: slower on all ranks alike."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.causes.spread import (
    PROVEN,
    common_pause,
    imbalance_finding,
    pause_finding,
    pause_gain_us,
    restless,
    restless_share,
)
from eroica.localizer.frame import Floats
from eroica.localizer.judgement import Finding
from eroica.localizer.past import function_key
from eroica.localizer.profile import WAITING_CATEGORY, exclusive_table
from eroica.schemas.verdicts import CauseClass, Evidence

RULE = "eroica/past"
FUNCTION_SHARE = 0.10
MAX_FUNCTIONS = 5
UNKNOWN_GROWTH = 0.05
"""A step that is longer by this share than in the healthy profile is slow, whatever it is that makes it so."""
UNKNOWN_ERRORS = 3.0
"""It is longer by so many standard errors of the mean."""
HOST_EFFECT, HOST_SPREADS = 1.5, 5.0
"""To accuse a host by its own past alone takes so many times the least effect, and so many spreads of its steps."""
ALIKE, MOST = 0.25, 0.8
"""The whole job is slower if so many ranks are, by this share of what the roles are."""
RESTLESS_SHARE = 0.25
"""Unequal work spreads steps by at least this share of what it lengthens them by."""
PAUSE_SHARE = 0.5
"""Recorded pauses on all ranks that make up this share of the growth are its cause."""


def find_whole(measures: Measures) -> list[Finding]:
    """Own time that grew in every role since the healthy profile, and the functions that grew."""
    past, own, frame = measures.past, measures.own, measures.frame
    if past is None or own.steps.size == 0:
        return []
    usual = np.median(own.usual_us, axis=1)
    then = np.array([past.own_us.get(frame.classes[c], np.nan) for c in frame.cls.tolist()])
    if np.isnan(then).any():
        return []
    none = np.zeros(usual.size)
    growth = measures.model.gain_us(np.stack((none, usual))[:, :, None], np.stack((none, then))[:, :, None])
    least = PROVEN * measures.settings.min_effect * measures.step_us
    roles = np.array([float(np.median((usual - then)[frame.cls == c])) for c in frame.roles])
    if growth < least:
        return []
    if bool((roles < 0.5 * least).any()):
        return _one_host(measures, usual - then, growth)
    now = np.median(own.own_us, axis=1)
    if float(np.mean(now - then >= ALIKE * roles.min())) < MOST:
        return []
    what, paused = common_pause(measures)
    if what == "loader":
        once = np.array([past.once_us.get(frame.classes[c], 0.0) for c in frame.cls.tolist()])
        paused = min(paused, float(np.median(np.median(own.parts_us[0], axis=1) - once)))
    if what and pause_gain_us(measures, what, paused) >= PAUSE_SHARE * growth:
        return [pause_finding(measures, what, paused)]
    if restless(measures) and restless_share(measures) >= RESTLESS_SHARE * float(np.median(1 - then / np.maximum(usual, 1e-9))):
        return [imbalance_finding(measures, growth)]
    grown = _grown(measures, growth)
    evidence = [
        Evidence(
            kind="step", metric="usual own time per step", subject="all ranks", value=ms(float(np.median(usual))), unit="ms",
            expected=ms(float(np.median(then))), score=round(float(np.median(usual / np.maximum(then, 1e-9))), 3),
            score_kind="ratio", rule=RULE,
            compared_with=f"the healthy profile {past.request}",
        ),
        *(
            Evidence(
                kind="function", metric="exclusive time per step", subject=f"all ranks: {name}", value=ms(now), unit="ms",
                expected=ms(was), score=round(now / was, 3) if was > 0 else ms(now),
                score_kind="ratio" if was > 0 else "value", rule=RULE,
                compared_with=f"the healthy profile {past.request}",
            )
            for name, now, was in grown
        ),
    ]  # fmt: skip
    return [
        Finding(
            cls="whole_job", ranks=frame.ranks[:0], explains=0.0, confidence=0.0, functions=[name for name, _, _ in grown],
            evidence=evidence, gain_us=growth,
        )
    ]  # fmt: skip


def _one_host(measures: Measures, growth: Floats, gain: float) -> list[Finding]:
    """A host whose workers have a role of their own (another device model): no peers, but slower than in its own past."""
    frame, own, past = measures.frame, measures.own, measures.past
    chance = HOST_SPREADS * own.spread_us / np.sqrt(own.steps.size)
    rows = np.flatnonzero(growth >= np.maximum(HOST_EFFECT * measures.settings.min_effect * measures.step_us, chance))
    hosts = sorted({frame.hosts[row] for row in rows.tolist()})
    by_host = measures.rows_of_hosts
    if past is None or len(hosts) != 1 or len(by_host) < 2 or len(by_host[hosts[0]]) != rows.size:
        return []
    lead = int(rows[np.argmax(growth[rows])])
    usual = float(np.median(own.usual_us[lead]))
    evidence = Evidence(
        kind="step", metric="usual own time per step", subject=f"host {hosts[0]}", value=ms(usual), unit="ms",
        expected=ms(usual - float(growth[lead])), score=round(usual / max(usual - float(growth[lead]), 1e-9), 3),
        score_kind="ratio", rule=RULE,
        compared_with=f"the healthy profile {past.request}",
    )  # fmt: skip
    cls: CauseClass = "host" if rows.size > 1 else "worker"
    return [
        Finding(cls=cls, ranks=frame.ranks[rows], explains=0.0, confidence=0.0, evidence=[evidence], hosts=hosts, gain_us=gain)
    ]


def _grown(measures: Measures, growth: float) -> list[tuple[str, float, float]]:
    """Functions that make up most of the growth: name, median time per step now and then, most growth first."""
    frame, past = measures.frame, measures.past
    if past is None:
        return []
    now: dict[str, Floats] = {}
    table = exclusive_table(frame, np.arange(frame.size))
    for i, function in enumerate(frame.functions):
        if function.category != WAITING_CATEGORY:
            key = function_key(function)
            now[key] = now.get(key, np.zeros(frame.size)) + table[:, i]
    found = []
    for key, column in now.items():
        was = float(np.median([past.functions.get(frame.classes[c], {}).get(key, 0.0) for c in frame.cls.tolist()]))
        value = float(np.median(column))
        if value - was >= FUNCTION_SHARE * growth:
            found.append((key.partition(": ")[2], value, was))
    return sorted(found, key=lambda item: (item[2] - item[1], item[0]))[:MAX_FUNCTIONS]


def find_unknown(measures: Measures) -> list[Finding]:
    """A step that is longer than in the healthy profile, and nothing that was looked at explains it: said as just that."""
    past, own, frame = measures.past, measures.own, measures.frame
    if past is None or past.step_us <= 0 or own.steps.size == 0:
        return []
    typical = float(np.median(own.step_us))
    chance = (
        UNKNOWN_ERRORS * float(own.step_us.mean(axis=0).std(ddof=1)) * np.sqrt(2 / own.steps.size) if own.steps.size > 1 else 0.0
    )
    if typical < past.step_us + max(UNKNOWN_GROWTH * past.step_us, chance):
        return []
    evidence = Evidence(
        kind="step", metric="duration of the step", subject="all ranks", value=ms(typical), unit="ms", expected=ms(past.step_us),
        score=round(typical / past.step_us, 3),
        score_kind="ratio", rule=RULE, compared_with=f"the healthy profile {past.request}",
    )  # fmt: skip
    return [
        Finding(
            cls="unknown", ranks=frame.ranks[:0], explains=0.0, confidence=0.0, evidence=[evidence],
            gain_us=typical - past.step_us,
        )
    ]  # fmt: skip
