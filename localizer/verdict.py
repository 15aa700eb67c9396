"""From a judgement to the message: statuses, coverage, impact and provenance, within the size that was promised."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import numpy as np

from eroica import __version__
from eroica.localizer.actions import Advice
from eroica.localizer.fit import fit
from eroica.localizer.frame import Frame
from eroica.localizer.isolation import Groups
from eroica.localizer.judgement import MIN_COVERAGE, Finding, Judgement
from eroica.localizer.own import Past
from eroica.localizer.playbook import Leaf
from eroica.localizer.profiles import place_of
from eroica.localizer.words import headline
from eroica.schemas.ids import stable_id
from eroica.schemas.ranks import RankArray, format_ranks, parse_ranks, say_ranks
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import (
    NOT_ENOUGH,
    Cause,
    Coverage,
    Impact,
    Provenance,
    RequestRef,
    Status,
    Suspects,
    Verdict,
    Waiters,
    is_suspicion,
)

SHARED = {"fabric", "pipeline_stage", "data_imbalance", "software_pause", "whole_job", "unknown"}
"""Classes in which no single place is at fault."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MAX_NOTES = 50
MAX_TEXT = 1_000
_STAGE = re.compile(r"^pp(\d+)(\.|$)")


def make_verdict(
    frame: Frame, judgement: Judgement, settings: LocalizeSettings, advice: Advice | None = None, past: Past | None = None
) -> Verdict:
    """Put *judgement* into words, within the size that was promised. Pure: no clock, so that equal input gives equal bytes.

    :param past: the healthy profile that the frame was held against; the verdict names it among its inputs.
    """
    return fit(whole_verdict(frame, judgement, settings, advice, past))


def whole_verdict(
    frame: Frame, judgement: Judgement, settings: LocalizeSettings, advice: Advice | None = None, past: Past | None = None
) -> Verdict:
    """Like :func:`make_verdict`, of any size.

    Its id follows from the request and from what decided: a replay under another rule set, threshold or playbook is never taken
    for the verdict that was published.
    Below ``accuse_confidence`` nobody is accused: the finding becomes a note of what was seen.
    """
    sure = [f for f in judgement.findings if f.confidence >= settings.accuse_confidence]
    doubtful = [f for f in judgement.findings if f.confidence < settings.accuse_confidence]
    advice, groups = advice or Advice(), Groups(frame)
    leaves = [advice.leaf(frame, finding, sure) for finding in sure]
    causes = [_cause(frame, finding, leaf, advice, groups) for finding, leaf in zip(sure, leaves, strict=True)]
    status = _status(frame, judgement, causes)
    if status == "insufficient_data":
        doubtful, causes = [*sure, *doubtful], []
    notes = [*frame.notes, *judgement.notes, *(_doubt(f, settings) for f in doubtful)]
    notes += [f"rank {rank}: {text}" for rank, text in frame.errors.items()]
    steps = frame.step_table()[0]
    request = frame.request
    return Verdict(
        verdict_id=stable_id("verdict", request.job, frame.run_id, request.request, settings.digest(), advice.playbook.digest),
        job=request.job,
        request=RequestRef(
            id=request.request,
            reason=request.reason,
            steps=(int(steps[0]), int(steps[-1])) if steps.size else (request.start_step, request.start_step),
        ),
        status=status,
        headline=headline(
            frame, status, causes, judgement, leaves[0] if leaves and causes else None, suspicion=any(map(is_suspicion, notes))
        ),
        event_time=(EPOCH + timedelta(microseconds=max(0, min(frame.event_time_us, 2**53)))).isoformat(timespec="milliseconds"),
        causes=causes,
        waiters=Waiters(ranks=format_ranks(frame.ranks[judgement.waiters]), wait_share=round(judgement.wait_share, 4))
        if causes
        else Waiters(),
        impact=_impact(judgement, int(frame.expected.size)),
        coverage=Coverage(
            expected=int(frame.expected.size),
            received=len(frame.stacks) if request.mode == "stacks" else frame.size,
            missing=format_ranks(_missing(frame)),
            late=format_ranks(frame.late),
            topology_source=request.topology_source,
            notes=[note[:MAX_TEXT] for note in notes[:MAX_NOTES]],
        ),
        provenance=Provenance(
            settings_digest=settings.digest(),
            software=f"eroica {__version__}",
            rules=settings.rules,
            playbook=advice.playbook.digest,
            inputs={**frame.inputs, **advice.inputs, **place_of(past)},
        ),
    )


