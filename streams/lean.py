"""What Faust does for every single message and nothing here needs, left out.

On its way to an agent a message of Faust's takes a task, four futures, two codecs and two turns of the event loop. The classes
below take the same way without them where nothing would be waited for; wherever something would be, Faust's own way is
taken. They hold on to inner names of Faust, whose version is pinned.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from math import inf
from time import monotonic
from types import CoroutineType
from typing import Any

import faust
from faust.transport.drivers import aiokafka

_log = logging.getLogger(__name__)

MAX_BURST = 100
"""Events taken between two turns of the event loop: milliseconds in which nothing else runs. Faust's fetcher turns as often."""


class RawSchema(faust.Schema):  # type: ignore[misc]  # faust has no types here
    """Keys and values stay bytes: decoding is the agent's."""

    def compile(self, app: faust.App, **_: Any) -> Any:
        """The function that turns a message into an event."""
        create_event = app.create_event

        async def decode(message: Any, *, propagate: bool = False) -> Any:
            return create_event(message.key, message.value, message.headers, message)

        return decode


class LeanConsumer(aiokafka.Consumer):  # type: ignore[misc]
    """Hands a message over at once while there is room for it, in place of racing the handover against three events."""

    _said_at = -inf
    """When it was last said that messages wait."""

    async def wait_first(self, *coros: Any, timeout: Any = None) -> Any:
        """Faust's race; a handover (a coroutine) against the end of the flow is no race where it need not wait."""
        if len(coros) == 2 and timeout is None and self._has_room():
            handover, suspended = coros
            if type(handover) is CoroutineType and type(suspended) is CoroutineType:
                suspended.close()
                await handover
                return None
        return await super().wait_first(*coros, timeout=timeout)

    async def verify_all_partitions_active(self) -> None:
        """Every few seconds: say so if a message has waited too long for what is made of it.

        Faust asks when a partition's last message came, so that after a quiet hour the next one is an error: "Stream stopped
        processing, or is slow".
        """
        waiting = [message for message in self.unacked if not message.acked and message.time_in is not None]
        oldest = min(waiting, key=lambda message: message.time_in, default=None)
        if oldest is None:
            return
        now, limit_s = monotonic(), self.app.conf.stream_processing_timeout
        if now - oldest.time_in >= limit_s and now - self._said_at >= limit_s:
            self._said_at = now
            where = f"{oldest.topic}, partition {oldest.partition}, offset {oldest.offset}"
            _log.error("%d messages wait, the oldest (%s) for %.0f s", len(waiting), where, now - oldest.time_in)

    def _has_room(self) -> bool:
        """Whether every queue takes another event without waiting."""
        app = self.app
        if not (self.flow_active and app.flow_control.is_active()):
            return False
        for topic in app.topics:  # noqa: SIM110  # a generator would cost as much as the rest
            if topic.queue.full():
                return False
        return True


class LeanTransport(aiokafka.Transport):  # type: ignore[misc]
    """Faust's transport with that consumer."""

    Consumer = LeanConsumer


class LeanApp(faust.App):  # type: ignore[misc]
    """An application that reads through that consumer."""

    def _new_transport(self) -> Any:
        return LeanTransport(self.conf.broker_consumer, self)


async def events_of(app: faust.App, stream: Any) -> AsyncIterator[Any]:
    """The events of *stream*, unacknowledged; those that wait already without a turn of the event loop for each.

    Events of a former assignment are left out, as Faust does.
    """
    waiting = stream.channel.queue
    async for event in stream.noack().events():
        yield event
        for _ in range(MAX_BURST):
            if waiting.empty():
                break
            event = waiting.get_nowait()
            if app.flow_control.is_active() and event.message.generation_id == app.consumer_generation_id:
                yield event
