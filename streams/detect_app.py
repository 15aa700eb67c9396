"""Detect as a Faust application: iterations → partials → control."""

from __future__ import annotations

from pathlib import Path

from eroica.schemas.base import Message
from eroica.schemas.iterations import IterationBatch, StepPartial
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.settings import EroicaSettings
from eroica.streams.hop import Hop
from eroica.streams.job import JobCore
from eroica.streams.known import KnownJobs
from eroica.streams.shard import ShardCore
from eroica.streams.shell import Shell

SHARD_MEMORY_FACTOR = 3
"""A shard's state is as old as its silence limit; so many times that is read again after a restart."""


def detect_shell(settings: EroicaSettings, workdir: Path | None = None) -> Shell:
    """Build the application; nothing connects before its worker starts."""
    shell = Shell(settings.kafka, "detect", workdir)
    detect = settings.detect
    known = KnownJobs(settings.kafka)

    def feed_shard(core: ShardCore, message: Message, _ref: InputRef) -> list[Output]:
        assert isinstance(message, IterationBatch)
        return core.feed(message)

    def feed_job(core: JobCore, message: Message, _ref: InputRef) -> list[Output]:
        assert isinstance(message, StepPartial)
        return core.feed(message)

    def meet(core: JobCore, message: Message) -> None:
        """Tell a core what is known of a launch before its first step counts."""
        assert isinstance(message, StepPartial)
        if not core.watches(message.job, message.run_id):
            known.tell(core, message.job)

    def catch_up(core: JobCore) -> None:
        """What was asked before the part of the past that was read again."""
        known.refresh()
        known.tell_all(core)

    shards = Hop(
        app=shell.app,
        settings=settings.kafka,
        topic="iterations",
        outbox=shell.outbox,
        make_core=lambda: ShardCore(detect),
        feed=feed_shard,
        history_ms=min(detect.history_ms, SHARD_MEMORY_FACTOR * detect.silence_ms),
        on_ready=shell.say_ready,
    )
    jobs = Hop(
        app=shell.app,
        settings=settings.kafka,
        topic="partials",
        outbox=shell.outbox,
        make_core=lambda: JobCore(detect),
        feed=feed_job,
        history_ms=detect.history_ms,
        on_ready=shell.say_ready,
        before=meet,
        rebuilt=catch_up,
        prepare=known.start,
    )

    async def tick(_elapsed_us: int) -> None:
        known.refresh()
        for slot in jobs.slots.values():
            known.tell_all(slot.core)

    shell.start([shards, jobs], tick, on_close=known.close)
    return shell