def _status(frame: Frame, judgement: Judgement, causes: list[Cause]) -> Status:
    received = len(frame.stacks) if frame.request.mode == "stacks" else frame.size
    if received < MIN_COVERAGE * frame.expected.size or received == 0 or not judgement.comparable:
        return "insufficient_data"
    if not causes:
        return "no_fault_found"
    return "shared_cause" if causes[0].class_ in SHARED else "culprit_found"


def _missing(frame: Frame) -> RankArray:
    if frame.request.mode != "stacks":
        return frame.missing
    told = {row.rank for row in frame.stacks}
    return parse_ranks(format_ranks(int(r) for r in frame.expected if int(r) not in told))


def _doubt(finding: Finding, settings: LocalizeSettings) -> str:
    who = say_ranks(format_ranks(finding.ranks)) if finding.ranks.size else "no single rank"
    why = f"; {finding.instead}" if finding.instead else ""
    sure = f"({finding.confidence:.2f} < {settings.accuse_confidence})"
    return f"{NOT_ENOUGH} {sure}: {finding.cls}, {who}{why}"


def _cause(frame: Frame, finding: Finding, leaf: Leaf | None, advice: Advice, groups: Groups) -> Cause:
    rows = np.flatnonzero(np.isin(frame.ranks, finding.ranks))
    roles = [frame.classes[role] for role in np.unique(frame.cls[rows]).tolist()]
    stages = {match.group(1) for role in roles if (match := _STAGE.match(role))}
    return Cause(
        class_=finding.cls,
        fault=finding.fault or (leaf.signature.fault if leaf is not None else None),
        suspects=Suspects(
            ranks=format_ranks(finding.ranks),
            hosts=finding.hosts,
            links=finding.links,
            stages=sorted({*finding.stages, *(int(s) for s in stages)}),
        ),
        isolation_group=groups.smallest(_in_stages(frame, finding), finding.hosts),
        functions=finding.functions,
        explains=round(finding.explains, 4),
        confidence=finding.confidence,
        evidence=[*finding.evidence, *(leaf.evidence if leaf is not None else [])],
        action=advice.action(finding.cls, leaf),
    )


def _in_stages(frame: Frame, finding: Finding) -> RankArray:
    """Ranks of a finding; of one that names stages only, those of the stages."""
    if finding.ranks.size or not finding.stages:
        return finding.ranks
    wanted = [m is not None and int(m.group(1)) in finding.stages for m in map(_STAGE.match, frame.classes)]
    return np.asarray(frame.ranks[np.array(wanted, dtype=np.bool_)[frame.cls]])


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _impact(judgement: Judgement, world: int) -> Impact:
    step, ideal = judgement.step_us, judgement.ideal_step_us
    if step is None or step <= 0:
        return Impact()
    if ideal is None or ideal <= 0:
        return Impact(step_ms=round(step / 1e3, 3))
    slowdown = step / ideal
    waste = 1.0 - 1.0 / slowdown
    return Impact(
        step_ms=round(step / 1e3, 3),
        ideal_step_ms=round(ideal / 1e3, 3),
        slowdown=round(slowdown, 4),
        waste=round(waste, 4),
        recovered_by_slowest_3pct=_rounded(judgement.recovered_by_slowest),
        recovered_by_last_stage=_rounded(judgement.recovered_by_last_stage),
        gpu_hours_per_day=round(waste * world * 24.0, 2),
    )
