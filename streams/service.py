"""Detect and group as processes: check the broker, run a Faust worker here, end cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from eroica.bus.again import Again
from eroica.bus.outage import RETRY_S, patiently, wait_for_broker
from eroica.bus.probe import check_broker
from eroica.bus.watch import BrokerWatch, need_topics
from eroica.schemas.errors import BrokerAway, BrokerError, MissingDependency, extra_missing
from eroica.schemas.settings import EroicaSettings

if TYPE_CHECKING:
    from eroica.streams.shell import Shell

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0
"""A worker that has not ended so long after SIGTERM (its broker is away) is ended: what it did not commit is read again."""
GC_ALLOCATIONS = 50_000
"""Allocations between two looks of the garbage collector; Python's 700 is for programs that keep what they make."""
QUIET = ("faust", "mode", "aiokafka")
"""Libraries that tell every rebalance at length; their warnings are kept."""


def run_detect(settings: EroicaSettings, *, workdir: Path | None = None) -> int:
    """Run detect until SIGTERM or SIGINT. Returns the exit code: 0 after a signal, 4 for trouble that waiting does not cure.

    Once something took our connection, an outage of the broker is waited out.

    :raises BrokerError: nothing listens at the address, or a topic is missing.
    :raises MissingDependency: Faust is not installed.
    """
    _need_faust()
    from eroica.streams.detect_app import detect_shell

    topics = ("jobs", "iterations", "partials", "control", "iterations.dlq", "partials.dlq")
    return _serve(settings, "detect", topics, detect_shell, workdir)


def run_group(settings: EroicaSettings, *, workdir: Path | None = None) -> int:
    """Run group until SIGTERM or SIGINT; as :func:`run_detect`."""
    _need_faust()
    from eroica.streams.group_app import group_shell

    topics = ("control", "summaries", "groups", "control.dlq", "summaries.dlq")
    return _serve(settings, "group", topics, group_shell, workdir)


def _serve(
    settings: EroicaSettings,
    stage: str,
    topics: tuple[str, ...],
    make_shell: Callable[[EroicaSettings, Path | None], Shell],
    workdir: Path | None,
) -> int:
    """Run until a signal. A worker that lost its broker cannot be mended: the process begins anew, and waits for it again.

    So does one whose topics were created again, for Faust passes over messages up to the offset that it had reached.
    """
    again = Again(stage)
    try:
        with _stoppable() as stopped:
            need_topics(wait_for_broker(settings.kafka, stage, stop=stopped), settings.kafka, topics)
            again.forget(settings.kafka, stopped)
    except BrokerAway:
        if not stopped():
            raise
    if stopped():
        return 0
    shell = make_shell(settings, workdir)
    with BrokerWatch(settings.kafka, stage, topics, recreated=again.read_anew) as watch:
        code, reason = _run(shell, workdir)
    if reason is not None and lost_broker(reason):
        _log.warning("%s lost its broker and begins anew: %r", stage, reason)
        return _begin_anew(settings, stage, topics, again, watch)
    return code


def _begin_anew(settings: EroicaSettings, stage: str, topics: tuple[str, ...], again: Again, watch: BrokerWatch) -> int:
    """Once the broker is there with the topics, this process runs its command again. Returns 0 where a signal comes before."""
    time.sleep(RETRY_S)
    with _stoppable() as stopped, contextlib.suppress(BrokerAway):
        patiently(lambda: need_topics(check_broker(settings.kafka), settings.kafka, topics), stage, stop=stopped)
    if not stopped():
        again.run(watch.created_again())
    return 0


def lost_broker(reason: BaseException) -> bool:
    """Whether *reason*, for which a worker ended, is one that goes away with the broker's return."""
    from aiokafka.errors import KafkaConnectionError, KafkaError

    return isinstance(reason, KafkaConnectionError | ConnectionError | TimeoutError | asyncio.TimeoutError) or (
        isinstance(reason, KafkaError) and bool(reason.retriable)
    )


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Whether a signal came; for as long as the worker's own handlers are not there."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop.is_set
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _need_faust() -> None:
    try:
        import faust  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise MissingDependency(f"the stream processors need Faust ({error})", do=extra_missing("streams")) from error


def _run(shell: Shell, workdir: Path | None) -> tuple[int, BaseException | None]:
    """The exit code, and why the worker ended if it did so by itself."""
    try:
        import mode.loop

        mode.loop.use("uvloop")
    except ImportError:
        _log.info("uvloop is not installed: a quarter fewer messages a second")
    import faust

    class Worker(faust.Worker):  # type: ignore[misc]  # faust has no types here
        def _on_sigterm(self) -> None:
            _end_later()
            super()._on_sigterm()

        def _on_sigint(self) -> None:
            self._flag_as_shutdown_by_signal()
            _end_later()
            self._schedule_shutdown(signal.SIGINT)

    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    worker = Worker(shell.app, quiet=True, override_logging=False, workdir=workdir or Path.cwd(), redirect_stdouts=False)
    worker.spinner = None
    # Decoded messages are trees without cycles: looking through them at every few hundred allocations finds nothing.
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    try:
        worker.execute_from_commandline()
    except SystemExit as end:
        if end.code == 0:
            return 0, None
        return BrokerError.exit_code, worker.crash_reason or end.__context__
    finally:
        shell.close()
    return 0, None


def _end_later() -> None:
    timer = threading.Timer(STOP_TIMEOUT_S, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    print("the worker did not end in time; it will read its last messages again", file=sys.stderr, flush=True)
    os._exit(0)
