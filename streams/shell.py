"""What detect and group have in common as processes: assignment, readiness, the ticking of time, the end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import faust

from eroica.bus.config import full_name
from eroica.schemas.settings import KafkaSettings
from eroica.streams.app import faust_app
from eroica.streams.hop import Hop
from eroica.streams.outbox import Outbox

_log = logging.getLogger(__name__)

TICK_S = 1.0
REPORT_EVERY_TICKS = 60


class Shell:
    """A Faust application with its hops."""

    def __init__(self, settings: KafkaSettings, stage: str, workdir: Path | None) -> None:
        self.app: faust.App = faust_app(settings, stage, workdir)
        self.outbox = Outbox(settings, stage)
        self.stage = stage
        self._settings = settings
        self._hops: Sequence[Hop[Any]] = ()
        self._on_close: Callable[[], None] | None = None
        self._said = -1
        self._assignments = 0

    def start(
        self, hops: Sequence[Hop[Any]], on_tick: Callable[[int], Awaitable[None]], *, on_close: Callable[[], None] | None = None
    ) -> None:
        """Connect the hops to the application's life.

        :param on_tick: called each second with the µs since it was last called, while partitions are assigned.
        """
        self._hops = hops
        self._on_close = on_close
        self.app.on_partitions_assigned.connect(self._assigned)
        self.app.timer(TICK_S, name=f"eroica-{self.stage}-tick")(self._ticker(on_tick))

    def say_ready(self) -> None:
        """Tell once per assignment that every partition has its state: whoever started us waits for this line."""
        if self._said == self._assignments or not all(hop.ready for hop in self._hops):
            return
        self._said = self._assignments
        shares = ", ".join(f"{hop.topic}: {hop.assigned_count}" for hop in self._hops)
        print(f"eroica {self.stage} ready (partitions {shares})", file=sys.stderr, flush=True)

    async def _assigned(self, _sender: Any, assigned: Any, **_: Any) -> None:
        self._assignments += 1
        for hop in self._hops:
            name = full_name(self._settings, hop.topic)
            hop.assign({tp.partition for tp in assigned if tp.topic == name})

    def _ticker(self, on_tick: Callable[[int], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        last = time.monotonic()
        count = 0

        async def tick() -> None:
            nonlocal last, count
            now = time.monotonic()
            elapsed, last = now - last, now
            if all(hop.ready for hop in self._hops):
                await on_tick(int(elapsed * 1_000_000))
            count += 1
            if count % REPORT_EVERY_TICKS == 0:
                self.report()

        return tick

    def close(self) -> None:
        """Flush and let go of everything; the worker has ended."""
        self.report()
        self.outbox.close()
        if self._on_close is not None:
            self._on_close()

    def report(self) -> None:
        """One line of what was done so far."""
        read = " ".join(f"{hop.topic}={hop.messages}" for hop in self._hops)
        odd = "".join(f" {hop.topic}.{name}={count}" for hop in self._hops for name, count in hop.counted().items())
        _log.info("%s: read %s sent=%d dead_letters=%d%s", self.stage, read, self.outbox.sent, self.outbox.dead_letters, odd)
