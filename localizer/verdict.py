"""From a judgement to the message: statuses, coverage, impact and provenance, within the size that was promised."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import msgspec

from eroica import __version__
from eroica.localizer.actions import ACTIONS
from eroica.localizer.frame import Frame
from eroica.localizer.judgement import Finding, Judgement
from eroica.localizer.words import headline
from eroica.schemas.codec import encoded_size
from eroica.schemas.ids import stable_id
from eroica.schemas.ranks import RankArray, format_ranks, parse_ranks
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.topics import MAX_VERDICT_BYTES
from eroica.schemas.verdicts import (
    Cause,
    Coverage,
    Impact,
    IsolationGroup,
    Provenance,
    RequestRef,
    Status,
    Suspects,
    Verdict,
    Waiters,
)

SHARED = {"fabric", "pipeline_stage", "data_imbalance", "software_pause", "whole_job", "unknown"}
"""Classes in which no single place is at fault."""
MIN_COVERAGE = 0.5
"""With fewer summaries than this share nothing is concluded."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MAX_NOTES = 50
MAX_TEXT = 1_000
_STAGE = re.compile(r"^pp(\d+)(\.|$)")


def make_verdict(frame: Frame, judgement: Judgement, settings: LocalizeSettings) -> Verdict:
    """Put *judgement* into words. Pure: no clock, so that equal input gives equal bytes.

    Below ``accuse_confidence`` nobody is accused: the finding becomes a note of what was seen.
    """
    sure = [f for f in judgement.findings if f.confidence >= settings.accuse_confidence]
    doubtful = [f for f in judgement.findings if f.confidence < settings.accuse_confidence]
    causes = [_cause(frame, finding) for finding in sure]
    status = _status(frame, judgement, causes)
    if status == "insufficient_data":
        doubtful, causes = [*sure, *doubtful], []
    notes = [*frame.notes, *judgement.notes, *(_doubt(f, settings) for f in doubtful)]
    notes += [f"rank {rank}: {text}" for rank, text in frame.errors.items()]
    steps = frame.step_table()[0]
    request = frame.request
    verdict = Verdict(
        verdict_id=stable_id("verdict", request.job, frame.run_id, request.request),
        job=request.job,
        request=RequestRef(
            id=request.request,
            reason=request.reason,
            steps=(int(steps[0]), int(steps[-1])) if steps.size else (request.start_step, request.start_step),
        ),
        status=status,
        headline=headline(frame, status, causes, judgement),
        event_time=(EPOCH + timedelta(microseconds=max(0, min(frame.event_time_us, 2**53)))).isoformat(timespec="milliseconds"),
        causes=causes,
        waiters=Waiters(ranks=format_ranks(frame.ranks[judgement.waiters]), wait_share=round(judgement.wait_share, 4))
        if causes
        else Waiters(),
        impact=_impact(judgement, bool(causes), int(frame.expected.size)),
        coverage=Coverage(
            expected=int(frame.expected.size),
            received=len(frame.stacks) if request.mode == "stacks" else frame.size,
            missing=format_ranks(_missing(frame)),
            late=format_ranks(frame.late),
            topology_source=request.topology_source,
            notes=[note[:MAX_TEXT] for note in notes[:MAX_NOTES]],
        ),
        provenance=Provenance(
            settings_digest=settings.digest(), software=f"eroica {__version__}", rules=settings.rules, inputs=frame.inputs
        ),
    )
    return fit(verdict)


