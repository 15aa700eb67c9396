"""A producer that never blocks its caller, counts what becomes of each message, and survives a fork."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from eroica.bus.config import BATCH_OVERHEAD_BYTES, client_config, full_name, message_limit_bytes
from eroica.bus.errors import translate
from eroica.bus.message import Headers
from eroica.schemas.errors import BrokerAway, BrokerError, EroicaError, MessageTooLarge
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.wording import say_count

_log = logging.getLogger(__name__)

POLL_S = 0.1
"""Longest wait of the background thread in one poll: bounds how late a delivery is reported and how long close() waits."""

RENEW_S = 10.0
"""A client that the broker does not know any more is replaced at most once in so long."""

FINAL_FLUSH_S = 1.0
"""Longest wait for the reports of a client that was purged: they are local, so this is never reached in practice."""

OnDelivery = Callable[[EroicaError | None], None]
"""Called from the background thread with ``None`` for a delivered message, else with the reason of its loss: a
:class:`BrokerAway` where another try may succeed."""

_LOST_PLACE = frozenset(
    {
        KafkaError.PRODUCER_FENCED,
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
"""Why a message was lost where the client's number or its place means nothing to the broker, which began anew: so it goes on for
ever, since none of it need be fatal to the client."""

_GIVEN_UP = _LOST_PLACE | {KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""Why a message was lost with its client, and not for anything of its own: the next client may deliver it."""

_alive: weakref.WeakSet[BusProducer] = weakref.WeakSet()
_abandoned: list[Any] = []
"""Clients whose threads stayed in the parent of a fork: destroying one hangs, so they are left alone until this process ends."""


@dataclass(frozen=True, slots=True)
class ProducerCounters:
    """What became of the messages so far. Invariant: ``queued >= delivered + lost``; the rest is under way."""

    queued: int = 0
    delivered: int = 0
    lost: int = 0
    """Given up by the client: timed out, refused by the broker, or purged at close."""
    refused: int = 0
    """Never queued: the queue was full or the topic unknown; :meth:`BusProducer.send` returned False."""
    last_error: str = ""

    @property
    def in_flight(self) -> int:
        """Queued and not yet decided."""
        return self.queued - self.delivered - self.lost


class BusProducer:
    """A lazy, idempotent Kafka producer with a poll thread of its own.

    Guarantees: :meth:`send` returns at once whether or not a broker is there. Messages of one partition keep their order; each is
    written once unless the client is replaced after a fatal error. The client is made at the first send **in this process**: an
    instance that came over a fork forgets its parent's client and makes its own. Safe to call from several threads.
    """

    def __init__(self, settings: KafkaSettings, client_id: str = "eroica", *, renew_on_other_cluster: bool = True) -> None:
        """Nothing connects before the first send.

        :param renew_on_other_cluster: where another cluster answers at the old address, give up the client with what
            it holds, counted as lost: the new brokers know others by its number, and drop what it sends as repetitions.
        """
        self._settings = settings
        self._client_id = client_id
        self._renew_on_other_cluster = renew_on_other_cluster
        self._lock = threading.RLock()
        self._client: Producer | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._fatal = False
        self._stale = False
        self._renew_from = 0.0
        self._counters = ProducerCounters()
        _alive.add(self)

    def send(
        self,
        topic: str,
        *,
        key: bytes | str | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
        checked: bool = False,
    ) -> bool:
        """Queue one message for *topic* (short name).

        :param value: ``None`` writes a tombstone.
        :param timestamp_ms: date of the record, for publishing what was recorded. Else leave it out: the client's clock
            at sending is what the broker's retention should go by; event time belongs into the message.
        :param checked: :func:`check_size` has been asked of this message already.
        :returns: False, and counts ``refused``, when the queue is full or the client can't take it now: try later or drop it.
        :raises MessageTooLarge: when the value is over the topic's limit, since no later try can succeed.
        """
        if not checked:
            check_size(topic, key, value, headers)
        options: dict[str, Any] = {}
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if partition is not None:
            options["partition"] = partition

        def done(error: KafkaError | None, _message: object) -> None:
            self._decided(error)
            if on_delivery is not None:
                on_delivery(None if error is None else _why_lost(error, full_name(self._settings, topic)))

        with self._lock:
            client = self._ready_client()
            # Counted before produce(): its callback may run in the other thread before this one goes on.
            self._counters = replace(self._counters, queued=self._counters.queued + 1)
            try:
                client.produce(
                    full_name(self._settings, topic),
                    value=value,
                    key=key,
                    headers=list(headers) or None,
                    on_delivery=done,
                    **options,
                )
            except (BufferError, KafkaException) as error:
                count = self._counters
                self._counters = replace(count, queued=count.queued - 1, refused=count.refused + 1, last_error=str(error))
                return False
        return True

    @property
    def counters(self) -> ProducerCounters:
        """A snapshot of what became of the messages."""
        return self._counters

    def flush(self, timeout_s: float) -> int:
        """Wait until nothing is under way or *timeout_s* is over; returns how many messages still are."""
        client = self._client
        return int(client.flush(timeout_s)) if client is not None else 0

    def close(self, timeout_s: float = 2.0) -> int:
        """Flush for at most *timeout_s*, drop the rest (counted as lost) and stop the thread. Returns how many were dropped.

        The producer may be used again: the next send makes a new client.
        """
        with self._lock:
            client, thread, stop = self._client, self._thread, self._stop
            self._client, self._thread = None, None
        if client is None:
            return 0
        left = int(client.flush(timeout_s))
        if left:
            client.purge()
        stop.set()
        if thread is not None:
            thread.join(timeout=2.0)
        return left

    def __enter__(self) -> BusProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready_client(self) -> Producer:
        """The client of this process; caller holds the lock."""
        # A client whose number an embedded broker forgot may try for ever without a word: one that gave up on all goes too.
        if self._client is not None and not self._fatal and not (self._stale and not self._counters.in_flight):
            return self._client
        if self._client is not None:
            # A fatal error (an idempotent producer that lost its place) ends a client for good; its thread reports what it held.
            self._client.purge()
            self._stop.set()
        self._fatal = self._stale = False
        self._stop = threading.Event()
        config = client_config(self._settings, "producer", client_id=self._client_id)
        config["error_cb"] = self._on_error
        if self._renew_on_other_cluster:
            config["logger"] = _ClientLog(config["logger"], self._on_other_cluster)
        try:
            self._client = Producer(config)
        except KafkaException as error:
            raise translate(error, self._settings.bootstrap) from error
        self._thread = threading.Thread(
            target=_poll, args=(self._client, self._stop, self._lost_place), name="eroica-producer-poll", daemon=True
        )
        self._thread.start()
        return self._client

    def _forget_after_fork(self) -> None:
        """In the child: the parent's client, thread and held lock are none of ours."""
        if self._client is not None:
            _abandoned.append(self._client)
        self._lock = threading.RLock()
        self._client, self._thread = None, None
        self._stop, self._fatal = threading.Event(), False
        self._counters = ProducerCounters()

    def _decided(self, error: KafkaError | None) -> None:
        with self._lock:
            count = self._counters
            if error is None:
                self._counters, self._stale = replace(count, delivered=count.delivered + 1), False
            else:
                self._counters = replace(count, lost=count.lost + 1, last_error=error.str())
                self._stale = self._stale or error.code() == KafkaError._MSG_TIMED_OUT
                if error.code() in _LOST_PLACE:
                    self._lost_place(error)

    def _lost_place(self, error: KafkaError) -> None:
        """The broker knows nothing of this client any more: another one has to take its place, but not many a second."""
        with self._lock:
            now = time.monotonic()
            if self._fatal or now < self._renew_from:
                return
            self._renew_from, self._fatal = now + RENEW_S, True
        _log.warning("producer %s: %s; begins anew", self._client_id, error.str())

    def _on_other_cluster(self) -> None:
        with self._lock:
            self._fatal = True
        _log.warning("producer %s: another cluster answers at %s; begins anew there", self._client_id, self._settings.bootstrap)

    def _on_error(self, error: KafkaError) -> None:
        with self._lock:
            self._counters = replace(self._counters, last_error=error.str())
            self._fatal = self._fatal or error.fatal()
        _log.debug("producer %s: %s", self._client_id, error)


