"""One transaction of the localizer: verdicts out, dead letters out, offsets forward; all of it or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from eroica.bus.config import client_config
from eroica.bus.consumer import never
from eroica.bus.errors import translate
from eroica.bus.message import Headers
from eroica.bus.outage import Outage, patiently
from eroica.schemas.errors import BrokerAway
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 20.0
"""Limit for one call of the transaction protocol."""
INIT_TIMEOUT_S = 5.0
"""The same for the first one, which is repeated until the broker is there."""
GIVE_UP_S = 90.0
"""A call that stays retriable for so long ends its transaction: the broker has ended it too by then."""
BACKOFF_S = 0.2


class TransactionAborted(Exception):
    """Nothing of the transaction counts: read again from the committed offsets."""


@dataclass(frozen=True, slots=True)
class Record:
    """What to write. ``topic`` is the full name."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Transactor:
    """Owns the transactional producer. One thread; one instance per ``transactional_id``, else the older one is fenced."""

    def __init__(
        self,
        settings: KafkaSettings,
        transactional_id: str,
        *,
        stop: Callable[[], bool] = never,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Register the id with the broker, which ends whatever a dead predecessor left open. A broker that is away is waited for.

        :raises BrokerError: the broker refuses; or it is away and *stop* says that nobody waits any longer.
        """
        self._stop = stop
        self._config = client_config(settings, "transactional", client_id="eroica-localize", transactional_id=transactional_id)
        self._where = transactional_id
        self._clock = clock
        self._sleep = sleep
        self._producer = self._new_producer()

    def run(self, records: Iterable[Record], offsets: list[TopicPartition], consumer: Consumer) -> None:
        """Write *records* and move the group to *offsets* in one transaction.

        :raises TransactionAborted: it did not happen; another try may succeed.
        :raises BrokerError: it did not happen, and trying again is of no use.
        """
        try:
            self._call(self._producer.begin_transaction)
            for record in records:
                self._produce(record)
            if offsets:
                metadata = consumer.consumer_group_metadata()
                self._call(self._producer.send_offsets_to_transaction, offsets, metadata, CALL_TIMEOUT_S)
            self._call(self._producer.commit_transaction, CALL_TIMEOUT_S)
        except KafkaException as error:
            self._recover(error)
            raise TransactionAborted(str(error)) from error

    def _produce(self, record: Record) -> None:
        """Queue *record*; a full queue empties itself while the broker takes what is in it.

        :raises KafkaException: it stays full.
        """
        deadline = self._clock() + GIVE_UP_S
        while True:
            try:
                self._producer.produce(record.topic, key=record.key, value=record.value, headers=list(record.headers))
                return
            except BufferError:
                if self._stop() or self._clock() > deadline:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL, "the queue stays full", False, True)) from None
                self._producer.poll(BACKOFF_S)

    def _call(self, call: Callable[..., object], *arguments: object) -> None:
        """*call* again as long as the client says that the same call may succeed."""
        outage, deadline = Outage(f"the transaction of {self._where}", clock=self._clock), self._clock() + GIVE_UP_S
        while True:
            try:
                call(*arguments)
                outage.over()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._stop() or self._clock() > deadline:
                    raise
                outage.failed(error)
                self._sleep(BACKOFF_S)

    def _recover(self, error: KafkaException) -> None:
        """Abort, or start a new producer where this one is dead.

        :raises BrokerError: for what neither cures.
        """
        cause = error.args[0]
        _log.warning("%s: the transaction failed: %s", self._where, error)
        if cause.txn_requires_abort() and not cause.fatal():
            try:
                self._call(self._producer.abort_transaction, CALL_TIMEOUT_S)
                return
            except KafkaException as again:
                cause = again.args[0]
        if not (cause.fatal() or cause.retriable() or cause.txn_requires_abort()):
            failure = translate(error, self._where)
            if not isinstance(failure, BrokerAway):
                raise failure from error
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        producer = Producer(self._config)

        def register() -> None:
            try:
                producer.init_transactions(INIT_TIMEOUT_S)
            except KafkaException as error:
                raise translate(error, self._where) from error

        patiently(register, f"the transactions of {self._where}", stop=self._stop, clock=self._clock, sleep=self._sleep)
        return producer
