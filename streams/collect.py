"""Collecting the summaries of a request, class by class, until nothing is missing or silence was written down.

Pure: no clock, no Kafka. What is emitted is a function of one partition of ``summaries`` alone: time only ever leads to a
:class:`CloseClass` message on that same partition, which then closes the class here, in a replay as well.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from eroica.schemas.groups import ClosedBy
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.ranks import RankRanges
from eroica.schemas.settings import GroupSettings
from eroica.schemas.summaries import CloseClass, Expectation, SummaryTopicMessage
from eroica.schemas.topics import message_key
from eroica.streams.chunks import ClosedClass, chunk_messages
from eroica.streams.held import Held, Member, hold

ClassKey = tuple[str, str, str]
"""Job, request, class."""

MAX_HELD_BYTES = 1_073_741_824
"""Summaries held by one partition, encoded; beyond, the oldest class is closed."""
CLOSED_REMEMBERED = 20_000
"""Closed classes whose stragglers are still recognised as late."""


@dataclass
class GroupCounters:
    """What did not count, for the log."""

    repeated: int = 0
    late: int = 0
    """Summaries of classes that were closed."""
    foreign: int = 0
    """Summaries of ranks that nobody expects."""
    orphans: int = 0
    """Classes given up that nobody had opened."""


@dataclass(slots=True)
class _Open:
    since_us: int
    expectation: Expectation | None = None
    expected: RankRanges = field(default_factory=lambda: RankRanges([], []))
    held: dict[int, Held] = field(default_factory=dict)
    """Rank → its first word."""
    offsets: list[int] = field(default_factory=list)
    bytes: int = 0
    last_us: int = 0
    """When the last summary came; 0 before."""
    first_us: int = 0
    asked_to_close: bool = False
    event_time_us: int = 0
    partition: int = 0


class GroupCore:
    """One partition of ``summaries`` → ``groups``.

    Guarantees: a class is emitted once, whole, in rank order. The first word of each rank counts; repetitions, words
    after the close and ranks outside of the class change nothing. Summaries may come before the expectation. Memory
    is bounded.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._open: OrderedDict[ClassKey, _Open] = OrderedDict()
        self._closed: OrderedDict[ClassKey, None] = OrderedDict()
        self._now_us: dict[str, int] = {}
        self._held_bytes = 0
        self.counters = GroupCounters()

    def feed(self, message: SummaryTopicMessage, ref: InputRef) -> list[Output]:
        """Take in a message; returns the chunks of whatever it closed.

        :raises SchemaError: an expectation whose ranks are no ranges of ranks.
        """
        if isinstance(message, Expectation):
            return self._open_class(message, ref)
        if isinstance(message, CloseClass):
            return self._close_class(message, ref)
        return self._fill(message, ref)

    def advance(self, job: str, event_time_us: int) -> list[Output]:
        """Event time of *job* went on without messages; returns the :class:`CloseClass` messages that this calls for.

        A class is to be closed ``deadline_ms`` after its first summary, or after the request and its profile's length
        when there is none; or ``idle_ms`` after its last summary. Nothing is closed here: the messages do it when
        they come back.
        """
        now = self._now_us[job] = max(event_time_us, self._now_us.get(job, event_time_us))
        outputs: list[Output] = []
        for key, one in self._open.items():
            if key[0] != job or one.expectation is None or one.asked_to_close:
                continue
            reason = self._overdue(one, one.expectation, now)
            if reason is not None:
                one.asked_to_close = True
                message = CloseClass(job=key[0], request=key[1], cls=key[2], closed_by=reason)
                outputs.append(Output(key=message_key(*key), message=message, event_time_us=now))
        return outputs

    def now_us(self, job: str) -> int:
        """The event time that *job* has reached; 0 for one that was never heard of."""
        return self._now_us.get(job, 0)

    def waiting_jobs(self) -> list[str]:
        """Jobs with an open class, ascending: those whose time must go on."""
        return sorted({job for (job, _, _), one in self._open.items() if one.expectation is not None})

    def _overdue(self, one: _Open, expectation: Expectation, now: int) -> Literal["deadline", "idle"] | None:
        request = expectation.request
        start = one.first_us or one.since_us + request.duration_ms * 1_000
        if now - start >= request.deadline_ms * 1_000:
            return "deadline"
        if one.last_us and now - one.last_us >= self._settings.idle_ms * 1_000:
            return "idle"
        return None

    def _seen_at(self, job: str, event_time_us: int) -> int:
        """The job's time after a message. A leap of more than half of the idle time was nobody's silence: it moves all
        its classes.
        """
        now = self._now_us.get(job)
        if now is None:
            if len(self._now_us) > self._settings.max_open:
                busy = {key[0] for key in self._open}
                self._now_us = {name: at for name, at in self._now_us.items() if name in busy}
            self._now_us[job] = event_time_us
            return event_time_us
        leap = event_time_us - now
        if leap <= 0:
            return now
        if leap > self._settings.idle_ms * 500:
            for key, one in self._open.items():
                if key[0] == job:
                    one.since_us += leap
                    one.first_us += leap if one.first_us else 0
                    one.last_us += leap if one.last_us else 0
        self._now_us[job] = event_time_us
        return event_time_us

    def _class(self, key: ClassKey, now: int, ref: InputRef) -> tuple[_Open, list[Output]]:
        one = self._open.get(key)
        if one is not None:
            return one, []
        one = self._open[key] = _Open(since_us=now, partition=ref.partition)
        return one, self._make_room()

    def _make_room(self) -> list[Output]:
        outputs: list[Output] = []
        while len(self._open) > self._settings.max_open or (self._held_bytes > MAX_HELD_BYTES and len(self._open) > 1):
            key = next(iter(self._open))
            if self._open[key].expectation is None:
                self.counters.orphans += 1
            outputs += self._close(key, "deadline")
        return outputs

    def _open_class(self, message: Expectation, ref: InputRef) -> list[Output]:
        request = message.request
        key = (request.job, request.request, message.cls)
        if key in self._closed:
            self.counters.repeated += 1
            return []
        expected = RankRanges.parse(message.ranks)
        one, outputs = self._class(key, self._seen_at(request.job, request.issued_at_us), ref)
        if one.expectation is not None:
            self.counters.repeated += 1
            return outputs
        one.expectation, one.expected = message, expected
        one.event_time_us = max(one.event_time_us, request.issued_at_us)
        one.offsets.append(ref.offset)
        strangers = [rank for rank in one.held if rank not in expected]
        for rank in strangers:
            self.counters.foreign += 1
            self._drop(one, rank)
        return outputs + self._maybe_complete(key, one)

    def _fill(self, message: Member, ref: InputRef) -> list[Output]:
        who = message.who
        key = (who.job, who.request, who.cls)
        if key in self._closed:
            self.counters.late += 1
            return []
        now = self._seen_at(who.job, message.ended_at_us)
        one, outputs = self._class(key, now, ref)
        if one.expectation is not None and who.rank not in one.expected:
            self.counters.foreign += 1
            return outputs
        if who.rank in one.held:
            self.counters.repeated += 1
            return outputs
        held = one.held[who.rank] = hold(message)
        one.bytes += held.size
        self._held_bytes += held.size
        one.offsets.append(ref.offset)
        one.event_time_us = max(one.event_time_us, message.ended_at_us)
        one.first_us = one.first_us or now
        one.last_us = now
        outputs += self._maybe_complete(key, one)
        return outputs + self._make_room()

    def _close_class(self, message: CloseClass, ref: InputRef) -> list[Output]:
        key = (message.job, message.request, message.cls)
        one = self._open.get(key)
        if one is None or one.expectation is None:
            self.counters.repeated += 1
            return []
        one.offsets.append(ref.offset)
        return self._close(key, message.closed_by)

    def _maybe_complete(self, key: ClassKey, one: _Open) -> list[Output]:
        if one.expectation is None or len(one.held) < len(one.expected):
            return []
        return self._close(key, "complete")

    def _drop(self, one: _Open, rank: int) -> None:
        size = one.held.pop(rank).size
        one.bytes -= size
        self._held_bytes -= size

    def _close(self, key: ClassKey, closed_by: ClosedBy) -> list[Output]:
        one = self._open.pop(key)
        self._held_bytes -= one.bytes
        if one.expectation is None:
            return []
        self._closed[key] = None
        if len(self._closed) > CLOSED_REMEMBERED:
            self._closed.popitem(last=False)
        closed = ClosedClass(
            expectation=one.expectation,
            expected=one.expected,
            closed_by=closed_by,
            members=[one.held[rank] for rank in sorted(one.held)],
            offsets=tuple(sorted(one.offsets)),
            partition=one.partition,
        )
        return [
            Output(message_key(key[0], key[1]), chunk, one.event_time_us, encoded)
            for chunk, encoded in chunk_messages(closed, self._settings.max_chunk_bytes)
        ]
