"""The default rules: waiting is handed back to who caused it; a culprit is late in most steps and slower than its peers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.judgement import Finding, Judgement, name_rows
from eroica.localizer.profile import function_evidence, grown_functions
from eroica.localizer.robust import persistent_z
from eroica.localizer.rules.functions import FUNCTION_SHARE, MIN_PEERS, judge_functions
from eroica.localizer.waiting import measure
from eroica.localizer.walk import Blame, walk
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Evidence

RULE = "eroica/walk"
MAX_CULPRITS = 8
"""More single workers are one cause together."""
NEXT_CULPRIT_SHARE = 0.15
"""A culprit explains at least this share of all waiting …"""
EQUAL_EXCESS = 0.5
"""… or is at least this share as slow as the slowest."""
SEEN_SHARE, MAX_SEEN = 0.10, 4
"""Who causes less of the waiting is not worth a note; so many notes."""


@dataclass(frozen=True)
class _Scores:
    """What the decision rests on, per worker."""

    share: Floats
    """Share of all waiting that the worker's own excess explains."""
    excess_us: Floats
    """Own time per step above the median of its role."""
    z: Floats
    own_us: Floats
    usual_us: Floats
    comparable: np.ndarray[tuple[int], np.dtype[np.bool_]]


def judge_eroica(frame: Frame, settings: LocalizeSettings) -> Judgement:
    """See docs/localisation.md. Abstains rather than accuses."""
    steps, durations = frame.step_table()
    if frame.size == 0 or steps.size == 0:
        return Judgement(comparable=False, notes=["no steps were profiled by all workers"])
    waiting = measure(frame)
    blame = walk(frame, waiting)
    step_us = float(durations.mean())
    notes = _notes(frame, waiting.partial.size, blame)
    if frame.executions.size == 0:
        return judge_functions(frame, step_us, notes, settings)
    scores = _score(frame, steps, durations, blame, settings)
    waited_share = blame.waited.sum(axis=1) / np.maximum(durations.sum(axis=1), 1e-9)
    findings = _findings(frame, blame, scores, step_us, float(waited_share.mean()), settings)
    accused = np.flatnonzero(np.isin(frame.ranks, np.concatenate([f.ranks for f in findings]) if findings else []))
    is_waiting = (waited_share >= settings.min_wait_share) & ~np.isin(np.arange(frame.size), accused)
    waiters = np.flatnonzero(is_waiting) if findings else np.empty(0, np.int64)
    recovered = _recovered(blame, accused)
    if not findings:
        notes += _seen(frame, scores)
    return Judgement(
        findings=findings,
        waiters=waiters,
        wait_share=float(waited_share[waiters].mean()) if waiters.size else 0.0,
        step_us=step_us,
        ideal_step_us=step_us - recovered,
        comparable=bool(scores.comparable.any()),
        notes=notes,
    )


def _notes(frame: Frame, partial: int, blame: Blame) -> list[str]:
    notes = []
    if partial:
        notes.append(f"{partial} collectives lack members in the profile: who was last there may be unseen")
    total = blame.total_us
    if total > 0 and blame.before_window_us > 0.2 * total:
        notes.append(f"{blame.before_window_us / total:.0%} of the waiting goes back to before the window opened")
    if any(int((frame.cls == c).sum()) < MIN_PEERS for c in np.unique(frame.cls)):
        notes.append("classes of fewer than three workers cannot be compared")
    return notes


def _score(frame: Frame, steps: Ints, durations: Floats, blame: Blame, settings: LocalizeSettings) -> _Scores:
    total = max(blame.total_us, 1e-9)
    kept = blame.kept
    at = np.searchsorted(blame.steps, steps)
    at = np.minimum(at, max(blame.steps.size - 1, 0))
    waited = np.where(blame.steps[at] == steps, blame.waited[:, at], 0.0) if blame.steps.size else np.zeros_like(durations)
    own_table = durations - waited
    own = np.median(own_table, axis=1)
    z, usual, comparable = np.zeros(frame.size), np.zeros(frame.size), np.zeros(frame.size, dtype=np.bool_)
    for role in np.unique(frame.cls).tolist():
        rows = np.flatnonzero(frame.cls == role)
        usual[rows] = float(np.median(np.median(own_table[rows], axis=0)))
        if rows.size >= MIN_PEERS:
            z[rows] = persistent_z(own_table[rows], settings.mad_floor_ratio)
            comparable[rows] = True
    return _Scores(kept.sum(axis=1) / total, own - usual, z, own, usual, comparable)


def _findings(
    frame: Frame, blame: Blame, scores: _Scores, step_us: float, wait_share: float, settings: LocalizeSettings
) -> list[Finding]:
    if wait_share < settings.min_wait_share:
        return []
    out = scores.comparable & (scores.z >= settings.outlier_z) & (scores.excess_us >= settings.min_effect * step_us)
    if not out.any():
        return []
    lead_us = float(scores.excess_us[out].max())
    # Who is never last only since another culprit is later is at fault all the same.
    culprits = np.flatnonzero(out & ((scores.share >= NEXT_CULPRIT_SHARE) | (scores.excess_us >= EQUAL_EXCESS * lead_us)))
    explained = float(scores.share[culprits].sum())
    agreement = _leads_together(blame, culprits)
    if explained < settings.min_explained or agreement < settings.min_step_agreement:
        return []
    weight = explained / float(scores.excess_us[culprits].sum())
    found = []
    for rows, hosts in _places(frame, culprits):
        share = weight * float(scores.excess_us[rows].sum())
        found.append(_finding(frame, scores, rows, culprits, share, explained, agreement, settings, hosts=hosts))
    return sorted(found, key=lambda f: (-f.explains, int(f.ranks[0])))


