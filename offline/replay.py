"""A recording through the same cores that run on the brokers: summaries → groups → verdict, and iterations → requests.

Pure apart from reading the files: no clock, and no order of arrival between partitions counts. What silence decided stands in the
recording as messages; the recorded requests are the truth of what was asked.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from eroica.bus import Incoming
from eroica.localizer.core import LocalizerCore
from eroica.localizer.feedback import FeedbackTable, Heard, Listener, limits_of
from eroica.localizer.judged import Watcher, nobody
from eroica.offline.recorded_past import recorded_past
from eroica.offline.recording import FileEntry, Manifest, read_file
from eroica.offline.regroup import Agreement, Regrouped
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.control import SIMULATED, ProfileRequest
from eroica.schemas.errors import InvalidInput, SchemaError, TopologyError
from eroica.schemas.iterations import IterationBatch, StepPartial
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.memory import Feedback
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.settings import DetectSettings, EroicaSettings
from eroica.schemas.verdicts import Verdict
from eroica.streams.job import JobCore
from eroica.streams.shard import ShardCore
from eroica.topology import JobView, JobViewBuilder

State = Literal["same", "different", "new", "missing"]
"""``new``: no verdict of this request was recorded; ``missing``: one was recorded and is not reached again."""
MAX_RECORDED_VOTES = 1_000_000
"""Of one partition of feedback."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One verdict of the replay against the recorded one, byte by byte."""

    request: str
    state: State
    verdict: Verdict
    raw: bytes
    """As it would stand on the topic; for ``missing`` as it stood there."""


@dataclass(frozen=True)
class ReplayResult:
    """What a replay came to."""

    verdicts: list[Replayed]
    chunks: Agreement
    """Parts of groups, by a digest of their content."""
    requests: Agreement | None
    """Requests of detect (those by hand are nobody's to derive); ``None`` where the requests are the simulator's own."""
    refused: int
    """Messages that a core refused, as the services put them into the dead letters."""
    notes: list[str] = field(default_factory=list)


def replay(
    directory: Path, manifest: Manifest, settings: EroicaSettings, *, seed: int | None = None, watch: Watcher = nobody
) -> ReplayResult:
    """Come to the verdicts of the recording again.

    :param seed: interleave the partitions at random in place of by time; the result must not change by it.
    :param watch: told of each request that is judged.
    :raises InvalidInput: the recording is broken.
    """
    source = _Source(directory, manifest, seed)
    recorded = _recorded_verdicts(source)
    groups = Regrouped(source.records, settings.group)
    notes: list[str] = []
    known_verdicts = {request: one.verdict for request, one in recorded.items()}
    past, recall = recorded_past(source.records, known_verdicts, groups.requests.values(), settings, notes)
    # What is found on the way decides nothing more: it would depend on the order in which the partitions are read.
    core = LocalizerCore(
        settings.localize, listen=_listener(source, recorded), watch=watch, past=past, recall=recall, learn=False
    )
    verdicts: list[Replayed] = []
    for output in _judged(core, groups):
        if not isinstance(output.message, Verdict):
            continue
        raw = encode(output.message)
        known = recorded.pop(output.message.request.id, None)
        state: State = "new" if known is None else "same" if known.raw == raw else "different"
        verdicts.append(Replayed(output.message.request.id, state, output.message, raw))
    verdicts.sort(key=lambda one: (one.verdict.event_time, one.request))
    verdicts += [recorded[request] for request in sorted(recorded)]
    requests, refused, more = _requests_again(source, settings.detect)
    notes += [*(f"left out of the playbook: {problem}" for problem in core.playbook.problems), *more]
    return ReplayResult(verdicts, groups.agreement(), requests, groups.refused + refused, notes)


def _judged(core: LocalizerCore, groups: Regrouped) -> Iterator[Output]:
    for chunk, ref in groups.chunks():
        yield from core.feed(chunk, ref)
    for partition, event_time_us in groups.ends():
        yield from core.advance(partition, event_time_us)


