"""The way of every message to the broker: to disk first, then out in order, and off the disk when the broker has it.

Where the disk takes no more, memory stands in for it: what is sent does not depend on a disk.
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from eroica.bus import Headers
from eroica.producers.agent.counters import Counters
from eroica.producers.agent.spool import Spool
from eroica.producers.agent.spoolfolder import Position
from eroica.producers.agent.spoolrecord import Record
from eroica.schemas.errors import BrokerError, EroicaError, MessageTooLarge

_log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 500
"""Messages given to the client and not yet decided."""
MAX_IN_FLIGHT_BYTES = 8 * 2**20
RETRY_NS = 1_000_000_000
"""After a failed delivery, before the next try."""
SLOW_NS = 10_000_000_000
"""A broker that has confirmed nothing for so long is said to be away."""
POISON_ATTEMPTS = 3
"""A message that failed so often while others of its window went through will never be taken."""


class Client(Protocol):
    """What is needed of :class:`eroica.bus.BusProducer`."""

    def send(
        self,
        topic: str,
        *,
        key: bytes | str | None,
        value: bytes | None,
        headers: Headers = (),
        on_delivery: Callable[[EroicaError | None], None] | None = None,
    ) -> bool:
        """Queue a message; false when it cannot be taken now."""


@dataclass(slots=True)
class _Flight:
    position: Position
    size: int
    since_ns: int
    decided: bool = False
    error: str = ""


class Outbox:
    """Sends what it is given, in order, at least once.

    A message stays on disk until the broker confirmed it, so neither a broker that is away nor the sudden end of the agent loses
    it. A new message never overtakes an older one. Not thread-safe, but delivery may be reported from any thread. Time is passed
    in (monotonic nanoseconds).
    """

    def __init__(self, spool: Spool, client: Client, counters: Counters) -> None:
        self._spool = spool
        self._client = client
        self._counters = counters
        self._flights: deque[_Flight] = deque()
        self._reports: queue.SimpleQueue[tuple[_Flight, EroicaError | None]] = queue.SimpleQueue()
        self._in_flight_bytes = 0
        self._failed = False
        self._retry_at_ns = 0
        self._away = False
        self._disk_full = False
        self._suspect: tuple[Position | None, int] = (None, 0)
        self._told_error = ""
        self._told_dropped = False
        self.last_error = ""

    @property
    def pending(self) -> int:
        """Messages that the broker has not confirmed."""
        return self._spool.pending

    def put(self, record: Record) -> None:
        """Take a message over; it is on disk when this returns, or in memory where the disk has no room."""
        self._spool.append(record)
        if self._spool.disk_takes == self._disk_full:
            self._disk_full = not self._disk_full
            if not self._disk_full:
                _log.info("the disk takes messages again; %d have been given up so far", self._spool.dropped)
            else:
                _log.error(
                    "the disk takes no messages (is %s full?); they are kept in memory, %d MB at most, and sent from there",
                    self._spool.directory,
                    self._spool.memory_bytes >> 20,
                )

    def pump(self, now_ns: int) -> None:
        """Take in what was reported, and send what may be sent. Never blocks on the broker."""
        while True:
            try:
                flight, error = self._reports.get_nowait()
            except queue.Empty:
                break
            flight.decided, flight.error = True, str(error) if error is not None else ""
        self._settle(now_ns)
        if not self._failed and now_ns >= self._retry_at_ns:
            self._send(now_ns)
        self._spool.sync()
        self._counters_of_spool()
        self._say_if_away(now_ns)

    def close(self) -> int:
        """Write the cursor down; what is pending stays on disk for the next agent. Answers how many the disk did not take."""
        return self._spool.close()

    def _settle(self, now_ns: int) -> None:
        while self._flights and self._flights[0].decided and not self._flights[0].error:
            flight = self._flights.popleft()
            self._in_flight_bytes -= flight.size
            self._spool.ack(flight.position)
            if self._away or self._told_error:
                _log.info("the broker takes messages again; %d wait", self._spool.pending)
                self._away, self._told_error, self._told_dropped = False, "", False
        self._failed = self._failed or any(flight.error for flight in self._flights)
        if not self._failed or not all(flight.decided for flight in self._flights):
            return
        head = self._flights[0]
        self._note_failure(head.error)
        others_passed = any(not flight.error for flight in self._flights)
        attempts = self._suspect[1] + 1 if self._suspect[0] == head.position else 1
        self._suspect = (head.position, attempts if others_passed else 0)
        if self._suspect[1] >= POISON_ATTEMPTS:
            _log.error("the broker keeps refusing one message while it takes others; it is given up: %s", head.error)
            self._counters.add("messages_poisoned")
            self._spool.ack(head.position)
        self._flights.clear()
        self._in_flight_bytes = 0
        self._failed = False
        self._spool.rewind()
        self._retry_at_ns = now_ns + RETRY_NS

    def _send(self, now_ns: int) -> None:
        while len(self._flights) < MAX_IN_FLIGHT and self._in_flight_bytes < MAX_IN_FLIGHT_BYTES:
            read = self._spool.read()
            if read is None:
                return
            position, record = read
            flight = _Flight(position, len(record.value), now_ns)
            try:
                taken = self._client.send(
                    record.topic,
                    key=record.key,
                    value=record.value,
                    headers=tuple((name, value) for name, value in record.headers),
                    on_delivery=partial(self._report, flight),
                )
            except MessageTooLarge as error:
                _log.error("%s", error)
                self._counters.add("messages_too_large")
                flight.decided = True
                taken = True
            except BrokerError as error:
                self._note_failure(str(error))
                taken = False
            if not taken:
                # Not given to the client at all: read it again later, without touching what is under way.
                self._spool.unread()
                self._retry_at_ns = now_ns + RETRY_NS // 10
                return
            self._flights.append(flight)
            self._in_flight_bytes += flight.size

    def _report(self, flight: _Flight, error: EroicaError | None) -> None:
        self._reports.put((flight, error))

    def _note_failure(self, error: str) -> None:
        self.last_error = error
        if error and error != self._told_error:
            self._told_error = error
            _log.warning("messages wait, the broker does not take them: %s", error)

    def _say_if_away(self, now_ns: int) -> None:
        if self._flights and not self._away and now_ns - self._flights[0].since_ns > SLOW_NS:
            self._away = True
            _log.warning("the broker has confirmed nothing for %d s; messages wait", SLOW_NS // 1_000_000_000)

    def _counters_of_spool(self) -> None:
        for name, now in (("spool_dropped", self._spool.dropped), ("spool_corrupt", self._spool.corrupt)):
            if now > self._counters[name]:
                if name == "spool_dropped" and not self._told_dropped:
                    self._told_dropped = True
                    _log.error("messages are given up and counted, the oldest first: there is no room for more")
                self._counters.add(name, now - self._counters[name])
