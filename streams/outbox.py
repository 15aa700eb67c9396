"""Sending what a core gave back, and knowing when all of it has arrived.

The sends go through the project's own producer (idempotent, compressed, the same partitioner as the agents'): an
input's offset may be committed only when every output of it is on the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from eroica.bus.cloudevents import cloudevent_headers
from eroica.bus.config import message_limit_bytes
from eroica.bus.dlq import DeadLetterLimit, RefusalLog, dead_letter
from eroica.bus.message import Headers, Incoming
from eroica.bus.outage import RETRY_S, Outage
from eroica.bus.producer import BusProducer, check_size
from eroica.schemas.codec import encode
from eroica.schemas.errors import BrokerAway, BrokerError, EroicaError
from eroica.schemas.outputs import Output
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

FOR_EVER = {"message.timeout.ms": "0"}
"""librdkafka's for a message that is tried until it arrives: an outage of the broker, however long, ends no service."""
QUEUE_POLL_S = 0.05
EXIT_CODE = BrokerError.exit_code


@dataclass(frozen=True, slots=True)
class Letter:
    """An encoded output of a size that can be sent.

    Its record is dated at sending: event times of hosts whose clocks are far off would have it deleted by the topic's retention
    before anybody has read it, or refused.
    """

    topic: str
    key: str | bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None


class Delivery:
    """The outputs of one input on their way. ``done`` once all have arrived."""

    __slots__ = ("left", "notify")

    def __init__(self, count: int, notify: Callable[[], None]) -> None:
        self.left = count
        self.notify = notify

    @property
    def done(self) -> bool:
        """Whether everything has arrived."""
        return self.left == 0

    def arrived(self) -> None:
        """One of them has."""
        self.left -= 1
        if self.left == 0:
            self.notify()


def give_up(reason: str) -> None:
    """End the process at once, so that nothing more is committed: what was not delivered is read again by the next one."""
    _log.critical("ending without a commit: %s", reason)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Outbox:
    """The producer of a shell. Used from its event loop only."""

    def __init__(self, settings: KafkaSettings, stage: str) -> None:
        self._settings = settings
        self._stage = stage
        patient = settings.model_copy(update={"extra": FOR_EVER | settings.extra})
        self._producer = BusProducer(patient, f"eroica-{stage}", renew_on_other_cluster=False)  # the process begins anew
        self._limit = DeadLetterLimit()
        self._refusals = RefusalLog(_log)
        self._refused = Outage(f"a message of {stage}")
        self._full = Outage(f"the queue of {stage} is full and")
        self.sent = 0
        self.dead_letters = 0

    def letters(self, outputs: Sequence[Output], partition: int | None = None) -> list[Letter]:
        """Encode *outputs*.

        :param partition: where they go; by key when absent.
        :raises MessageTooLarge: an output over its topic's limit.
        """
        return [self._letter(output, partition) for output in outputs]

    def dead_letter(self, message: Incoming, error: BaseException) -> Letter:
        """The dead letter of *message*. Ends the process where most are of a newer version: they wait for its upgrade."""
        try:
            self._limit.refuse(message.where, error)
        except BrokerError as failure:
            give_up(str(failure))
        self.dead_letters += 1
        self._refusals.say(message.where, error)
        short = message.topic.removeprefix(self._settings.prefix)
        letter = dead_letter(message, error, stage=self._stage, limit_bytes=message_limit_bytes(short))
        topic = letter.topic.removeprefix(self._settings.prefix)
        check_size(topic, letter.key, letter.value, letter.headers)
        return Letter(topic, letter.key, letter.value, letter.headers)

    def read(self) -> None:
        """A message was understood; keeps the share of newer ones honest."""
        self._limit.accept()

    async def send(self, letters: Sequence[Letter], notify: Callable[[], None]) -> Delivery:
        """Queue *letters*; *notify* is called in the loop once all of them have arrived.

        What the broker does not take for now (its topic is missing) is sent again; a delivery that fails for good ends us.
        """
        loop = asyncio.get_running_loop()
        delivery = Delivery(len(letters), notify)

        def on_delivery(letter: Letter, error: EroicaError | None) -> None:
            if error is not None and not isinstance(error, BrokerAway):
                give_up(f"a message was not delivered: {error}")
            # After the loop's end the last deliveries have nobody to tell.
            with contextlib.suppress(RuntimeError):
                if error is None:
                    loop.call_soon_threadsafe(arrived)
                else:
                    loop.call_soon_threadsafe(refused, letter, error)

        def arrived() -> None:
            self._refused.over()
            delivery.arrived()

        def refused(letter: Letter, error: object) -> None:
            self._refused.failed(error)
            loop.call_later(RETRY_S, again, letter)

        def again(letter: Letter) -> None:
            if not self._queue(letter, partial(on_delivery, letter)):
                refused(letter, self._producer.counters.last_error)

        for letter in letters:
            while not self._queue(letter, partial(on_delivery, letter)):
                self._full.failed(self._producer.counters.last_error)
                await asyncio.sleep(QUEUE_POLL_S)
            self._full.over()
            self.sent += 1
        return delivery

    def close(self) -> None:
        """Flush for a moment and stop; what was not delivered is not committed either."""
        self._producer.close()

    def _queue(self, letter: Letter, on_delivery: Callable[[EroicaError | None], None]) -> bool:
        return self._producer.send(
            letter.topic,
            key=letter.key,
            value=letter.value,
            headers=letter.headers,
            partition=letter.partition,
            on_delivery=on_delivery,
            checked=True,
        )

    def _letter(self, output: Output, partition: int | None) -> Letter:
        value = output.encoded or encode(output.message)
        time_ms = output.event_time_us // 1_000 or None
        kind = output.message.__struct_config__.tag
        digest = hashlib.blake2b(value, digest_size=8).hexdigest()
        headers = cloudevent_headers(
            event_type=f"io.eroica.{kind}", source=f"/{self._stage}", event_id=f"{kind}-{digest}", time_ms=time_ms
        )
        check_size(output.topic, output.key, value, headers)
        return Letter(output.topic, output.key, value, headers, partition)
