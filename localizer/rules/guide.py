"""The guide's rule: per class and operator, robust z of the median duration; compute up is primary, communication waits."""

from __future__ import annotations

import numpy as np

from eroica.localizer.frame import Floats, Frame
from eroica.localizer.judgement import Finding, Judgement, name_rows
from eroica.localizer.own import Past
from eroica.localizer.profile import WAITING_CATEGORY
from eroica.localizer.robust import MAD_TO_SIGMA
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Evidence


def judge_guide(frame: Frame, settings: LocalizeSettings, past: Past | None = None) -> Judgement:
    """z = (p50 − median) / (1.4826 MAD) > 3.5 in a class ([G]); to the letter, so a MAD of 0 makes any excess infinite."""
    if frame.size < 2 or not frame.functions:
        return Judgement(comparable=False, notes=["the guide's rule needs functions of at least two workers"])
    z, p50, usual = guide_scores(frame)
    high = z > settings.guide_z
    waits = np.array([f.category == WAITING_CATEGORY for f in frame.functions])
    primary = np.flatnonzero(high[:, ~waits].any(axis=1))
    secondary = np.flatnonzero(high[:, waits].any(axis=1) & ~high[:, ~waits].any(axis=1))
    _, durations = frame.step_table()
    findings = []
    for row in primary.tolist():
        worst = [f for f in np.lexsort((np.arange(z.shape[1]), -z[row])).tolist() if high[row, f] and not waits[f]][:5]
        others = np.flatnonzero((frame.cls == frame.cls[row]) & (np.arange(frame.size) != row))
        evidence = [
            Evidence(
                kind="function", metric="p50", subject=f"rank {int(frame.ranks[row])}: {frame.functions[f].name}",
                value=round(float(p50[row, f]) / 1e3, 4), unit="ms", expected=round(float(usual[row, f]) / 1e3, 4),
                score=round(min(float(z[row, f]), 1e6), 2), score_kind="z", rule="guide",
                compared_with=name_rows(frame, others),
            )
            for f in worst
        ]  # fmt: skip
        confidence = round(float(min(0.9, 1.0 - settings.guide_z / max(float(z[row].max()), 2 * settings.guide_z))), 3)
        names = [frame.functions[f].name for f in worst]
        findings.append(
            Finding("worker", frame.ranks[[row]], explains=0.0, confidence=confidence, functions=names, evidence=evidence)
        )
    return Judgement(findings=findings, waiters=secondary, step_us=float(durations.mean()) if durations.size else None)


def guide_scores(frame: Frame) -> tuple[Floats, Floats, Floats]:
    """z, p50 and the class's median p50, shape (n, functions) each."""
    p50 = np.zeros((frame.size, len(frame.functions)))
    p50[frame.pattern_row, frame.pattern_function] = frame.pattern["p50_us"]
    z, usual = np.zeros_like(p50), np.zeros_like(p50)
    for role in np.unique(frame.cls).tolist():
        rows = np.flatnonzero(frame.cls == role)
        middle = np.median(p50[rows], axis=0)
        spread = MAD_TO_SIGMA * np.median(np.abs(p50[rows] - middle), axis=0)
        above = p50[rows] - middle
        with np.errstate(divide="ignore", invalid="ignore"):
            z[rows] = np.where(above > 0, np.where(spread > 0, above / spread, np.inf), 0.0)
        usual[rows] = middle
    return z, p50, usual