class _ClientLog:
    """The client's logger, listened to: of another cluster it tells nobody else."""

    def __init__(self, log: logging.Logger, on_other_cluster: Callable[[], None]) -> None:
        self._log = log
        self._on_other_cluster = on_other_cluster

    def log(self, level: int, text: str, *arguments: object) -> None:
        """As a logger's; *arguments* begin with librdkafka's name of what happened."""
        if arguments and arguments[0] == "CLUSTERID":
            self._on_other_cluster()
        self._log.log(level, text, *arguments)


def check_size(topic: str, key: bytes | str | None, value: bytes | None, headers: Headers = ()) -> None:
    """That a message for *topic* (short name) can be sent at all.

    :raises MessageTooLarge: no later try can succeed.
    """
    limit, size = message_limit_bytes(topic), len(value or b"")
    if size > limit:
        raise MessageTooLarge(f"a message of {size} bytes is over the limit of {limit}", where=topic)
    beside, room = len(key or b"") + sum(len(name) + len(told) for name, told in headers), BATCH_OVERHEAD_BYTES - 1024
    if beside > room:
        raise MessageTooLarge(f"key and headers of a message have {beside} bytes, over the limit of {room}", where=topic)


def _why_lost(error: KafkaError, where: str) -> EroicaError:
    """As :func:`translate`, but what was lost with its client may be sent again: another client takes its place."""
    if error.fatal() or error.code() in _GIVEN_UP:
        return BrokerAway(f"the client was given up before the message arrived ({error.name()}: {error.str()})", where=where)
    return translate(error, where)


def _poll(client: Producer, stop: threading.Event, on_fatal: Callable[[KafkaError], None]) -> None:
    """Serve delivery reports until *stop*. That a client ended for good is told to *on_fatal*; its reports still come."""
    while not stop.is_set():
        try:
            client.poll(POLL_S)
        except KafkaException as error:
            on_fatal(error.args[0])
            stop.wait(POLL_S)
    with contextlib.suppress(KafkaException):
        client.flush(FINAL_FLUSH_S)


def _after_fork_in_child() -> None:
    for producer in list(_alive):
        producer._forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def wait_delivered(producer: BusProducer, timeout_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Block until everything queued so far is on the broker.

    :raises BrokerError: when messages are still under way after *timeout_s*, or any has been lost since the producer began.
    """
    deadline = clock() + timeout_s
    while producer.counters.in_flight and clock() < deadline:
        producer.flush(min(0.2, max(0.0, deadline - clock())))
    count = producer.counters
    if count.in_flight or count.lost:
        raise BrokerError(
            f"{say_count(count.in_flight, 'message is', 'messages are')} undelivered, "
            f"{count.lost} lost ({count.last_error or 'no answer from the broker'})",
            do="check that the broker is up",
        )