def _seen(frame: Frame, scores: _Scores) -> list[str]:
    """What was seen of those who keep most, where it is not enough to accuse anybody."""
    notes = []
    for row in np.lexsort((np.arange(frame.size), -scores.share)).tolist()[:MAX_SEEN]:
        if scores.share[row] < SEEN_SHARE or scores.excess_us[row] <= 0:
            break
        peers = np.flatnonzero((frame.cls == frame.cls[row]) & (np.arange(frame.size) != row))
        grown = grown_functions(frame, int(row), peers, FUNCTION_SHARE * float(scores.excess_us[row]), most=1)
        where = f", most in {grown[0].label}" if grown else ""
        notes.append(
            f"not enough to accuse: rank {int(frame.ranks[row])} causes {scores.share[row]:.0%} of the waiting, own time "
            f"{_ms(scores.own_us[row])} ms against {_ms(scores.usual_us[row])} ms{where}"
        )
    return notes


def _leads_together(blame: Blame, culprits: Ints) -> float:
    """Share of the steps in which the one who keeps most blame is among the culprits."""
    if not blame.kept.shape[1]:
        return 0.0
    return float(np.isin(blame.kept.argmax(axis=0), culprits).mean())


def _places(frame: Frame, culprits: Ints) -> list[tuple[Ints, list[str]]]:
    """The culprits as places: hosts of which most workers are culprits together, the others one by one (many: as one).

    With one host only, or one worker a host, a host cannot be told from its worker.
    """
    members: dict[str, list[int]] = {}
    for row, host in enumerate(frame.hosts):
        members.setdefault(host, []).append(row)
    guilty = set(culprits.tolist())
    hosts = sorted(
        host
        for host, rows in members.items()
        if len(members) > 1 and len(rows) > 1 and sum(row in guilty for row in rows) > len(rows) / 2
    )
    on_hosts = np.array(sorted(row for host in hosts for row in members[host] if row in guilty), dtype=np.int64)
    alone = np.setdiff1d(culprits, on_hosts)
    places = [(on_hosts, hosts)] if hosts else []
    parts = [alone] if alone.size > MAX_CULPRITS else list(alone[:, None])
    return [*places, *((rows, []) for rows in parts if rows.size)]


def _finding(
    frame: Frame,
    scores: _Scores,
    rows: Ints,
    culprits: Ints,
    share: float,
    explained: float,
    agreement: float,
    settings: LocalizeSettings,
    *,
    hosts: list[str],
) -> Finding:
    lead = int(rows[np.argmax(scores.excess_us[rows])])
    peers = np.flatnonzero((frame.cls == frame.cls[lead]) & ~np.isin(np.arange(frame.size), culprits))
    excess = float(scores.excess_us[lead])
    grown = grown_functions(frame, lead, peers, FUNCTION_SHARE * excess)
    subject = f"rank {int(frame.ranks[lead])}"
    compared = f"ranks {name_rows(frame, peers)}"
    evidence = [
        Evidence(
            kind="step", metric="own time per step (step less waiting)", subject=subject, value=_ms(scores.own_us[lead]),
            unit="ms", expected=_ms(scores.usual_us[lead]), score=round(float(scores.z[lead]), 2), rule="persistent robust z",
            compared_with=compared,
        ),
        Evidence(
            kind="wait", metric="share of all waiting that it causes", subject=subject, value=round(float(scores.share[lead]), 4),
            unit="1", expected=round(1.0 / frame.size, 4), score=round(float(scores.share[lead]) * frame.size, 2), rule=RULE,
            compared_with=compared,
        ),
    ]  # fmt: skip
    evidence += function_evidence(frame, lead, peers, grown, RULE)
    return Finding(
        cls="host" if hosts else "worker",
        ranks=frame.ranks[rows],
        explains=min(share, 1.0),
        confidence=_confidence(frame, scores, lead, explained, agreement, settings),
        functions=[g.label for g in grown],
        evidence=evidence,
        hosts=hosts or sorted({frame.hosts[row] for row in rows.tolist()}),
    )


def _confidence(
    frame: Frame, scores: _Scores, lead: int, explained: float, agreement: float, settings: LocalizeSettings
) -> float:
    """From the share explained, the steps that agree, how far out the culprit is, the source of the roles, and coverage."""
    distance = min(1.0, float(scores.z[lead]) / (2.0 * settings.outlier_z))
    role = 1.0 if frame.request.topology_source not in {"none", "unknown"} else 0.8
    steps = min(1.0, np.unique(frame.step).size / 3.0)
    raw = 0.4 * min(1.0, explained) + 0.3 * agreement + 0.2 * distance + 0.1 * role
    return round(float(min(1.0, raw) * frame.coverage * (0.7 + 0.3 * steps)), 3)


def _recovered(blame: Blame, accused: Ints) -> float:
    """Time of a step that mending the accused would give back, µs: the others' mean wait, as far as it is theirs."""
    n = blame.kept.shape[0]
    if accused.size == 0 or n <= accused.size or not blame.kept.shape[1]:
        return 0.0
    return float((blame.kept[accused].sum(axis=0) / (n - accused.size)).mean())


def _ms(value_us: float) -> float:
    return round(float(value_us) / 1e3, 3)
