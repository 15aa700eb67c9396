"""Dead letters: what could not be read goes to ``<topic>.dlq`` unchanged, with the reason in headers, up to a limit.

Header names are Kafka Connect's (``__connect.errors.*``), so that existing tools show them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from eroica.bus.config import dead_letter_topic, message_limit_bytes
from eroica.bus.message import Headers, Incoming
from eroica.bus.producer import BusProducer
from eroica.schemas.errors import BrokerError, EroicaError
from eroica.schemas.settings import KafkaSettings

CONNECT = "__connect.errors."
REASON_BYTES = 1_024
"""A reason is cut at this: it may quote the hostile message itself."""
KEPT_HEADER_BYTES = 8_192
"""Original headers are carried over while they fit into this, in their order."""
KEPT_KEY_BYTES = 4_096
FRAMING_BYTES = 1_024
"""Room for the record's own framing below the topic's limit."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What to write: give it to whichever producer is at hand."""

    topic: str
    """Full name of the dead-letter topic."""
    key: bytes | None
    value: bytes | None
    headers: Headers


def dead_letter(message: Incoming, error: BaseException, *, stage: str, limit_bytes: int) -> DeadLetter:
    """Build the dead letter of *message*. Pure: the same input gives the same bytes.

    :param error: why it was refused; its class and text go into the headers.
    :param stage: who refused it: ``detect``, ``group``, ``localize``.
    :param limit_bytes: most that value, key and headers may take together; a larger value or key is cut and the headers say so
        (``eroica.truncated`` and the original sizes), since a dead letter that cannot be written would be lost altogether.
    """
    reason = str(error).encode("utf-8", "replace")[:REASON_BYTES].decode("utf-8", "ignore")
    pairs: list[tuple[str, bytes]] = [
        (CONNECT + "topic", message.topic.encode()),
        (CONNECT + "partition", str(message.partition).encode()),
        (CONNECT + "offset", str(message.offset).encode()),
        (CONNECT + "stage", stage.encode()),
        (CONNECT + "exception.class.name", type(error).__name__.encode()),
        (CONNECT + "exception.message", reason.encode()),
        ("eroica.timestamp_ms", str(message.timestamp_ms).encode()),
    ]
    key, value = message.key, message.value
    if key is not None and len(key) > KEPT_KEY_BYTES:
        pairs += [("eroica.truncated", b"key"), ("eroica.key_bytes", str(len(key)).encode())]
        key = key[:KEPT_KEY_BYTES]
    kept, dropped = _fitting(message.headers)
    if dropped:
        pairs.append(("eroica.headers_dropped", str(dropped).encode()))
    room = limit_bytes - FRAMING_BYTES - len(key or b"") - _size(pairs) - _size(kept) - 64
    if value is not None and len(value) > room:
        pairs += [("eroica.truncated", b"value"), ("eroica.value_bytes", str(len(value)).encode())]
        value = value[: max(0, room)]
    return DeadLetter(dead_letter_topic(message.topic), key, value, (*pairs, *kept))


@dataclass
class DeadLetterLimit:
    """Stops a service that refuses nearly everything: then the service is what is wrong, and the messages wait for its repair.

    The last *window* messages are looked at, once there are *at_least* of them. Not thread-safe.
    """

    max_share: float = 0.5
    """Share of refused messages that is still put down to the senders."""
    window: int = 200
    at_least: int = 50
    _recent: deque[bool] = field(default_factory=deque, repr=False)
    _refused: int = field(default=0, repr=False)

    def accept(self) -> None:
        """A message was read."""
        self._push(False)

    def refuse(self, where: str) -> None:
        """A message was refused; call before writing its dead letter.

        :raises BrokerError: when too many of the recent ones were: do not commit, end the process, mend the cause.
        """
        self._push(True)
        if len(self._recent) >= self.at_least and self._refused > self.max_share * len(self._recent):
            raise BrokerError(
                f"{self._refused} of the last {len(self._recent)} messages could not be read",
                where=where,
                do="check that senders and this service have compatible versions; nothing was committed past this message",
            )

    def _push(self, refused: bool) -> None:
        self._recent.append(refused)
        self._refused += refused
        if len(self._recent) > self.window:
            self._refused -= self._recent.popleft()


class DeadLetterQueue:
    """Writes dead letters through a :class:`BusProducer`, for services on confluent-kafka."""

    def __init__(self, settings: KafkaSettings, producer: BusProducer, stage: str, limit: DeadLetterLimit | None = None) -> None:
        self._settings = settings
        self._producer = producer
        self._stage = stage
        self.limit = limit or DeadLetterLimit()
        self.written = 0
        """Dead letters given to the producer."""

    def accept(self) -> None:
        """A message was read; keeps the share of refused ones honest."""
        self.limit.accept()

    def refuse(self, message: Incoming, error: EroicaError) -> None:
        """Write *message* with *error* as its reason; delivered once the producer's flush returned 0.

        :raises BrokerError: mass failure (:class:`DeadLetterLimit`), or the dead letter cannot be queued: then do not commit.
        """
        self.limit.refuse(message.where)
        short = message.topic.removeprefix(self._settings.prefix)
        letter = dead_letter(message, error, stage=self._stage, limit_bytes=message_limit_bytes(short))
        queued = self._producer.send(
            letter.topic.removeprefix(self._settings.prefix), key=letter.key, value=letter.value, headers=letter.headers
        )
        if not queued:
            raise BrokerError("the dead letter cannot be queued", where=message.where, do="check that the broker is up")
        self.written += 1


def _fitting(headers: Headers) -> tuple[list[tuple[str, bytes]], int]:
    """The first headers that fit, and how many did not. Names we write ourselves are not taken over."""
    kept: list[tuple[str, bytes]] = []
    room = KEPT_HEADER_BYTES
    for name, value in headers:
        size = len(name.encode("utf-8", "replace")) + len(value)
        if size > room:
            return kept, len(headers) - len(kept)
        if not name.startswith((CONNECT, "eroica.")):
            kept.append((name, value))
        room -= size
    return kept, 0


def _size(pairs: list[tuple[str, bytes]]) -> int:
    return sum(len(name.encode("utf-8", "replace")) + len(value) + 8 for name, value in pairs)
