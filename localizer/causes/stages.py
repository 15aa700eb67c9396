"""Pipeline stages that have more work than the others."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.causes.spread import PROVEN
from eroica.localizer.frame import Floats
from eroica.localizer.judgement import Finding, name_rows
from eroica.schemas.verdicts import Evidence

RULE = "eroica/stages"
USUAL_LOSS = 0.08
"""Embedding and loss layers make the ends a little heavier in most jobs; without a past that says so, less is no finding."""


def find_stages(measures: Measures) -> tuple[list[Finding], list[str]]:
    """The stage that is heavier than the mean of all, if balancing would give back enough; and notes."""
    own, model, frame = measures.own, measures.model, measures.frame
    if model.stages < 2 or own.steps.size == 0:
        return [], []
    parts = _stage_parts(measures)
    level = parts.sum(axis=0)
    heavy = int(level.argmax())
    loss = _loss(measures, parts, np.broadcast_to(parts.mean(axis=1, keepdims=True), parts.shape))
    expected = float(np.delete(level, heavy).mean())
    compared = "the other stages"
    then = _past_level(measures)
    if then is None:
        if measures.share(loss) < USUAL_LOSS:
            return [], []
    else:
        # What all stages grew by is the job's; what one grew beyond it is the stage's.
        grown = parts - then
        changed = int(grown.sum(axis=0).argmax())
        others = np.maximum(np.median(np.delete(grown, changed, axis=1), axis=1), 0.0)
        usual = parts.copy()
        usual[:, changed] = np.minimum(parts[:, changed], then[:, changed] + others)
        since = _loss(measures, parts, usual)
        if measures.share(since) < PROVEN * measures.settings.min_effect:
            noted = measures.share(loss) >= USUAL_LOSS
            return [], [f"stage {heavy} is heavier than the others, as it was in the healthy profile"] if noted else []
        heavy, loss, expected = changed, since, float(usual[:, changed].sum())
        compared = "its healthy profile and the other stages"
    rest = np.flatnonzero(model.stage != heavy)
    evidence = Evidence(
        kind="step", metric="own time per step", subject=f"stage {heavy}", value=ms(level[heavy]), unit="ms",
        expected=ms(expected), score=round(float(level[heavy] / max(level.mean(), 1e-9)), 3),
        rule=RULE, compared_with=f"{compared}, ranks {name_rows(frame, rest)}",
    )  # fmt: skip
    finding = Finding(
        cls="pipeline_stage", ranks=frame.ranks[:0], explains=0.0, confidence=0.0, evidence=[evidence], stages=[heavy],
        gain_us=loss,
    )  # fmt: skip
    return [finding], []


def stage_levels(measures: Measures) -> Floats:
    """Usual own time of each stage: on the device model that most workers have, if all stages have some of it."""
    return np.asarray(_stage_parts(measures).sum(axis=0))


def _stage_parts(measures: Measures) -> Floats:
    """``stage_levels`` in its parts, shape (2, stages): what comes once a step, and the rest."""
    own, model, devices = measures.own, measures.model, np.array(measures.frame.devices, dtype=object)
    names, counts = np.unique(devices.astype(str), return_counts=True)
    common = devices == names[int(counts.argmax())]
    if np.unique(model.stage[common]).size < model.stages:
        common[:] = True
    each = [own.usual_parts_us[:, common & (model.stage == s)] for s in range(model.stages)]
    return np.array([np.median(parts.reshape(2, -1), axis=1) for parts in each]).T


def _loss(measures: Measures, level: Floats, other: Floats) -> float:
    """Time of a step that own times *other* by part and stage would give back against *level*, µs."""
    stage = measures.model.stage
    return measures.model.gain_us(level[:, stage][:, :, None], other[:, stage][:, :, None])


def _past_level(measures: Measures) -> Floats | None:
    """Own time by part and stage in the healthy past, shape (2, stages); ``None`` if a stage is not told."""
    past, frame, model = measures.past, measures.frame, measures.model
    if past is None:
        return None
    out = np.zeros((2, model.stages))
    for s in range(model.stages):
        names = {frame.classes[c] for c in np.unique(frame.cls[model.stage == s]).tolist()}
        told = [(past.once_us.get(name, 0.0), past.own_us[name]) for name in sorted(names) if name in past.own_us]
        if not told:
            return None
        once, whole = np.median(told, axis=0)
        out[:, s] = once, whole - once
    return out
