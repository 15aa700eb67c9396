"""Where commands write: results on standard output, progress and logs on standard error, plain when nobody looks."""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Any

from eroica.consumers.text import clean

if TYPE_CHECKING:
    from rich.console import Console

LOG_LEVEL = "EROICA_LOG_LEVEL"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def out(*, markup: bool = False) -> Console:
    """Standard output for people; emoji codes in texts mean nothing, nor does markup unless asked for."""
    from rich.console import Console

    class Out(Console):
        def on_broken_pipe(self) -> None:
            """Tell the command; rich would end it with exit code 1."""
            raise BrokenPipeError(errno.EPIPE, "the reader of standard output is gone")

    return Out(markup=markup, emoji=False, highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Standard error for people: progress and hints."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=not sys.stderr.isatty())


def reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def forget_reader() -> None:
    """Send what is still to be written to standard output nowhere, so that the end of the process is a quiet one."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_json(value: Any) -> None:
    """One JSON object on one line of standard output."""
    sys.stdout.write(json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_bytes(raw: bytes) -> None:
    """An encoded message as it stands on its topic, on one line."""
    sys.stdout.buffer.write(raw + b"\n")
    sys.stdout.flush()


class PlainLines(logging.Formatter):
    """A line for people: names of jobs and hosts stand in logs too, and a terminal obeys what is in them."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        return clean(super().format(record), 20_000)


class JsonLines(logging.Formatter):
    """One JSON object a log record, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = clean(self.formatException(record.exc_info), 20_000)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging() -> None:
    """Logs of a service on standard error: lines for people on a terminal, JSON lines elsewhere.

    ``EROICA_LOG_LEVEL`` sets the level.
    """
    handler = logging.StreamHandler(sys.stderr)
    plain = PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(plain if sys.stderr.isatty() else JsonLines())
    level = os.environ.get(LOG_LEVEL, "info").upper()
    logging.basicConfig(level=level if level in _LEVELS else "INFO", handlers=[handler], force=True)
    for noisy in ("faust", "aiokafka", "mode"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
