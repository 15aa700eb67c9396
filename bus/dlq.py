"""Dead letters: what could not be read goes to ``<topic>.dlq`` unchanged, with the reason in headers, up to a limit.

Header names are Kafka Connect's (``__connect.errors.*``), so that existing tools show them.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from eroica.bus.config import dead_letter_topic, message_limit_bytes
from eroica.bus.message import Headers, Incoming
from eroica.bus.producer import BusProducer
from eroica.schemas.errors import BrokerError, EroicaError, UnknownMajorVersion
from eroica.schemas.settings import KafkaSettings

CONNECT = "__connect.errors."
REASON_BYTES = 1_024
"""A reason is cut at this: it may quote the hostile message itself."""
KEPT_HEADER_BYTES = 8_192
"""Original headers are carried over while they fit into this, in their order."""
KEPT_KEY_BYTES = 4_096
FRAMING_BYTES = 1_024
"""Room for the record's own framing below the topic's limit."""
MAX_LINES, LINES_WITHIN_S = 20, 60.0
"""So many refused messages are shown within so long; the rest is counted."""


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
    """Stops a service that all senders have outgrown: their messages wait until it is upgraded.

    Only messages of a newer major version stop it (:class:`UnknownMajorVersion`), and only where it can do nothing: none of the
    last *window* messages (of *at_least* since the begin) was read, and most were newer. One sender that was upgraded too early,
    or is broken, must not stop the verdicts of all jobs, however much comes from it. Not thread-safe.
    """

    window: int = 2_000
    at_least: int = 500
    """More than a backlog of one sender that may be read in one go."""
    _recent: deque[str] = field(default_factory=deque, repr=False)
    _counts: Counter[str] = field(default_factory=Counter, repr=False)

    def accept(self) -> None:
        """A message was read."""
        self._push("read")

    def refuse(self, where: str, error: BaseException) -> None:
        """A message was refused for *error*; call before writing its dead letter.

        :raises BrokerError: when nothing but newer messages comes: do not commit, end the process, upgrade.
        """
        newer = isinstance(error, UnknownMajorVersion)
        self._push("newer" if newer else "other")
        total = len(self._recent)
        if newer and total >= self.at_least and not self._counts["read"] and 2 * self._counts["newer"] > total:
            raise BrokerError(
                f"{self._counts['newer']} of the last {total} messages are of a newer major version, and none could be read",
                where=where,
                do="upgrade this service; nothing was committed past this message",
            )

    def _push(self, outcome: str) -> None:
        self._recent.append(outcome)
        self._counts[outcome] += 1
        if len(self._recent) > self.window:
            self._counts[self._recent.popleft()] -= 1


class RefusalLog:
    """Says what was refused; of a flood some lines a minute are enough. Not thread-safe."""

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._since = -math.inf
        self._lines = 0
        self._unsaid = 0
        self.total = 0
        """Messages refused so far."""

    def say(self, where: str, error: BaseException) -> None:
        """*error* is why the message at *where* was refused; one that is not a sender's mistake is shown with its traceback."""
        self.total += 1
        now = self._clock()
        if now - self._since >= LINES_WITHIN_S:
            if self._unsaid:
                self._log.warning("%d more went to the dead letters, %d so far", self._unsaid, self.total)
            self._since, self._lines, self._unsaid = now, 0, 0
        if self._lines >= MAX_LINES:
            self._unsaid += 1
            return
        self._lines += 1
        ours = None if isinstance(error, EroicaError) else error
        self._log.warning("%s goes to the dead letters: %s", where, str(error)[:500], exc_info=ours)
        if self._lines == MAX_LINES:
            self._log.warning("the next ones are counted for %g s, and not shown", LINES_WITHIN_S)


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
        """A message was read; keeps the share of newer ones honest."""
        self.limit.accept()

    def refuse(self, message: Incoming, error: EroicaError) -> None:
        """Write *message* with *error* as its reason; delivered once the producer's flush returned 0.

        :raises BrokerError: most are of a newer version (:class:`DeadLetterLimit`), or the dead letter cannot be queued: then do
            not commit.
        """
        self.limit.refuse(message.where, error)
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