class _Source:
    """The recording's records by topic, partitions interleaved by time or at random."""

    def __init__(self, directory: Path, manifest: Manifest, seed: int | None) -> None:
        self._directory = directory
        self._files: dict[str, list[FileEntry]] = {}
        for entry in manifest.files:
            self._files.setdefault(entry.topic, []).append(entry)
        self._seed = seed

    def records(self, topic: str) -> Iterator[Incoming]:
        """All records of *topic*; each partition in its order."""
        streams = [read_file(self._directory, entry) for entry in self._files.get(topic, [])]
        if self._seed is None:
            return heapq.merge(*streams, key=lambda record: (record.timestamp_ms, record.partition, record.offset))
        return _shuffled(streams, random.Random(f"{self._seed}/{topic}"))


def _shuffled(streams: Iterable[Iterator[Incoming]], order: random.Random) -> Iterator[Incoming]:
    left = list(streams)
    while left:
        chosen = order.randrange(len(left))
        record = next(left[chosen], None)
        if record is None:
            left.pop(chosen)
        else:
            yield record


def _recorded_verdicts(source: _Source) -> dict[str, Replayed]:
    """Request → its verdict as recorded; the first counts, as for any reader."""
    found: dict[str, Replayed] = {}
    for record in source.records("verdicts"):
        try:
            verdict = decode_as(Verdict, record.value, record.where)
        except SchemaError:
            continue
        found.setdefault(verdict.request.id, Replayed(verdict.request.id, "missing", verdict, record.value or b""))
    return found


def _listener(source: _Source, recorded: dict[str, Replayed]) -> Listener:
    """The feedback that each recorded verdict had read; for one that was never recorded, what had been said by its request."""
    table = FeedbackTable(MAX_RECORDED_VOTES)
    for record in source.records("feedback"):
        try:
            vote = decode_as(Feedback, record.value, record.where)
        except SchemaError:
            vote = None
        table.feed(vote, InputRef("feedback", record.partition, record.offset))
    limits = {request: limits_of(one.verdict.provenance.inputs) for request, one in recorded.items()}

    def listen(request: ProfileRequest) -> Heard:
        known = limits.get(request.request)
        return table.heard_until(request.issued_at_us) if known is None else table.heard(request.issued_at_us, known)

    return listen


def _requests_again(source: _Source, settings: DetectSettings) -> tuple[Agreement | None, int, list[str]]:
    """Iterations → partials → requests, against those that detect made."""
    notes: list[str] = []
    asked = [_request(record) for record in source.records("control")]
    requests = [request for request in asked if request is not None]
    by_hand = sorted((r for r in requests if r.reason == "manual"), key=lambda r: r.issued_at_us)
    shards: dict[int, ShardCore] = {}
    job = JobCore(settings)
    for view in _views(source, notes):
        job.feed_job(view)
    derived: set[str] = set()
    refused = len(asked) - len(requests)
    for record in source.records("iterations"):
        core = shards.setdefault(record.partition, ShardCore(settings))
        try:
            for closed in core.feed(decode_as(IterationBatch, record.value, record.where)):
                partial = closed.message
                assert isinstance(partial, StepPartial)
                while by_hand and by_hand[0].issued_at_us <= partial.event_time_us:
                    job.feed_request(by_hand.pop(0))
                derived |= {made.message.request for made in job.feed(partial) if isinstance(made.message, ProfileRequest)}
        except InvalidInput:
            refused += 1
    simulated = frozenset(r.request for r in requests if r.detail == SIMULATED)
    if simulated:
        # A simulated job is profiled where its scenario says so, and detect's own request for it proves nothing.
        what = "the request is" if len(simulated) == 1 else "the requests are"
        notes.append(f"{what} the simulator's own, made where the scenario says so: detect's are not compared with it")
        return None, refused, notes
    of_detect = frozenset(r.request for r in requests if r.reason not in ("manual", "offline"))
    return Agreement(of_detect, frozenset(derived)), refused, notes


def _request(record: Incoming) -> ProfileRequest | None:
    try:
        return decode_as(ProfileRequest, record.value, record.where)
    except SchemaError:
        return None


def _views(source: _Source, notes: list[str]) -> list[JobView]:
    builder = JobViewBuilder()
    heard = False
    for record in source.records("jobs"):
        if not record.value:
            continue
        try:
            builder.feed(decode_as(JobAnnouncement, record.value, record.where))
            heard = True
        except InvalidInput as error:
            notes.append(str(error))
    try:
        return [builder.view()] if heard else []
    except TopologyError as error:
        notes.append(str(error))
        return []
