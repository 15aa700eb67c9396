"""A Faust agent around a pure core: one core a partition, at-least-once whatever happens.

Faust acknowledges an event when the agent's loop body has finished, also when it raised. So the stream runs without
acknowledgements and they are given here: in order, once every output of an event is on the broker. Nothing is allowed
to raise out of the loop: what a core refuses becomes a dead letter, and where even that cannot be written the process
ends without a commit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import faust

from eroica.bus.config import full_name
from eroica.bus.message import Incoming
from eroica.bus.outage import RETRY_S, Outage
from eroica.schemas.base import Message
from eroica.schemas.codec import decode
from eroica.schemas.errors import BrokerAway, BrokerError, InvalidInput
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.settings import KafkaSettings
from eroica.streams.app import raw_topic
from eroica.streams.lean import events_of
from eroica.streams.outbox import Delivery, Outbox, give_up
from eroica.streams.rebuild import committed_offsets, read_again

_log = logging.getLogger(__name__)

C = TypeVar("C")

MAX_IN_FLIGHT = 2_000
"""Events whose outputs have not arrived yet; beyond, reading waits."""
REBUILD_TRIES = 5
"""Of a state that cannot be read again for another reason than that the broker is away."""
ASSIGNMENT_POLL_S = 0.02

_REFUSED = (InvalidInput, ArithmeticError, LookupError, TypeError, AttributeError, ValueError)
"""What a core may raise about a message. All but the first are our own mistakes: a message that meets one would meet it
again at every retry, so it goes to the dead letters too, and the process lives on for the others.
"""


@dataclass(slots=True)
class Slot(Generic[C]):
    """A partition that this process owns."""

    core: C
    ready: asyncio.Event
    next_offset: int = 0


class Hop(Generic[C]):
    """One topic read by one agent.

    :param make_core: a fresh core for a partition.
    :param feed: hands a message to the core; may raise :class:`InvalidInput`.
    :param history_ms: how much of a partition's past a fresh core reads again before it goes on; 0 for a core without state.
    :param before: called with each message ahead of *feed*.
    :param rebuilt: called with a core whose state was read again, before it goes on.
    :param prepare: may block; done once in a thread before the first partition is ready.
    """

    def __init__(
        self,
        *,
        app: faust.App,
        settings: KafkaSettings,
        topic: str,
        outbox: Outbox,
        make_core: Callable[[], C],
        feed: Callable[[C, Message, InputRef], Sequence[Output]],
        history_ms: int,
        on_ready: Callable[[], None],
        before: Callable[[C, Message], None] | None = None,
        rebuilt: Callable[[C], None] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.topic = topic
        self.slots: dict[int, Slot[C]] = {}
        self._app = app
        self._settings = settings
        self._name = full_name(settings, topic)
        self._outbox = outbox
        self._make_core = make_core
        self._feed = feed
        self._history_ms = history_ms
        self._on_ready = on_ready
        self._before = before
        self._rebuilt = rebuilt
        self._prepare_first = prepare
        self._in_flight: deque[tuple[Any, Delivery | None]] = deque()
        self._room = asyncio.Event()
        self._assigning = asyncio.Lock()
        self._assignment = 0
        self.messages = 0
        self.assigned_count = -1
        app.agent(raw_topic(app, settings, topic), name=f"eroica-{topic}", concurrency=1)(self._run)

    @property
    def ready(self) -> bool:
        """Whether partitions were assigned and all of them have their state."""
        return self.assigned_count >= 0 and all(slot.ready.is_set() for slot in self.slots.values())

    def counted(self) -> dict[str, int]:
        """What the cores of this process counted besides their outputs (held back, late, forgotten …), without zeros."""
        total: Counter[str] = Counter()
        for slot in self.slots.values():
            counters = getattr(slot.core, "counters", None)
            total.update(dataclasses.asdict(counters) if counters is not None else {})
        return {name: count for name, count in sorted(total.items()) if count}

    def assign(self, partitions: set[int]) -> None:
        """The partitions of this topic that are ours now, all of them. Returns at once; events wait for their
        partition's state.
        """
        self._assignment += 1
        for partition in self.slots.keys() - partitions:
            self.slots.pop(partition).ready.set()
        for slot in self.slots.values():
            # Somebody else may have had the partition meanwhile: looked at again before the next event.
            slot.ready.clear()
        for partition in partitions - self.slots.keys():
            self.slots[partition] = Slot(core=self._make_core(), ready=asyncio.Event())
        self.assigned_count = len(partitions)
        self._app.add_future(self._prepare(sorted(partitions), self._assignment))

    async def send(self, outputs: Sequence[Output], partition: int | None = None) -> None:
        """Send *outputs* that no single event caused."""
        if outputs:
            await self._outbox.send(self._outbox.letters(outputs, partition), _nothing)

    async def _run(self, stream: Any) -> None:
        async for event in events_of(self._app, stream):
            try:
                await self._handle(event)
            finally:
                error = sys.exc_info()[1]
                if isinstance(error, Exception):
                    # Faust would start the agent anew and go on behind this event.
                    give_up(f"the agent of {self.topic} failed: {error!r}")

    async def _handle(self, event: Any) -> None:
        record = event.message
        slot = self.slots.get(record.partition)
        if slot is None or not slot.ready.is_set():
            slot = await self._owned(event)
            if slot is None:
                return
        letters = self._work(slot, record)
        self.messages += 1
        delivery = await self._outbox.send(letters, self._drain) if letters else None
        if delivery is None and not self._in_flight:
            self._ack(event)
            return
        self._in_flight.append((event, delivery))
        self._drain()
        while len(self._in_flight) > MAX_IN_FLIGHT:
            self._room.clear()
            await self._room.wait()

    async def _owned(self, event: Any) -> Slot[C] | None:
        """The partition of *event* once its state is there; ``None`` if it went to somebody else while we waited."""
        while event.message.generation_id == self._app.consumer_generation_id:
            slot = self.slots.get(event.message.partition)
            if slot is None:
                await asyncio.sleep(ASSIGNMENT_POLL_S)
            elif slot.ready.is_set():
                return slot
            else:
                await slot.ready.wait()
        return None

    def _work(self, slot: Slot[C], record: Any) -> list[Any]:
        try:
            message = decode(self.topic, record.value, where=f"{self._name}[{record.partition}]@{record.offset}")
            if self._before is not None:
                self._before(slot.core, message)
            letters = self._outbox.letters(self._feed(slot.core, message, InputRef(self.topic, record.partition, record.offset)))
        except _REFUSED as error:
            letters = [self._outbox.dead_letter(_incoming(record), error)]
        else:
            self._outbox.read()
        slot.next_offset = record.offset + 1
        return letters

    def _drain(self) -> None:
        """Acknowledge, in order, whatever has nothing more on its way."""
        in_flight = self._in_flight
        while in_flight and (in_flight[0][1] is None or in_flight[0][1].done):
            self._ack(in_flight.popleft()[0])
        self._room.set()

    def _ack(self, event: Any) -> None:
        # An event of a former generation may belong to another process by now: it must not move our offsets.
        if event.message.generation_id == self._app.consumer_generation_id:
            event.ack()

    async def _prepare(self, partitions: list[int], assignment: int) -> None:
        async with self._assigning:
            outage, failed = Outage(f"the state of {self.topic}"), 0
            while True:
                try:
                    await self._rebuild([p for p in partitions if p in self.slots], assignment)
                    break
                except BrokerAway as error:
                    outage.failed(error)
                except BrokerError as error:
                    _log.warning("state of %s is not rebuilt yet: %s", self.topic, error)
                    failed += 1
                    if failed == REBUILD_TRIES:
                        give_up(str(error))
                await asyncio.sleep(RETRY_S)
            outage.over()
        self._on_ready()

    async def _rebuild(self, partitions: list[int], assignment: int) -> None:
        """Give each partition the state it had where its consumer group goes on."""
        if assignment != self._assignment:
            return
        loop = asyncio.get_running_loop()
        if self._prepare_first is not None:
            await loop.run_in_executor(None, self._prepare_first)
            self._prepare_first = None
        if self._history_ms and partitions:
            group = self._app.conf.id
            until = await loop.run_in_executor(None, committed_offsets, self._settings, group, self.topic, partitions)
            # A core that was kept, or is at work already, has seen its past unless somebody else went on without it.
            stale = {p: at for p, at in until.items() if p in self.slots and self.slots[p].next_offset < at}
            cores = {p: self._make_core() for p in stale}

            def feed(message: Incoming) -> None:
                self._remember(cores[message.partition], message)

            since_ms = int(time.time() * 1_000) - self._history_ms
            await loop.run_in_executor(None, read_again, self._settings, self.topic, stale, since_ms, feed)
            if assignment != self._assignment:
                return
            for partition, core in cores.items():
                slot = self.slots.get(partition)
                if slot is not None and slot.next_offset < stale[partition]:
                    slot.core, slot.next_offset = core, stale[partition]
                    if self._rebuilt is not None:
                        self._rebuilt(core)
        for partition in partitions:
            if partition in self.slots:
                self.slots[partition].ready.set()

    def _remember(self, core: C, message: Incoming) -> None:
        try:
            decoded = decode(self.topic, message.value, where=message.where)
            self._feed(core, decoded, InputRef(self.topic, message.partition, message.offset))
        except _REFUSED as error:
            _log.debug("%s was refused before: %s", message.where, error)


def _nothing() -> None:
    return None


def _incoming(record: Any) -> Incoming:
    headers = record.headers or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Incoming(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple((str(name), value if isinstance(value, bytes) else b"") for name, value in pairs),
        timestamp_ms=int(record.timestamp * 1_000) if record.timestamp else -1,
    )