def fit(verdict: Verdict) -> Verdict:
    """*verdict* within ``MAX_VERDICT_BYTES``: evidence is halved, then functions and offsets, until it fits, and it says so."""
    if encoded_size(verdict) <= MAX_VERDICT_BYTES:
        return verdict
    before = sum(len(cause.evidence) for cause in verdict.causes)
    keep = max((len(cause.evidence) for cause in verdict.causes), default=0)
    note = ""
    while keep > 0 and encoded_size(verdict) > MAX_VERDICT_BYTES - len(note) - 100:
        keep //= 2
        causes = [
            msgspec.structs.replace(c, evidence=c.evidence[:keep], functions=c.functions[: max(keep, 1)]) for c in verdict.causes
        ]
        verdict = msgspec.structs.replace(verdict, causes=causes)
        note = f"evidence was cut from {before} to {sum(len(c.evidence) for c in causes)} items to keep the verdict small"
    notes = [*([note] if note else []), *verdict.coverage.notes]
    while encoded_size(verdict) > MAX_VERDICT_BYTES - 400 and len(notes) > 1:
        notes = [*notes[: len(notes) // 2], "further notes were cut"] if len(notes) > 2 else ["notes were cut"]
        verdict = msgspec.structs.replace(verdict, coverage=msgspec.structs.replace(verdict.coverage, notes=notes))
    verdict = msgspec.structs.replace(verdict, coverage=msgspec.structs.replace(verdict.coverage, notes=notes))
    if encoded_size(verdict) > MAX_VERDICT_BYTES:
        inputs = {place: _first_to_last(offsets) for place, offsets in verdict.provenance.inputs.items()}
        verdict = msgspec.structs.replace(verdict, provenance=msgspec.structs.replace(verdict.provenance, inputs=inputs))
    return verdict


def _first_to_last(offsets: str) -> str:
    parts = offsets.split(",")
    return f"{parts[0].partition('-')[0]}..{parts[-1].rpartition('-')[2]}"


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
    who = f"ranks {format_ranks(finding.ranks)}" if finding.ranks.size else "no single rank"
    return f"seen but not sure enough to accuse ({finding.confidence:.2f} < {settings.accuse_confidence}): {finding.cls}, {who}"


def _cause(frame: Frame, finding: Finding) -> Cause:
    rows = [row for row, rank in enumerate(frame.ranks.tolist()) if rank in set(finding.ranks.tolist())]
    stages = {match.group(1) for row in rows if (match := _STAGE.match(frame.classes[int(frame.cls[row])]))}
    return Cause(
        class_=finding.cls,
        fault=finding.fault,
        suspects=Suspects(ranks=format_ranks(finding.ranks), hosts=finding.hosts, stages=sorted(int(s) for s in stages)),
        isolation_group=isolation_group(frame, finding.ranks),
        functions=finding.functions,
        explains=round(finding.explains, 4),
        confidence=finding.confidence,
        evidence=finding.evidence,
        action=ACTIONS[finding.cls],
    )


def isolation_group(frame: Frame, ranks: RankArray) -> IsolationGroup:
    """The smallest known group that holds *ranks*: a host, a communicator or a class, else the whole job."""
    wanted = set(ranks.tolist())
    candidates: list[tuple[int, str, str]] = []
    for host in sorted(set(frame.host_of_rank.values())):
        members = {rank for rank, name in frame.host_of_rank.items() if name == host}
        candidates.append((len(members), "host", format_ranks(members)))
    for c in frame.communicators:
        if c.ranks:
            candidates.append((int(parse_ranks(c.ranks).size), c.kind or c.name, c.ranks))
    for cls, text in sorted(frame.request.classes.items()):
        candidates.append((int(parse_ranks(text).size), f"class {cls}", text))
    for _, kind, text in sorted(candidates):
        if wanted and wanted <= set(parse_ranks(text).tolist()):
            return IsolationGroup(kind=kind[:100], ranks=text)
    return IsolationGroup(kind="world", ranks=format_ranks(frame.expected))


def _impact(judgement: Judgement, accused: bool, world: int) -> Impact:
    step, ideal = judgement.step_us, judgement.ideal_step_us
    if step is None or step <= 0:
        return Impact()
    if not accused or ideal is None or ideal <= 0:
        return Impact(step_ms=round(step / 1e3, 3))
    slowdown = step / ideal
    waste = 1.0 - 1.0 / slowdown
    return Impact(
        step_ms=round(step / 1e3, 3),
        ideal_step_ms=round(ideal / 1e3, 3),
        slowdown=round(slowdown, 4),
        waste=round(waste, 4),
        gpu_hours_per_day=round(waste * world * 24.0, 2),
    )
