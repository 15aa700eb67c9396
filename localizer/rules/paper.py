"""The published rule of the EROICA paper (NSDI '26, arXiv 2506.08528): distance from an expected box, and distance from peers.

Kept to the letter for comparison. Its measured shortcomings are in docs/localisation.md: it names victims with the culprit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.localizer.columns import MIXED
from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.judgement import Finding, Judgement, name_rows
from eroica.localizer.own import Past
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Evidence


@dataclass(frozen=True, slots=True)
class PaperScores:
    """Shape (n, functions) each."""

    beta: Floats
    distance: Floats
    """D: how far β lies outside of the expected box."""
    delta: Floats
    """Δ: share of sampled peers that are far away."""
    abnormal: npt.NDArray[np.bool_]
    differs: npt.NDArray[np.bool_]
    """Abnormal by Δ: a problem of some, not of all."""


def judge_paper(frame: Frame, settings: LocalizeSettings, past: Past | None = None) -> Judgement:
    """Abnormal iff β > 1 % and (D > 0 or Δ > median + 5 MAD)."""
    if frame.size < 2 or not frame.functions:
        return Judgement(comparable=False, notes=["the paper's rule needs functions of at least two workers"])
    scores = paper_scores(frame, settings)
    rows = np.flatnonzero(scores.differs.any(axis=1))
    _, durations = frame.step_table()
    step_us = float(durations.mean()) if durations.size else None
    findings = []
    if rows.size:
        findings.append(_finding(frame, scores, rows))
    common = np.flatnonzero((scores.distance > 0).mean(axis=0) > 0.5)
    if common.size and not rows.size:
        names = [frame.functions[int(f)].name for f in common]
        findings.append(Finding("whole_job", np.empty(0, np.int64), explains=0.0, confidence=0.5, functions=names))
    return Judgement(findings=findings, step_us=step_us)


def paper_scores(frame: Frame, settings: LocalizeSettings) -> PaperScores:
    """D and Δ of every worker and function ([P] §4.3).

    Δ: *peers_sampled* workers (all, if fewer) are drawn once with *seed*; each of β, μ, σ is divided by its maximum over
    the workers; a peer is far at a Manhattan distance ≥ *peer_distance*. A worker that lacks a function has (0, 0, 0).
    """
    n, count = frame.size, len(frame.functions)
    pattern = np.zeros((3, n, count))
    for axis, name in enumerate(("beta", "mu", "sigma")):
        pattern[axis, frame.pattern_row, frame.pattern_function] = frame.pattern[name]
    # What tells different things on different workers tells nothing about their distance.
    pattern[1:, :, [f.resource == MIXED for f in frame.functions]] = 0.0
    box = {"python": settings.python_beta_max, "collective": settings.collective_beta_max}
    limit = np.array([box.get(f.category, 1.0) for f in frame.functions])
    distance = np.maximum(pattern[0] - limit, 0.0)
    top = pattern.max(axis=1, keepdims=True)
    scaled = np.divide(pattern, top, out=np.zeros_like(pattern), where=top > 0)
    sample = np.random.default_rng(settings.seed).permutation(n)[: min(settings.peers_sampled, n)]
    delta = np.zeros((n, count))
    for peer in sample.tolist():
        delta += np.abs(scaled - scaled[:, peer : peer + 1]).sum(axis=0) >= settings.peer_distance
    delta /= sample.size
    middle = np.median(delta, axis=0)
    mad = np.median(np.abs(delta - middle), axis=0)
    matters = pattern[0] > settings.beta_min
    differs = matters & (delta > middle + settings.mad_factor * mad)
    return PaperScores(pattern[0], distance, delta, matters & ((distance > 0) | differs), differs)


def _finding(frame: Frame, scores: PaperScores, rows: Ints) -> Finding:
    evidence, names = [], []
    for row in rows.tolist()[:16]:
        rank, others = int(frame.ranks[row]), name_rows(frame, np.delete(np.arange(frame.size), row))
        for f in np.flatnonzero(scores.differs[row]).tolist()[:3]:
            names.append(frame.functions[f].name)
            score, usual = round(float(scores.delta[row, f]), 4), round(float(np.median(scores.delta[:, f])), 4)
            evidence.append(
                Evidence(
                    kind="function", metric="share of peers at distance >= 0.4", subject=f"rank {rank}: {names[-1]}",
                    value=score, unit="1", expected=usual, score=score, score_kind="share", rule="paper", compared_with=others,
                )
            )  # fmt: skip
    strength = float(scores.delta[rows].max())
    return Finding(
        "worker",
        frame.ranks[rows],
        explains=0.0,
        confidence=round(min(0.9, strength), 3),
        functions=list(dict.fromkeys(names))[:5],
        evidence=evidence,
    )
