"""``python -m eroica.producers.trace FILE``: the summariser as a process of its own, so that a broken trace can hurt nobody else.

Reads one JSON object (:class:`Job`) from standard input or ``--job``, writes one encoded message to standard output: a
``Summary``, or a ``SummaryError`` for whatever went wrong. The exit code is 0 in both cases; only wrong use (2) writes
none.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import msgspec

from eroica.producers.trace.samples import SampleSeries
from eroica.producers.trace.settings import SummarySettings
from eroica.producers.trace.summarise import Extras, summarise
from eroica.schemas.codec import encode
from eroica.schemas.errors import EroicaError
from eroica.schemas.summaries import Identity, Metric, Summary, SummaryError

MAX_ERROR_CHARACTERS = 500


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent hands over."""

    who: Identity
    late_by_steps: int = 0
    blocked_ms: float = 0.0
    ended_at_us: int = 0
    """Event time for an error message; 0: the file's own time."""
    metrics: list[Metric] = msgspec.field(default_factory=list)
    levels: list[SampleSeries] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


class _TimeUp(Exception):
    """The time limit has passed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run once; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m eroica.producers.trace", description=__doc__)
    parser.add_argument("file", type=Path, help="trace, .json or .json.gz")
    parser.add_argument("--job", help="the job as JSON; without it standard input is read")
    parser.add_argument("--timeout-ms", type=int, default=120_000)
    parser.add_argument("--max-trace-bytes", type=int, default=SummarySettings().max_trace_bytes)
    parser.add_argument("--max-memory-bytes", type=int, default=0, help="address space of this process; 0: unlimited")
    parser.add_argument("--nice", type=int, default=10)
    options = parser.parse_args(argv)
    try:
        job = msgspec.json.decode(options.job if options.job else sys.stdin.buffer.read(), type=Job)
    except (msgspec.MsgspecError, UnicodeError) as error:
        parser.error(f"the job is not understood: {error}")
    with suppress(OSError):
        os.nice(max(0, options.nice))
    if options.max_memory_bytes > 0:
        resource.setrlimit(resource.RLIMIT_AS, (options.max_memory_bytes, options.max_memory_bytes))
    sys.stdout.buffer.write(encode(_run(options.file, job, options.timeout_ms, options.max_trace_bytes)))
    return 0


def _run(file: Path, job: Job, timeout_ms: int, max_trace_bytes: int) -> Summary | SummaryError:
    signal.signal(signal.SIGALRM, _time_up)
    signal.setitimer(signal.ITIMER_REAL, timeout_ms / 1e3)
    extras = Extras(job.late_by_steps, job.blocked_ms, tuple(job.metrics), (), tuple(job.levels), tuple(job.notes))
    try:
        return summarise(file, job.who, SummarySettings(max_trace_bytes=max_trace_bytes), extras)
    except EroicaError as error:
        reason = str(error)
    except _TimeUp:
        reason = f"the trace could not be summarised within {timeout_ms} ms"
    except MemoryError:
        reason = "the trace needs more memory than the summariser may use"
    except Exception as error:  # noqa: BLE001 - the last line of this process: whatever it is, the rank must be heard
        reason = f"the summariser failed: {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return SummaryError(who=job.who, error=reason[:MAX_ERROR_CHARACTERS], ended_at_us=job.ended_at_us or _file_time_us(file))


def _time_up(_signal: int, _frame: FrameType | None) -> None:
    raise _TimeUp


def _file_time_us(file: Path) -> int:
    try:
        return int(file.stat().st_mtime * 1e6)
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
