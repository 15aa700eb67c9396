"""Reading the public topic: each verdict once, whatever was delivered twice."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eroica.bus import Incoming, read_partitions
from eroica.bus.consumer import never
from eroica.schemas.codec import decode_as
from eroica.schemas.errors import SchemaError
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.verdicts import Verdict

_log = logging.getLogger(__name__)

REMEMBERED_IDS = 100_000
"""Verdict ids kept to recognise a repetition; a reader that runs for months stays small."""
MAX_TOLD = 5
"""Unreadable records that are said one by one."""


@dataclass(frozen=True, slots=True)
class ReadVerdict:
    """A verdict, its bytes as they stand on the topic, and where that is."""

    verdict: Verdict
    raw: bytes
    where: str


class VerdictFilter:
    """Turns records of the topic into verdicts: each id once, of one job where asked. Pure.

    Invariant: a record that cannot be read is counted in :attr:`bad` and never raises.
    """

    def __init__(self, job: str | None = None, *, remembered: int = REMEMBERED_IDS) -> None:
        self._job = job
        self._remembered = remembered
        self._seen: OrderedDict[str, None] = OrderedDict()
        self.bad = 0
        """Records that are no verdicts of a version that we know."""

    def feed(self, record: Incoming) -> ReadVerdict | None:
        """The verdict in *record*, unless it is unreadable, of another job, or a repetition."""
        try:
            verdict = decode_as(Verdict, record.value, record.where)
        except SchemaError as error:
            self.bad += 1
            if self.bad <= MAX_TOLD:
                _log.warning("skipped: %s", error)
            if self.bad == MAX_TOLD:
                _log.warning("if more are skipped, they are counted, and said at the end")
            return None
        if (self._job is not None and verdict.job != self._job) or verdict.verdict_id in self._seen:
            return None
        self._seen[verdict.verdict_id] = None
        if len(self._seen) > self._remembered:
            self._seen.popitem(last=False)
        return ReadVerdict(verdict, record.value or b"", record.where)

    def close(self) -> None:
        """Reading is over: say how many could not be read, if that was not said one by one."""
        if self.bad > MAX_TOLD:
            _log.warning("skipped %d messages that are no verdicts for this reader", self.bad)


class Latest:
    """Of the verdicts added the *count* latest by event time; of equal times those added last. Pure."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[tuple[str, int, ReadVerdict]] = []
        self._added = 0

    def add(self, item: ReadVerdict) -> None:
        """Keep *item* if it is among the latest."""
        heapq.heappush(self._kept, (item.verdict.event_time, self._added, item))
        self._added += 1
        if len(self._kept) > self._count:
            heapq.heappop(self._kept)

    def all(self) -> list[ReadVerdict]:
        """Those kept, oldest first."""
        return [item for _, _, item in sorted(self._kept, key=lambda entry: entry[:2])]


def read_verdicts(
    settings: KafkaSettings,
    *,
    job: str | None = None,
    last: int | None = None,
    follow: bool = False,
    stop: Callable[[], bool] = never,
) -> Iterator[ReadVerdict | None]:
    """Verdicts of committed transactions, oldest first within a job.

    :param last: of what the topic holds already only so many, the latest by event time; what comes later comes all.
    :param follow: go on when the end is reached.
    :yields: a verdict, or ``None`` each time the topic had no news for a moment, so that the caller can look after its own time.
    :raises BrokerError: broker unreachable or topic missing.
    """
    accepted, there = VerdictFilter(job), None if last is None else Latest(last)
    caught_up = threading.Event()
    try:
        for batch in read_partitions(
            settings, "verdicts", to_end=not follow, stop=stop, on_caught_up=caught_up.set, client_id="eroica-verdicts"
        ):
            if there is not None and caught_up.is_set():
                yield from there.all()
                there = None
            for record in batch:
                found = accepted.feed(record)
                if found is not None and there is not None:
                    there.add(found)
                elif found is not None:
                    yield found
            if not batch:
                yield None
        if there is not None:
            yield from there.all()
    finally:
        accepted.close()


def is_finding(verdict: Verdict) -> bool:
    """Whether somebody or something is held at fault."""
    return verdict.status in ("culprit_found", "shared_cause")
