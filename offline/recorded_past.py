"""The healthy past that recorded requests are held against: what was known then, whatever order the partitions are read in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eroica.localizer.core import HEALTHY_REASONS, LocalizerCore
from eroica.localizer.profiles import PLACE, HealthyPast, Recall
from eroica.offline.regroup import Records
from eroica.schemas.codec import decode, decode_as
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import InvalidInput, SchemaError
from eroica.schemas.groups import GroupChunk
from eroica.schemas.memory import Baseline
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.summaries import CloseClass, Expectation, StackEvidence, Summary, SummaryError
from eroica.schemas.verdicts import Verdict
from eroica.streams.collect import GroupCore

MAX_RECORDED_PROFILES, MAX_RECORDED_FIGURES = 100_000, 50_000_000
"""A replay keeps all of one job's, where a service keeps the last ones of each."""


def recorded_past(
    records: Records,
    verdicts: Mapping[str, Verdict],
    grouped: Iterable[ProfileRequest],
    settings: EroicaSettings,
    notes: list[str],
) -> tuple[HealthyPast, Recall]:
    """The profiles, and which of them each request is held against.

    All that was recorded on ``baselines`` comes first. Profiles that nobody complained for and that are not there are judged here
    ahead of all others, in the order in which they were asked for. A request whose verdict was recorded is held against the
    profile that the verdict names, or none; another against the latest from before it.

    :param verdicts: request → its recorded verdict.
    :param grouped: the requests of the recorded groups.
    :param notes: told of profiles that verdicts name and that cannot be had.
    """
    past = HealthyPast(MAX_RECORDED_PROFILES, MAX_RECORDED_FIGURES)
    for record in records("baselines"):
        try:
            past.add(decode_as(Baseline, record.value, record.where))
        except SchemaError:
            continue
    named = {name: v.provenance.inputs.get(PLACE, "") for name, v in verdicts.items() if v.provenance.rules == "eroica"}

    def recall(request: ProfileRequest) -> str | None:
        return named.get(request.request)

    lacking = {name: request for name, request in _may_be_healthy(records, grouped).items() if not past.has(request)}
    digest = settings.localize.digest()
    wanted = {name: r for name, r in lacking.items() if not _at_fault(verdicts.get(name), digest)}
    if wanted:
        _judge(records, wanted, settings, past, recall)
    for name in sorted(named):
        if named[name] and not past.knows(verdicts[name].job, named[name]):
            notes.append(
                f"the verdict on {name} was held against the healthy profile {named[name]}, which is not in the recording"
            )
    return past, recall


def _may_be_healthy(records: Records, grouped: Iterable[ProfileRequest]) -> dict[str, ProfileRequest]:
    """Requests that may have become a past, from wherever they were recorded."""
    found = {request.request: request for request in grouped}
    for record in records("control"):
        try:
            request = decode_as(ProfileRequest, record.value, record.where)
        except SchemaError:
            continue
        found.setdefault(request.request, request)
    return {name: r for name, r in found.items() if r.reason in HEALTHY_REASONS and r.mode == "profile"}


def _at_fault(verdict: Verdict | None, digest: str) -> bool:
    """Whether the same settings have found a fault already."""
    return verdict is not None and verdict.status != "no_fault_found" and verdict.provenance.settings_digest == digest


def _judge(
    records: Records, wanted: Mapping[str, ProfileRequest], settings: EroicaSettings, past: HealthyPast, recall: Recall
) -> None:
    """Take into *past* what the profiles of *wanted* show."""
    chunks: dict[str, list[GroupChunk]] = {}
    cores: dict[int, GroupCore] = {}
    for record in records("summaries"):
        core = cores.setdefault(record.partition, GroupCore(settings.group))
        try:
            message = decode("summaries", record.value, record.where)
            assert isinstance(message, (Summary, SummaryError, StackEvidence, Expectation, CloseClass))
            if _request_of(message) not in wanted:
                continue
            outputs = core.feed(message, InputRef("summaries", record.partition, record.offset))
        except InvalidInput:
            continue
        for output in outputs:
            chunk = output.message
            assert isinstance(chunk, GroupChunk)
            chunks.setdefault(chunk.request.request, []).append(chunk)
    localizer = LocalizerCore(settings.localize, past=past, recall=recall)
    for name in sorted(chunks, key=lambda name: (wanted[name].issued_at_us, name)):
        for offset, chunk in enumerate(chunks[name]):
            try:
                localizer.feed(chunk, InputRef("groups", 0, offset))
            except InvalidInput:
                break


def _request_of(message: Summary | SummaryError | StackEvidence | Expectation | CloseClass) -> str:
    if isinstance(message, (Summary, SummaryError, StackEvidence)):
        return message.who.request
    return message.request.request if isinstance(message, Expectation) else message.request
