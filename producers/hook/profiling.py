"""Profiles the training thread on command: torch.profiler from one iteration's boundary to another, then the trace to a file.

The collector starts and stops in the main thread, between iterations. The file is written by a thread, so that the device and
everything that does not hold the interpreter lock runs on meanwhile. Kineto holds that lock while it writes, so
``blocked_ms`` counts the writing as well: it is an upper bound of what the training thread lost.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from eroica.producers.hook.command import ProfileCommand
from eroica.producers.hook.guard import Guard
from eroica.producers.hook.pauses import GcPauses
from eroica.producers.hook.userprofiler import UserProfilers

SEEN_REQUESTS = 64
EXPORT_WAIT_S = 30.0
"""At exit a trace that is being written is waited for this long."""
TEARDOWN_CUDA = (12, 6)
"""From this CUDA on the CUPTI teardown is safe with CUDA graphs (pytorch #112507, kineto #1264)."""


class _Session:
    """One profile that runs."""

    def __init__(self, command: ProfileCommand, torch: Any, step: int) -> None:
        self.command = command
        self.first_step = step
        self.steps: list[dict[str, int]] = []
        self.pauses = GcPauses()
        self.start_stop_ns = 0
        self.started_wall_ns = 0
        self.started_ns = 0
        self.step_started_ns = 0
        self.annotation: Any = None
        self.torch = torch
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
            _allow_teardown(torch)
        self.collector = profiler._KinetoProfile(activities=activities, with_stack=command.with_stack)

    def start(self) -> None:
        """Begin to collect, in this thread."""
        if "torch._inductor" in sys.modules:
            self.collector.prepare_trace()
        else:
            # prepare_trace() would import the compiler only to ask whether it uses CUDA graphs: seconds in a program without it.
            self.collector.profiler = self.torch.autograd.profiler.profile(
                use_cpu=True, use_device=self.collector.use_device, with_stack=self.command.with_stack, use_kineto=True
            )
            self.collector.profiler._prepare_trace()
        self.collector.start_trace()

    def annotate(self, step: int, now_ns: int) -> None:
        """Open the mark ``ProfilerStep#<step>``."""
        self.step_started_ns = now_ns
        self.annotation = self.torch.profiler.record_function(f"ProfilerStep#{step}")
        self.annotation.__enter__()

    def close_annotation(self, now_ns: int) -> None:
        """Close the mark of the step that ends, and note its length."""
        if self.annotation is not None:
            self.annotation.__exit__(None, None, None)
            self.annotation = None
            number = self.first_step + len(self.steps)
            self.steps.append({"step": number, "duration_ns": now_ns - self.step_started_ns})


class Profiling:
    """At most one profile at a time; a request is served once, however often it is asked for.

    :param report: called with the fields of the ``profiled`` message; from the export thread too.
    :param users: knows of torch profilers of the program's own, which come first.
    """

    def __init__(self, report: Callable[[dict[str, Any]], None], users: UserProfilers, rank: Callable[[], int]) -> None:
        self.active = False
        """True while a profile collects; read on the hot path."""
        self.pending: ProfileCommand | None = None
        self._report = report
        self._users = users
        self._rank = rank
        self._session: _Session | None = None
        self._export: threading.Thread | None = None
        self._seen: deque[str] = deque(maxlen=SEEN_REQUESTS)
        users.on_start = self._give_way

    def ask(self, command: ProfileCommand) -> None:
        """Take a command; it starts at the boundary of its step."""
        if command.request in self._seen:
            return
        self._seen.append(command.request)
        if self.busy:
            self._fail(command, "another profile is pending, running or being written")
        else:
            self.pending = command

    @property
    def busy(self) -> bool:
        """True while a profile is pending, running or being written."""
        return self.pending is not None or self.active or (self._export is not None and self._export.is_alive())

    def boundary(self, step: int, torch: Any) -> None:
        """Iteration *step* begins now, in this thread: stop what is complete, start what is due."""
        if self._session is not None:
            self._continue(self._session, step)
        elif self.pending is not None and step >= self.pending.start_step:
            command, self.pending = self.pending, None
            self._start(command, step, torch)

    def overdue(self) -> bool:
        """Stop a profile that outlasts its longest duration although no boundary came; true if one was stopped."""
        session = self._session
        if session is None or self._elapsed_ms(session) <= session.command.max_duration_ms:
            return False
        self._stop(session)
        return True

    def finish(self) -> None:
        """The process ends: keep what was profiled, drop what has not begun, wait a bounded time for the file."""
        self.pending = None
        if self._session is not None:
            self._stop(self._session)
        if self._export is not None:
            self._export.join(EXPORT_WAIT_S)

    def _start(self, command: ProfileCommand, step: int, torch: Any) -> None:
        problem = self._obstacle(command)
        if problem:
            self._fail(command, problem)
            return
        before_ns = time.perf_counter_ns()
        try:
            session = _Session(command, torch, step)
            with self._users.ours():
                session.start()
        except Exception as error:
            self._fail(command, f"torch.profiler did not start: {error}")
            raise
        self._session = session
        self.active = True
        session.pauses.start()
        session.started_wall_ns = time.time_ns()
        session.started_ns = time.perf_counter_ns()
        session.start_stop_ns = session.started_ns - before_ns
        session.annotate(step, session.started_ns)

    def _obstacle(self, command: ProfileCommand) -> str:
        if threading.current_thread() is not threading.main_thread():
            return "the training loop does not run in the main thread, where torch.profiler must be started"
        if self._users.running():
            return "the program's own torch.profiler is running"
        if not os.access(command.directory, os.W_OK | os.X_OK):
            return f"directory {command.directory} does not exist or cannot be written"
        return ""

    def _continue(self, session: _Session, step: int) -> None:
        session.close_annotation(time.perf_counter_ns())
        command = session.command
        longest_ms = command.duration_ms or command.max_duration_ms
        elapsed_ms = self._elapsed_ms(session)
        complete = bool(command.steps) and len(session.steps) >= command.steps
        if complete or elapsed_ms >= min(longest_ms, command.max_duration_ms):
            self._stop(session)
        else:
            session.annotate(step, time.perf_counter_ns())

    def _elapsed_ms(self, session: _Session) -> float:
        return (time.perf_counter_ns() - session.started_ns) / 1e6

    def _stop(self, session: _Session) -> None:
        self._session = None
        self.active = False
        before_ns = time.perf_counter_ns()
        ended_wall_ns = time.time_ns()
        session.pauses.stop()
        try:
            session.close_annotation(before_ns)
            with self._users.ours():
                session.collector.stop_trace()
        except Exception as error:
            self._fail(session.command, f"torch.profiler did not stop: {error}")
            raise
        session.start_stop_ns += time.perf_counter_ns() - before_ns
        self._export = threading.Thread(target=self._write, args=(session, ended_wall_ns), name="eroica-trace", daemon=True)
        self._export.start()

    def _give_way(self) -> None:
        """The program starts a profiler of its own: ours ends at once, for torch allows one."""
        session = self._session
        if session is None:
            return
        self._session = None
        self.active = False
        session.pauses.stop()
        self._fail(session.command, "given up: the program started its own torch.profiler")
        with suppress(Exception):
            session.close_annotation(time.perf_counter_ns())
        with self._users.ours():
            session.collector.stop_trace()

    def _write(self, session: _Session, ended_wall_ns: int) -> None:
        command = session.command
        rank = self._rank()
        target = Path(command.directory) / f"rank{rank}.json"
        part = target.with_name(f".rank{rank}-{os.getpid()}.part.json")
        side = target.with_suffix(".side.json")
        before_ns = time.perf_counter_ns()
        attempt = Guard()
        with attempt:
            session.collector.export_chrome_trace(str(part))
            session.collector.profiler = None
            export_ns = time.perf_counter_ns() - before_ns
            _check_complete(part)
            _write_json(
                side,
                {
                    "pauses": [session.pauses.summary()],
                    "steps": session.steps,
                    "start_stop_ms": round(session.start_stop_ns / 1e6, 3),
                    "export_ms": round(export_ns / 1e6, 3),
                },
            )
            part.replace(target)
            self._report(
                {
                    **self._result(command),
                    "path": str(target),
                    "first_step": session.first_step,
                    "last_step": session.first_step + len(session.steps) - 1,
                    "late_by": max(0, session.first_step - command.start_step),
                    "blocked_ms": round((session.start_stop_ns + export_ns) / 1e6, 3),
                    "started_wall_ns": session.started_wall_ns,
                    "ended_wall_ns": ended_wall_ns,
                }
            )
        if attempt.failures:
            for path in (part, side, target):
                with suppress(OSError):
                    path.unlink()
            self._fail(command, f"trace not written: {attempt.last}")

    def _result(self, command: ProfileCommand) -> dict[str, Any]:
        return {
            "request": command.request,
            "path": "",
            "first_step": -1,
            "last_step": -1,
            "late_by": 0,
            "blocked_ms": 0.0,
            "started_wall_ns": 0,
            "ended_wall_ns": 0,
            "error": "",
        }

    def _fail(self, command: ProfileCommand, error: str) -> None:
        self._report({**self._result(command), "error": error[:500]})


def _check_complete(path: Path) -> None:
    """Kineto says nothing when the disk is full, but then the closing brace is missing.

    :raises OSError: if the file is cut off.
    """
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 16))
        if not stream.read().rstrip().endswith(b"}"):
            raise OSError(f"{path} is cut off; is the file system full?")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Write under another name first, so that a reader never sees half a file."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)


def _allow_teardown(torch: Any) -> None:
    """Let Kineto take CUPTI down afterwards; otherwise every later kernel launch stays 10-20 % slower (pytorch #144455).

    Newer torch does so by itself; a value that the user has set stands.
    """
    version = str(getattr(torch.version, "cuda", "") or "").split(".")
    known = len(version) >= 2 and version[0].isdigit() and version[1].isdigit()
    if known and (int(version[0]), int(version[1])) >= TEARDOWN_CUDA:
        os.environ.setdefault("TEARDOWN_CUPTI", "1")
