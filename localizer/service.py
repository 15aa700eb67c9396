"""The localizer as a process: groups in, verdicts out, exactly once."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import TopicPartition

from eroica.bus.again import Again
from eroica.bus.cloudevents import cloudevent_headers
from eroica.bus.config import full_name, message_limit_bytes
from eroica.bus.consumer import GroupConsumer, never, next_offsets, read_partitions
from eroica.bus.dlq import DeadLetterLimit, RefusalLog, dead_letter
from eroica.bus.folders import own_folder
from eroica.bus.message import Incoming
from eroica.bus.outage import Outage, patiently, wait_for_broker
from eroica.bus.watch import BrokerWatch, need_topics
from eroica.localizer.core import LocalizerCore
from eroica.localizer.feedback import Listener
from eroica.localizer.hearing import FeedbackReader, PastReader
from eroica.localizer.transactions import Record, TransactionAborted, Transactor
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.errors import BrokerAway, BrokerError, InvalidInput, SchemaError, UsageError
from eroica.schemas.groups import GroupChunk
from eroica.schemas.ids import stable_id
from eroica.schemas.memory import Baseline
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.verdicts import Verdict

_log = logging.getLogger(__name__)

GROUP = "localize"
STAGE = "localize"
TOPICS = ("groups", "groups.dlq", "verdicts", "baselines")
MAX_INSTANCES = 64
"""Localizers on one host under one prefix."""
REFUSED = (InvalidInput, ArithmeticError, LookupError, TypeError, AttributeError, ValueError)
"""What the core may raise about a message. All but the first are our own mistakes, and a message that meets one would meet it
again in the next process: it goes to the dead letters too, and the verdicts of others are not held up.
"""


def run_localizer(settings: EroicaSettings) -> int:
    """Run until SIGTERM or SIGINT. Returns 0 after a signal. Once something took our connection, an outage is waited out.

    :raises BrokerError: nothing listens at the address, topic missing, or trouble that waiting does not cure.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _run(settings, stop.is_set)
    except BrokerAway:
        if not stop.is_set():
            raise
    return 0


def _run(settings: EroicaSettings, stop: Callable[[], bool]) -> None:
    again = Again(GROUP)
    need_topics(wait_for_broker(settings.kafka, "localize", stop=stop), settings.kafka, TOPICS)
    again.forget(settings.kafka, stop)
    listen, past = FeedbackReader(settings.kafka), PastReader(settings.kafka)
    # The consumer says itself that the broker is away.
    watch = BrokerWatch(settings.kafka, "localize", TOPICS, away=False, recreated=again.read_anew)
    with _instance(settings.kafka.prefix) as transactional_id, listen, past, watch:
        Localizer(settings, transactional_id, listen, past, stop).run()


