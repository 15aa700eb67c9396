"""Pipeline stages that have more work than the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.causes.places import SHARED
from eroica.localizer.causes.readings import reading_evidence
from eroica.localizer.causes.sick import RULE as SICK_RULE
from eroica.localizer.causes.sick import sick_readings
from eroica.localizer.causes.spread import PROVEN
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.judgement import Finding, name_rows
from eroica.localizer.robust import row_medians
from eroica.schemas.verdicts import Evidence

RULE = "eroica/stages"
USUAL_LOSS = 0.08
"""Embedding and loss layers make the ends a little heavier in most jobs; without a past that says so, less is no finding."""
WHOLE, HALF = 0.8, 0.5
"""A stage has more work if so many of its workers do, each by this share of what the stage does: else some of them are slow."""
UNSEEN_PAST = 0.2
"""Without a past, nobody tells a stage that is meant to be heavy from one that became so."""


@dataclass(frozen=True, slots=True)
class HeavyStage:
    """The stage that stands out. Times in µs."""

    stage: int
    level_us: Floats
    """Usual own time of each stage, shape (stages,)."""
    expected_us: float
    """What the stage would take if it did not stand out."""
    loss_us: float
    """Time of a step that it costs."""
    since_past: bool
    """Whether it stands out against its healthy past; else against the other stages."""


def find_stages(measures: Measures) -> tuple[list[Finding], list[str]]:
    """The stage that grew since the healthy profile, else the one that is heavier than the mean of all; and notes."""
    if measures.model.stages < 2 or measures.own.steps.size == 0:
        return [], []
    found = heavy_stage(measures)
    least = PROVEN * measures.settings.min_effect if found.since_past else USUAL_LOSS
    if measures.share(found.loss_us) < least:
        heavy = int(found.level_us.argmax())
        usual = found.since_past and measures.share(_against_mean(measures, _stage_parts(measures))) >= USUAL_LOSS
        return [], [f"stage {heavy} is heavier than the others, as it was in the healthy profile"] if usual else []
    return _named(measures, found)


def heavier_stage(measures: Measures) -> tuple[list[Finding], float]:
    """The stage that is heavier than the others, by however little, and what a step would be shorter by without that, µs: for
    those who know that the job became slower by it. Without a past.
    """
    model = measures.model
    if model.stages < 2 or measures.own.steps.size == 0:
        return [], 0.0
    found, parts = heavy_stage(measures), _stage_parts(measures)
    level = parts.copy()
    level[:, found.stage] = np.minimum(parts[:, found.stage], np.delete(parts, found.stage, axis=1).mean(axis=1))
    return _named(measures, found)[0], _loss(measures, parts, level)


def _named(measures: Measures, found: HeavyStage) -> tuple[list[Finding], list[str]]:
    """The stage that stands out, or the machine that has it, if all of it does; else a note."""
    model, frame = measures.model, measures.frame
    level, stage = found.level_us, found.stage
    if not _whole(measures, found):
        return [], [f"stage {stage} is slower than the others, but not on all of its workers"]
    rest = np.flatnonzero(model.stage != stage)
    against = "its healthy profile and the other stages" if found.since_past else "the other stages"
    evidence = Evidence(
        kind="step", metric="own time per step", subject=f"stage {stage}", value=ms(level[stage]), unit="ms",
        expected=ms(found.expected_us), score=round(float(level[stage] / max(level.mean(), 1e-9)), 3),
        score_kind="ratio", rule=RULE,
        compared_with=f"{against}, {name_rows(frame, rest)}",
    )  # fmt: skip
    doubt = 0.0 if found.since_past else UNSEEN_PAST
    rows = np.flatnonzero(model.stage == stage)
    host = _only_host(measures, rows)
    if (sick := _sick_machine(measures, found, rows, host, evidence, doubt)) is not None:
        return [sick], []
    finding = Finding(
        cls="pipeline_stage", ranks=frame.ranks[:0], explains=0.0, confidence=0.0, evidence=[evidence], stages=[stage],
        gain_us=found.loss_us, doubt=doubt,
    )  # fmt: skip
    return [finding], _host_note(measures, stage, host)


def _host_note(measures: Measures, stage: int, host: str | None) -> list[str]:
    """That a stage is one host as a whole: then the host may be what is slow."""
    if host is None or np.any(measures.model.stage[measures.rows_of_hosts[host]] != stage):
        return []
    return [f"stage {stage} is all of host {host}, and no reading tells the host from the layers"]


def _only_host(measures: Measures, rows: Ints) -> str | None:
    """The one host, of several, that has all of *rows*."""
    names = {measures.frame.hosts[row] for row in rows.tolist()}
    host = next(iter(names))
    return host if len(names) == 1 and host in measures.rows_of_hosts and len(measures.rows_of_hosts) > 1 else None


def _sick_machine(
    measures: Measures, found: HeavyStage, of_stage: Ints, host: str | None, evidence: Evidence, doubt: float
) -> Finding | None:
    """The host or worker that has the whole stage, if its readings are bad or it waits for data: no layers do that.

    :param of_stage: rows of the stage.
    :param host: the one that has them all, of several.
    """
    if host is None and of_stage.size > 1:
        return None
    frame = measures.frame
    rows = of_stage if host is None else np.array(measures.rows_of_hosts[host], dtype=np.int64)
    odd = sick_readings(frame, rows)
    if not odd:
        if not _loads(measures, found, of_stage):
            return None
        rows = _who_loads(measures, of_stage, rows)
    whole = rows.size > 1 and rows.size == _on_host(measures, rows)
    return Finding(
        cls="host" if whole else "worker", ranks=frame.ranks[rows], explains=0.0, confidence=0.0,
        evidence=[evidence, *reading_evidence(frame, odd, SICK_RULE)], hosts=sorted({frame.hosts[rows[0]]} - {""}),
        stages=[found.stage],
        gain_us=found.loss_us, doubt=0.0 if odd else doubt,
        seen=min(1.0, measures.share(found.loss_us) / (2.0 * measures.settings.min_effect)),
    )  # fmt: skip


def _loads(measures: Measures, found: HeavyStage, of_stage: Ints) -> bool:
    """Whether most of what the stage takes beyond the expected is waiting for data."""
    return bool(np.median(measures.data_us[of_stage]) >= HALF * (found.level_us[found.stage] - found.expected_us))


def _who_loads(measures: Measures, of_stage: Ints, on_host: Ints) -> Ints:
    """All of a host if its workers of other stages wait for data too, somewhat at least; else those of the stage alone."""
    others = np.setdiff1d(on_host, of_stage)
    if others.size == 0:
        return on_host
    data = measures.data_us
    usual = float(np.median(np.delete(data, on_host)))
    beyond = [float(np.median(data[rows])) - usual for rows in (of_stage, others)]
    return on_host if beyond[1] >= SHARED * beyond[0] else of_stage


def _on_host(measures: Measures, rows: Ints) -> int:
    """How many workers the host of *rows* has."""
    return len(measures.rows_of_hosts[measures.frame.hosts[rows[0]]])


def heavy_stage(measures: Measures) -> HeavyStage:
    """The stage that stands out most, of a job with several."""
    parts = _stage_parts(measures)
    level = np.asarray(parts.sum(axis=0))
    then = _past_level(measures)
    if then is None:
        heavy = int(level.argmax())
        return HeavyStage(heavy, level, float(np.delete(level, heavy).mean()), _against_mean(measures, parts), since_past=False)
    # What all stages grew by is the job's; what one grew beyond it is the stage's.
    grown = parts - then
    changed = int(grown.sum(axis=0).argmax())
    others = np.maximum(np.median(np.delete(grown, changed, axis=1), axis=1), 0.0)
    usual = parts.copy()
    usual[:, changed] = np.minimum(parts[:, changed], then[:, changed] + others)
    return HeavyStage(changed, level, float(usual[:, changed].sum()), _loss(measures, parts, usual), since_past=True)


def _whole(measures: Measures, found: HeavyStage) -> bool:
    own, device = measures.own, measures.frame.devices.code
    mine = (measures.model.stage == found.stage) & (device == int(np.bincount(device).argmax()))
    if not mine.any():
        return True
    level = float(found.level_us[found.stage])
    heavy = row_medians(own.own_us[mine]) >= found.expected_us + HALF * (level - found.expected_us)
    return bool(heavy.mean() >= WHOLE)


def _against_mean(measures: Measures, parts: Floats) -> float:
    return _loss(measures, parts, np.broadcast_to(parts.mean(axis=1, keepdims=True), parts.shape))


def _stage_parts(measures: Measures) -> Floats:
    """Usual own time of each stage in two parts, shape (2, stages): what comes once a step, and the rest.

    On the device model that most workers have, if all stages have some of it.
    """
    own, model, device = measures.own, measures.model, measures.frame.devices.code
    common = device == int(np.bincount(device).argmax())
    if np.unique(model.stage[common]).size < model.stages:
        common[:] = True
    each = [own.usual_parts_us[:, common & (model.stage == s)] for s in range(model.stages)]
    return np.asarray(np.stack([np.median(parts.reshape(2, -1), axis=1) for parts in each], axis=1))


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
