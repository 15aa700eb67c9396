"""Reading the public topic: each verdict once, whatever was delivered twice."""

from __future__ import annotations

import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
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
            _log.warning("skipped: %s", error)
            return None
        if (self._job is not None and verdict.job != self._job) or verdict.verdict_id in self._seen:
            return None
        self._seen[verdict.verdict_id] = None
        if len(self._seen) > self._remembered:
            self._seen.popitem(last=False)
        return ReadVerdict(verdict, record.value or b"", record.where)


def read_verdicts(
    settings: KafkaSettings,
    *,
    job: str | None = None,
    follow: bool = False,
    stop: Callable[[], bool] = never,
) -> Iterator[ReadVerdict | None]:
    """Verdicts of committed transactions, oldest first within a job.

    :param follow: go on when the end is reached.
    :yields: a verdict, or ``None`` each time the topic had no news for a moment, so that the caller can look after its own time.
    :raises BrokerError: broker unreachable or topic missing.
    """
    accepted = VerdictFilter(job)
    for batch in read_partitions(settings, "verdicts", to_end=not follow, stop=stop, client_id="eroica-verdicts"):
        for record in batch:
            found = accepted.feed(record)
            if found is not None:
                yield found
        if not batch:
            yield None


def latest(items: Iterable[ReadVerdict | None], count: int) -> Iterator[ReadVerdict | None]:
    """Of what the topic holds already the *count* latest by event time, oldest first; all that comes later as it comes.

    :param items: as from :func:`read_verdicts`; the first ``None`` is where the topic had no more.
    """
    kept: list[tuple[str, int, ReadVerdict]] = []
    source = iter(items)
    for number, item in enumerate(source):
        if item is None:
            break
        heapq.heappush(kept, (item.verdict.event_time, number, item))
        if len(kept) > count:
            heapq.heappop(kept)
    yield from (item for _, _, item in sorted(kept, key=lambda entry: entry[:2]))
    yield None
    yield from source


def is_finding(verdict: Verdict) -> bool:
    """Whether somebody or something is held at fault."""
    return verdict.status in ("culprit_found", "shared_cause")