class Localizer:
    """Moves messages between the topics and the core; decides nothing."""

    def __init__(
        self,
        settings: EroicaSettings,
        transactional_id: str,
        listen: Listener,
        past: PastReader,
        stop: Callable[[], bool] = never,
    ) -> None:
        self._settings = settings
        self._listen, self._past = listen, past
        self._stop = stop
        self._transactor = Transactor(settings.kafka, transactional_id, stop=stop)
        self._limit = DeadLetterLimit()
        self._refusals = RefusalLog(_log)
        self._outage = Outage("the consumer of localize")
        self._known: frozenset[tuple[str, int]] = frozenset()
        self._published_to: dict[int, int] = {}
        """Partition of verdicts → offset up to which the published ones are known."""
        self._core = self._new_core()
        for problem in self._core.playbook.problems:
            _log.warning("left out of the playbook: %s", problem)
        self._committed: dict[tuple[str, int], int] = {}

    def run(self) -> None:
        """Consume until *stop* says so. A broker that is away is waited for.

        What an aborted transaction had read is read again; a verdict that is on the topic is never written twice.

        :raises BrokerAway: it is away, and *stop* says that nobody waits any longer.
        :raises BrokerError: what waiting does not cure.
        """
        with patiently(self._join, "the consumer of localize", stop=self._stop) as consumer:
            for batch in consumer.batches(stop=self._stop):
                if consumer.assigned != self._known:
                    self._assigned(consumer)
                if not batch or self._stop():
                    continue
                self._outage.over()
                try:
                    self._handle(consumer, batch)
                except TransactionAborted as error:
                    _log.warning("reading again from the committed offsets: %s", error)
                    patiently(lambda: self._start_over(consumer), "reading again", stop=self._stop)

    def _join(self) -> GroupConsumer:
        return GroupConsumer(
            self._settings.kafka,
            GROUP,
            ["groups"],
            client_id="eroica-localize",
            on_revoke=self._revoked,
            on_outage=self._outage.failed,
        )

    def _assigned(self, consumer: GroupConsumer) -> None:
        """New partitions may hold groups whose verdict their former owner published."""
        if consumer.assigned:
            patiently(self._know_published, "the reading of verdicts", stop=self._stop)
            self._outage.over()
        if not self._known and consumer.assigned:
            print(f"eroica localize ready (partitions groups: {len(consumer.assigned)})", file=sys.stderr, flush=True)
        self._known = consumer.assigned

    def _new_core(self) -> LocalizerCore:
        """It judges with all that is known of the past. A profile whose transaction was aborted stays known: whoever reads its
        groups again finds the same.
        """
        return LocalizerCore(self._settings.localize, listen=self._listen, past=self._past.profiles)

    def _revoked(self, partitions: list[tuple[str, int]]) -> None:
        self._known = frozenset()  # also where the same come back at once: somebody else may have published meanwhile
        for topic, partition in partitions:
            self._core.forget(partition)
            self._committed.pop((topic, partition), None)

    def _know_published(self) -> None:
        """All that is on the topic, by offset and not by time: the records carry the time of clocks that may be wrong."""
        for batch in read_partitions(
            self._settings.kafka,
            "verdicts",
            start=self._published_to,
            to_end=True,
            stop=self._stop,
            client_id="eroica-localize-readback",
        ):
            for record in batch:
                self._published_to[record.partition] = record.offset + 1
                with contextlib.suppress(SchemaError):
                    self._core.mark_published(decode_as(Verdict, record.value, record.where).request.id)

    def _start_over(self, consumer: GroupConsumer) -> None:
        self._core = self._new_core()
        self._committed.clear()
        self._published_to.clear()
        self._know_published()
        consumer.rewind()

    def _handle(self, consumer: GroupConsumer, batch: list[Incoming]) -> None:
        records: list[Record] = []
        for message in batch:
            try:
                chunk = decode_as(GroupChunk, message.value, message.where)
                outputs = self._core.feed(chunk, InputRef("groups", message.partition, message.offset))
                records += [self._record(output) for output in outputs]
                self._limit.accept()
            except REFUSED as error:
                self._limit.refuse(message.where, error)
                self._refusals.say(message.where, error)
                records.append(self._dead(message, error))
        offsets = self._offsets(batch)
        if records or offsets:
            self._transactor.run(records, offsets, consumer.client)
            self._committed |= {(o.topic, o.partition): o.offset for o in offsets}

    def _offsets(self, batch: list[Incoming]) -> list[TopicPartition]:
        """Past what was read, but never past a chunk that an open request needs. Where reading began the group stands already."""
        for message in batch:
            self._committed.setdefault((message.topic, message.partition), message.offset)
        moved = []
        for position in next_offsets(batch):
            low = self._core.low_water(position.partition)
            offset = position.offset if low is None else min(low, position.offset)
            if offset > self._committed[position.topic, position.partition]:
                moved.append(TopicPartition(position.topic, position.partition, offset))
        return moved

    def _record(self, output: Output) -> Record:
        message = output.message
        if isinstance(message, Verdict):
            event_id = message.verdict_id
            _log.info("verdict %s: %s", event_id, message.headline[:300])
        elif isinstance(message, Baseline):
            event_id = stable_id("baseline", message.job, message.request, message.cls)
        else:
            raise TypeError(f"the core gave a {type(message).__name__}")
        headers = cloudevent_headers(
            event_type=f"io.eroica.{type(message).__struct_config__.tag}",
            source="/localize",
            event_id=event_id,
            time_ms=max(output.event_time_us // 1_000, 0),
        )
        # The record is dated by the client's clock, not by event time: hosts whose clocks are far off would have their verdicts
        # deleted by the topic's retention before anybody has read them. Event time is in the value and in ce_time.
        return Record(full_name(self._settings.kafka, output.topic), output.key.encode(), encode(message), headers)

    def _dead(self, message: Incoming, error: Exception) -> Record:
        short = message.topic.removeprefix(self._settings.kafka.prefix)
        letter = dead_letter(message, error, stage=STAGE, limit_bytes=message_limit_bytes(short))
        return Record(letter.topic, letter.key, letter.value, letter.headers)


@contextlib.contextmanager
def _instance(prefix: str) -> Iterator[str]:
    """A transactional id that is stable over restarts and held by one process at a time.

    The broker ends a killed predecessor's open transaction when its id comes back; two living processes on a host take
    different numbers.

    :raises BrokerError: all numbers are taken.
    :raises UsageError: the locks cannot be made where nobody else can meddle with them.
    """
    safe = "".join(c if c.isalnum() else "-" for c in prefix)
    folder = own_folder("eroica-localize")
    for number in range(MAX_INSTANCES):
        with open(_own_file(folder / f"{safe}{number}.lock"), "w", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            yield f"{prefix}localize-{socket.gethostname()}-{number}"
            return
    raise BrokerError(f"{MAX_INSTANCES} localizers run on this host already", where=prefix, do="end some of them")


def _own_file(path: Path) -> int:
    """Open *path* for writing.

    :raises UsageError: it is a link, or cannot be made.
    """
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"the lock cannot be used ({error.strerror})", where=str(path), do="remove it, or set another TMPDIR"
        ) from error
