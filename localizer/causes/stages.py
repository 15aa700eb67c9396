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
    level = stage_levels(measures)
    heavy = int(level.argmax())
    loss = _loss(measures, level, np.full_like(level, float(level.mean())))
    expected = float(np.delete(level, heavy).mean())
    compared = "the other stages"
    then = _past_level(measures)
    if then is None:
        if measures.share(loss) < USUAL_LOSS:
            return [], []
    else:
        # What all stages grew by is the job's; what one grew beyond it is the stage's.
        grown = level - then
        changed = int(grown.argmax())
        usual = level.copy()
        usual[changed] = min(level[changed], then[changed] + max(0.0, float(np.median(np.delete(grown, changed)))))
        since = _loss(measures, level, usual)
        if measures.share(since) < PROVEN * measures.settings.min_effect:
            noted = measures.share(loss) >= USUAL_LOSS
            return [], [f"stage {heavy} is heavier than the others, as it was in the healthy profile"] if noted else []
        heavy, loss, expected = changed, since, float(usual[changed])
        compared = "its healthy profile and the other stages"
    others = np.flatnonzero(model.stage != heavy)
    evidence = Evidence(
        kind="step", metric="own time per step", subject=f"stage {heavy}", value=ms(level[heavy]), unit="ms",
        expected=ms(expected), score=round(float(level[heavy] / max(level.mean(), 1e-9)), 3),
        rule=RULE, compared_with=f"{compared}, ranks {name_rows(frame, others)}",
    )  # fmt: skip
    finding = Finding(
        cls="pipeline_stage", ranks=frame.ranks[:0], explains=0.0, confidence=0.0, evidence=[evidence], stages=[heavy],
        gain_us=loss,
    )  # fmt: skip
    return [finding], []


def stage_levels(measures: Measures) -> Floats:
    """Usual own time of each stage: on the device model that most workers have, if all stages have some of it."""
    own, model, devices = measures.own, measures.model, np.array(measures.frame.devices, dtype=object)
    names, counts = np.unique(devices.astype(str), return_counts=True)
    common = devices == names[int(counts.argmax())]
    if np.unique(model.stage[common]).size < model.stages:
        common[:] = True
    return np.array([float(np.median(own.usual_us[common & (model.stage == s)])) for s in range(model.stages)])


def _loss(measures: Measures, level: Floats, other: Floats) -> float:
    """Time of a step that own times *other* by stage would give back against *level*, µs."""
    stage = measures.model.stage
    none = np.zeros(stage.size)
    before, after = (np.stack((none, by_stage[stage]))[:, :, None] for by_stage in (level, other))
    return measures.model.gain_us(before, after)


def _past_level(measures: Measures) -> Floats | None:
    """Own time by stage in the healthy past; ``None`` if a stage is not told."""
    past, frame, model = measures.past, measures.frame, measures.model
    if past is None:
        return None
    out = np.zeros(model.stages)
    for s in range(model.stages):
        names = {frame.classes[c] for c in np.unique(frame.cls[model.stage == s]).tolist()}
        told = [past.own_us[name] for name in sorted(names) if name in past.own_us]
        if not told:
            return None
        out[s] = float(np.median(told))
    return out
