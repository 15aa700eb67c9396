"""The groups of a recording, made again from its summaries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eroica.bus import Incoming
from eroica.schemas.codec import decode, decode_as, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import InvalidInput, SchemaError
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import GroupSettings
from eroica.schemas.summaries import CloseClass, Expectation, StackEvidence, Summary, SummaryError
from eroica.streams.collect import GroupCore

Records = Callable[[str], Iterator[Incoming]]
"""All records of a topic, each partition in its order."""
UNRECORDED = -1
"""The partition of groups that were never recorded."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was derived again against what was recorded."""

    recorded: frozenset[str]
    derived: frozenset[str]

    def __str__(self) -> str:
        if not self.recorded:
            return f"{len(self.derived)} derived, none was recorded to compare with" if self.derived else "none"
        both = len(self.recorded & self.derived)
        return (
            f"{both} agree, {len(self.recorded - self.derived)} only recorded, {len(self.derived - self.recorded)} only derived"
        )


class Regrouped:
    """Summaries → groups, one core a partition as in the service.

    In the chunks' places each request has a partition of its own: how far a job is in time there may say that a class is lost,
    and while partitions are mixed that says nothing. :meth:`ends` tells it when all have been read.
    """

    def __init__(self, records: Records, settings: GroupSettings) -> None:
        """Read what was recorded."""
        self._read = records
        self._settings = settings
        self._partitions: dict[str, int] = {}
        self._latest_us: dict[tuple[int, str], int] = {}
        """Partition and job → its last request's time."""
        self._jobs: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._recorded: set[str] = set()
        self._derived: set[str] = set()
        self.requests: dict[str, ProfileRequest] = {}
        """Of the recorded groups, by id."""
        self.refused = 0
        for record in records("groups"):
            try:
                chunk = decode_as(GroupChunk, record.value, record.where)
            except SchemaError:
                continue
            request = chunk.request
            self._partitions.setdefault(request.request, record.partition)
            self._recorded.add(_digest(request.request, record.value or b""))
            self.requests.setdefault(request.request, request)

    def chunks(self) -> Iterator[tuple[GroupChunk, InputRef]]:
        """The chunks as the summaries give them."""
        cores: dict[int, GroupCore] = {}
        for record in self._read("summaries"):
            core = cores.setdefault(record.partition, GroupCore(self._settings))
            try:
                message = decode("summaries", record.value, record.where)
                assert isinstance(message, (Summary, SummaryError, StackEvidence, Expectation, CloseClass))
                outputs = core.feed(message, InputRef("summaries", record.partition, record.offset))
            except InvalidInput:
                self.refused += 1
                continue
            for output in outputs:
                chunk = output.message
                assert isinstance(chunk, GroupChunk)
                request = chunk.request
                self._derived.add(_digest(request.request, encode(chunk)))
                partition = self._partitions.setdefault(request.request, UNRECORDED)
                place = partition, self._jobs.setdefault(request.request, request.job)
                self._latest_us[place] = max(self._latest_us.get(place, 0), request.issued_at_us)
                number = self._numbers.setdefault(request.request, len(self._numbers))
                yield chunk, InputRef("groups", number, 0)

    def ends(self) -> Iterator[tuple[int, int]]:
        """The partition of each request as :meth:`chunks` had it, and the event time that its job came to on the recorded one."""
        for request, number in self._numbers.items():
            yield number, self._latest_us[self._partitions[request], self._jobs[request]]

    def agreement(self) -> Agreement:
        """Derived chunks against recorded ones."""
        return Agreement(frozenset(self._recorded), frozenset(self._derived))


def _digest(request: str, raw: bytes) -> str:
    return f"{request}/{hashlib.sha256(raw).hexdigest()[:16]}"
