"""Where commands write: results on standard output, progress and logs on standard error, plain when nobody looks."""

from __future__ import annotations

import codecs
import errno
import io
import json
import logging
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Any

from eroica.cli.repeats import FewRepeats
from eroica.consumers.text import CONTROL, clean

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


def prepare_streams() -> None:
    """Make the standard streams such that no text and no caller can break them.

    What the encoding lacks becomes a question mark, and a stream that the caller closed leads nowhere: the next file that is
    opened would have its number, and get what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  # open to the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or not _holds_all(stream)):
            stream.reconfigure(errors="replace")


def _holds_all(stream: io.TextIOWrapper) -> bool:
    """Whether the encoding has every character; in the C locale it is ASCII, with a way out for bytes of names only."""
    return codecs.lookup(stream.encoding).name in ("utf-8", "utf-16", "utf-32")


def is_lost(error: OSError) -> bool:
    """Whether *error* means that standard output cannot be written, say to a full disk."""
    if error.filename is not None:
        return False
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"")
    except (OSError, ValueError):
        return True
    return False


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
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    sys.stdout.write(escape_controls(text) + "\n")
    sys.stdout.flush()


def print_bytes(raw: bytes) -> None:
    """An encoded message as it stands on its topic, on one line; on a terminal with what it would obey escaped."""
    if sys.stdout.isatty():
        raw = escape_controls(raw.decode("utf-8", "replace")).encode()
    sys.stdout.buffer.write(raw + b"\n")
    sys.stdout.flush()


def escape_controls(text: str) -> str:
    """JSON *text*, the same value, with the characters escaped that a terminal obeys or hides."""
    return CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


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
    handler.addFilter(FewRepeats())
    level = os.environ.get(LOG_LEVEL, "info").upper()
    logging.basicConfig(level=level if level in _LEVELS else "INFO", handlers=[handler], force=True)
    for noisy in ("faust", "aiokafka", "mode"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
