"""Detect and group as processes: check the broker, run a Faust worker here, end cleanly."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from eroica.bus.admin import check_broker
from eroica.bus.config import full_name
from eroica.schemas.errors import BrokerError, MissingDependency, extra_missing
from eroica.schemas.settings import EroicaSettings

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0
"""A worker that has not ended so long after SIGTERM (its broker is away) is ended: what it did not commit is read again."""
GC_ALLOCATIONS = 50_000
"""Allocations between two looks of the garbage collector; Python's 700 is for programs that keep what they make."""
QUIET = ("faust", "mode", "aiokafka")
"""Libraries that tell every rebalance at length; their warnings are kept."""


def run_detect(settings: EroicaSettings, *, workdir: Path | None = None) -> int:
    """Run detect until SIGTERM or SIGINT. Returns the exit code: 0 after a signal, 4 for broker trouble.

    :raises BrokerError: broker unreachable or a topic missing.
    :raises MissingDependency: Faust is not installed.
    """
    _need_faust()
    from eroica.streams.detect_app import detect_shell

    _check_topics(settings, ("jobs", "iterations", "partials", "control", "iterations.dlq", "partials.dlq"))
    return _run(detect_shell(settings, workdir), workdir)


def run_group(settings: EroicaSettings, *, workdir: Path | None = None) -> int:
    """Run group until SIGTERM or SIGINT; as :func:`run_detect`."""
    _need_faust()
    from eroica.streams.group_app import group_shell

    _check_topics(settings, ("control", "summaries", "groups", "control.dlq", "summaries.dlq"))
    return _run(group_shell(settings, workdir), workdir)


def _check_topics(settings: EroicaSettings, topics: tuple[str, ...]) -> None:
    present = check_broker(settings.kafka).topics
    missing = [name for topic in topics if (name := full_name(settings.kafka, topic)) not in present]
    if missing:
        raise BrokerError(
            f"topics are missing: {', '.join(missing)}",
            where=settings.kafka.bootstrap,
            do="create them with: eroica topics ensure",
        )


def _need_faust() -> None:
    try:
        import faust  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise MissingDependency(f"the stream processors need Faust ({error})", do=extra_missing("streams")) from error


def _run(shell: Any, workdir: Path | None) -> int:
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
        code = end.code if isinstance(end.code, int) else 1
        return 0 if code == 0 else BrokerError.exit_code
    finally:
        shell.close()
    return 0


def _end_later() -> None:
    timer = threading.Timer(STOP_TIMEOUT_S, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    print("the worker did not end in time; it will read its last messages again", file=sys.stderr, flush=True)
    os._exit(0)
