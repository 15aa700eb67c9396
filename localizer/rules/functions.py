"""Without collectives nobody can be seen to wait: only functions are compared, and less is claimed."""

from __future__ import annotations

import numpy as np

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.judgement import Finding, Judgement, name_rows
from eroica.localizer.profile import WAITING_CATEGORY, exclusive_table, function_evidence, grown_functions
from eroica.localizer.robust import robust_z
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Evidence

RULE = "eroica/functions"
MIN_PEERS = 3
"""Fewer workers in a role cannot show which of them is the odd one."""
EFFECT_SHARE = 0.30
"""A culprit spends at least this share of the step more than its peers: without waiting to confirm it, small is not enough."""
SPREAD_SHARE = 0.03
"""Spread of the excess is taken as at least this share of the step."""
FUNCTION_SHARE = 0.10
"""A function is named if it makes up at least this share of the excess."""
CONFIDENCE = 0.6
MAX_CULPRITS = 8


def judge_functions(frame: Frame, step_us: float, notes: list[str], settings: LocalizeSettings) -> Judgement:
    """Accuse who spends far more on some functions than the median of its role.

    Time that grew on most is nobody's: a hidden wait grows on all but the culprit, and leaves the median with it.
    """
    notes = [*notes, "no collectives in the profile: who waits is unknown, only functions were compared"]
    excess, z, comparable = excess_table(frame, settings)
    if not frame.functions or not comparable.any():
        return Judgement(step_us=step_us, comparable=False, notes=notes)
    out = np.flatnonzero(comparable & (z >= settings.outlier_z) & (excess >= EFFECT_SHARE * step_us))
    if out.size > MAX_CULPRITS:
        notes.append(f"{out.size} workers stand out: too many for a single place")
        return Judgement(step_us=step_us, notes=notes)
    order = out[np.lexsort((out, -excess[out]))]
    findings = [_finding(frame, row, out, float(excess[row]), float(z[row])) for row in order.tolist()]
    return Judgement(findings=findings, step_us=step_us, notes=notes)


def excess_table(frame: Frame, settings: LocalizeSettings) -> tuple[Floats, Floats, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Time per step above the role's median, summed over the functions in which it is above, µs; its z; and who has peers."""
    excess, z, comparable = np.zeros(frame.size), np.zeros(frame.size), np.zeros(frame.size, dtype=np.bool_)
    own = np.flatnonzero([f.category != WAITING_CATEGORY for f in frame.functions])
    step_us = float(np.median(frame.step_us)) if frame.step_us.size else 0.0
    everyone = exclusive_table(frame, np.arange(frame.size))[:, own]
    for role in frame.roles:
        rows = np.flatnonzero(frame.cls == role)
        if rows.size < MIN_PEERS:
            continue
        table = everyone[rows]
        above = table - np.median(table, axis=0)
        excess[rows] = np.where(above > settings.mad_floor_ratio * (table - above), above, 0.0).sum(axis=1)
        z[rows] = robust_z(excess[rows], settings.mad_floor_ratio, SPREAD_SHARE * step_us)
        comparable[rows] = True
    return excess, z, comparable


def _finding(frame: Frame, row: int, out: Ints, excess_us: float, z: float) -> Finding:
    peers = np.flatnonzero((frame.cls == frame.cls[row]) & ~np.isin(np.arange(frame.size), out))
    grown = grown_functions(frame, row, peers, FUNCTION_SHARE * excess_us)
    whole = Evidence(
        kind="function", metric="time per step above the peers, all functions", subject=f"rank {int(frame.ranks[row])}",
        value=round(excess_us / 1e3, 3), unit="ms", expected=0.0, score=round(z, 2), score_kind="z", rule=RULE,
        compared_with=name_rows(frame, peers),
    )  # fmt: skip
    return Finding(
        cls="worker",
        ranks=frame.ranks[[row]],
        explains=0.0,
        confidence=round(CONFIDENCE * frame.coverage, 3),
        functions=[g.label for g in grown],
        evidence=[whole, *function_evidence(frame, row, peers, grown, RULE)],
        hosts=[frame.hosts[row]],
    )
