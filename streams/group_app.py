"""Group as a Faust application: control opens classes on summaries, summaries → groups."""

from __future__ import annotations

from pathlib import Path

from eroica.schemas.base import Message
from eroica.schemas.control import ProfileRequest
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.summaries import CloseClass, Expectation, StackEvidence, Summary, SummaryError
from eroica.streams.collect import GroupCore
from eroica.streams.hop import Hop
from eroica.streams.opener import open_classes
from eroica.streams.shell import Shell


def group_shell(settings: EroicaSettings, workdir: Path | None = None) -> Shell:
    """Build the application; nothing connects before its worker starts."""
    shell = Shell(settings.kafka, "group", workdir)

    def open_request(_core: None, message: Message, _ref: InputRef) -> list[Output]:
        assert isinstance(message, ProfileRequest)
        return open_classes(message)

    def collect(core: GroupCore, message: Message, ref: InputRef) -> list[Output]:
        assert isinstance(message, Summary | SummaryError | StackEvidence | Expectation | CloseClass)
        return core.feed(message, ref)

    opener: Hop[None] = Hop(
        app=shell.app,
        settings=settings.kafka,
        topic="control",
        outbox=shell.outbox,
        make_core=lambda: None,
        feed=open_request,
        history_ms=0,
        on_ready=shell.say_ready,
    )
    classes = Hop(
        app=shell.app,
        settings=settings.kafka,
        topic="summaries",
        outbox=shell.outbox,
        make_core=lambda: GroupCore(settings.group),
        feed=collect,
        history_ms=settings.group.history_ms,
        on_ready=shell.say_ready,
    )

    async def tick(elapsed_us: int) -> None:
        """Event time goes on with ours while nothing comes; what that decides goes to the class's own partition."""
        for partition, slot in list(classes.slots.items()):
            for job in slot.core.waiting_jobs():
                await classes.send(slot.core.advance(job, slot.core.now_us(job) + elapsed_us), partition)

    shell.start([opener, classes], tick)
    return shell
