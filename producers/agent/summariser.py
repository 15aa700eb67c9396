"""Traces become summaries in processes of their own, at the lowest priority and within bounds."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from eroica.producers.agent.hardware import Window
from eroica.producers.agent.profiles import Pending
from eroica.schemas.codec import decode
from eroica.schemas.errors import SchemaError
from eroica.schemas.settings import AgentSettings
from eroica.schemas.summaries import Identity, Summary, SummaryError

_log = logging.getLogger(__name__)

NICE = 19
GRACE_S = 10.0
"""The process ends itself at its time limit; if it cannot, it is ended after this."""
MEMORY_BASE_BYTES = 3 * 2**30
MEMORY_PER_TRACE_BYTE = 12
"""Address space: libraries reserve some GB that they never touch; a trace takes several times its size."""
MAX_OUTPUT_BYTES = 1_000_000
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Task:
    """A trace to summarise; see ``python -m eroica.producers.trace``."""

    who: Identity
    path: Path
    late_by_steps: int
    blocked_ms: float
    ended_at_us: int
    window: Callable[[], Window] = Window
    """What the hardware did meanwhile. Called in the thread that summarises: it may wait for the sample after the window."""
    notes: tuple[str, ...] = ()
    pending: Pending | None = None
    """The profile that it came from."""
    trace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a task: an encoded ``Summary`` or ``SummaryError`` of its rank, or the reason why there is none."""

    task: Task
    raw: bytes
    error: str = ""


class Summariser:
    """Runs at most ``summary_processes`` at once; the rest wait in order. Results come by callback from a thread of the pool."""

    def __init__(self, settings: AgentSettings, report: Callable[[Done], None]) -> None:
        self._settings = settings
        self._report = report
        self._pool = ThreadPoolExecutor(settings.summary_processes, thread_name_prefix="eroica-summary")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, task: Task) -> None:
        """Summarise *task*; reports exactly once, unless the summariser is closed first."""
        self._pool.submit(self._work, task)

    def close(self) -> None:
        """End what runs and forget what waits."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            with suppress(OSError):
                process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _work(self, task: Task) -> None:
        try:
            done = self._run(task)
        except OSError as error:
            done = Done(task, b"", f"the summariser did not start: {error}")
        except Exception as error:  # noqa: BLE001 - a thread's last line: the rank must be heard whatever went wrong
            done = Done(task, b"", f"the summariser could not be run: {type(error).__name__}: {error}")
        if not self._closed:
            self._report(done)

    def _run(self, task: Task) -> Done:
        limit_ms = self._settings.summary_timeout_ms
        command = [
            sys.executable, "-m", "eroica.producers.trace", str(task.path),
            "--timeout-ms", str(limit_ms),
            "--max-trace-bytes", str(self._settings.trace_max_bytes),
            "--max-memory-bytes", str(memory_limit_bytes(task.path.stat().st_size, psutil.virtual_memory().total)),
            "--nice", str(NICE),
        ]  # fmt: skip
        environment = {**os.environ, **_THREADS, "EROICA_HOOK": "0"}
        with self._lock:
            if self._closed:
                return Done(task, b"", "the agent is ending")
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd="/"
            )
            self._running.add(process)
        try:
            raw, complaint = process.communicate(_job(task), timeout=limit_ms / 1_000 + GRACE_S)
        except subprocess.TimeoutExpired:
            return Done(task, b"", f"the summariser did not end within {limit_ms} ms and was ended")
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
            with self._lock:
                self._running.discard(process)
        if process.returncode != 0:
            last = complaint.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
            return Done(task, b"", f"the summariser ended with code {process.returncode}: {last[0][:200]}")
        return _checked(task, raw)


def memory_limit_bytes(trace_bytes: int, total_bytes: int) -> int:
    """Address space for a summariser: grows with the trace, never above half of the machine (but enough to start at all)."""
    wanted = MEMORY_BASE_BYTES + MEMORY_PER_TRACE_BYTE * trace_bytes
    return max(MEMORY_BASE_BYTES, min(wanted, total_bytes // 2))


def _job(task: Task) -> bytes:
    try:
        window = task.window()
    except Exception as error:  # noqa: BLE001 - figures beside the trace never cost the summary
        window = Window(notes=(f"no hardware figures: {type(error).__name__}: {error}"[:300],))
    job = {
        "who": task.who,
        "late_by_steps": task.late_by_steps,
        "blocked_ms": task.blocked_ms,
        "ended_at_us": task.ended_at_us,
        "metrics": list(window.metrics),
        "levels": list(window.series),
        "notes": [*task.notes, *window.notes],
    }
    return msgspec.json.encode(job)


def _checked(task: Task, raw: bytes) -> Done:
    """The summariser read a file that a training process wrote: what it says is checked before it is sent in our name."""
    if len(raw) > MAX_OUTPUT_BYTES:
        return Done(task, b"", f"the summary has {len(raw)} bytes, which is too large")
    try:
        message = decode("summaries", raw)
    except SchemaError as error:
        return Done(task, b"", f"the summariser wrote no summary: {error.what}")
    if not isinstance(message, Summary | SummaryError) or message.who != task.who:
        return Done(task, b"", "the summariser wrote something else than this rank's summary")
    return Done(task, raw)
