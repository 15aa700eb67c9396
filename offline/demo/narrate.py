"""Messages of the pipeline told as lines for a person. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from eroica.consumers.text import one_line
from eroica.schemas.base import Message
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import GroupChunk
from eroica.schemas.iterations import StepPartial
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.ranks import format_ranks, parse_ranks, say_ranks
from eroica.schemas.summaries import Expectation, StackEvidence, Summary, SummaryError
from eroica.schemas.verdicts import Verdict
from eroica.schemas.wording import say_count, say_steps

EVERY_US = 3_000_000
"""Event time between two lines about the pace."""


@dataclass
class Narrator:
    """Remembers just enough to say each thing once.

    Invariant: feeding a message twice says nothing new.
    """

    last_step: int = -1
    mean_us: float = 0.0
    hosts: dict[str, int] = field(default_factory=dict)
    requests: dict[str, ProfileRequest] = field(default_factory=dict)
    """Every request seen, by id."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Every verdict seen, by the id of its request."""
    _told_us: int = 0
    _expected: dict[tuple[str, str], int] = field(default_factory=dict)
    _heard: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    _closed: set[tuple[str, str]] = field(default_factory=set)

    def feed(self, message: Message) -> list[str]:
        """The lines that *message* is worth; often none."""
        if isinstance(message, StepPartial):
            return self._pace(message)
        if isinstance(message, JobAnnouncement):
            return self._host(message)
        if isinstance(message, ProfileRequest):
            return self._request(message)
        if isinstance(message, Expectation):
            self._expected[message.request.request, message.cls] = len(parse_ranks(message.ranks))
            return []
        if isinstance(message, (Summary, SummaryError, StackEvidence)):
            return self._summary(message)
        if isinstance(message, GroupChunk):
            return self._group(message)
        if isinstance(message, Verdict):
            self.verdicts.setdefault(message.request.id, message)
            return []
        return []

    def _pace(self, partial: StepPartial) -> list[str]:
        last = partial.first_step + len(partial.count) - 1
        if not partial.count or last <= self.last_step:
            return []
        self.last_step, self.mean_us = last, sum(partial.mean_us) / len(partial.mean_us)
        if partial.event_time_us - self._told_us < EVERY_US:
            return []
        self._told_us = partial.event_time_us
        rate = 1e6 / self.mean_us if self.mean_us > 0 else 0.0
        return [f"step {last}: {self.mean_us / 1e3:.0f} ms a step, {rate:.1f} steps/s"]

    def _host(self, announcement: JobAnnouncement) -> list[str]:
        count = len(announcement.ranks)
        if announcement.ended or self.hosts.get(announcement.host) == count:
            return []
        self.hosts[announcement.host] = count
        ranks = say_ranks(format_ranks(rank.rank for rank in announcement.ranks))
        return [f"{one_line(announcement.host, 60)} announces {ranks} of {announcement.world_size}"]

    def _request(self, request: ProfileRequest) -> list[str]:
        if request.request in self.requests:
            return []
        self.requests[request.request] = request
        what = f"{say_count(request.steps, 'step')} from {request.start_step}" if request.steps else f"{request.duration_ms} ms"
        detail = f": {one_line(request.detail)}" if request.detail else ""
        return [f"profile request ({request.reason}), {what} on {say_count(request.world_size, 'rank')}{detail}"]

    def _summary(self, message: Summary | SummaryError | StackEvidence) -> list[str]:
        who = message.who
        heard = self._heard.setdefault((who.request, who.cls), set())
        if who.rank in heard:
            return []
        heard.add(who.rank)
        of = self._expected.get((who.request, who.cls), who.world_size)
        if isinstance(message, SummaryError):
            return [f"summary {len(heard)}/{of}: rank {who.rank} could not: {one_line(message.error)}"]
        if isinstance(message, StackEvidence):
            return [f"stacks {len(heard)}/{of}: rank {who.rank}, {len(message.threads)} threads"]
        late = f", started {say_count(message.late_by_steps, 'step')} late" if message.late_by_steps else ""
        steps = say_steps(message.first_step, message.last_step)
        return [f"summary {len(heard)}/{of}: rank {who.rank} on {one_line(who.host, 60)}, {steps}{late}"]

    def _group(self, chunk: GroupChunk) -> list[str]:
        key = (chunk.request.request, chunk.cls)
        if key in self._closed:
            return []
        self._closed.add(key)
        received, expected = len(parse_ranks(chunk.received)), len(parse_ranks(chunk.expected))
        return [f"class {one_line(chunk.cls, 60)} closed ({chunk.closed_by}): {received} of {expected} summaries compared now"]
