"""Profiles the training thread on command: torch.profiler from one iteration's boundary to another, then the trace to a file.

The collector starts and stops in the main thread, between iterations. The file is written by a thread, so that the device and
everything that does not hold the interpreter lock runs on meanwhile. Kineto holds that lock while it writes, so
``blocked_ms`` counts the writing as well: it is an upper bound of what the training thread lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from eroica.producers.hook.command import ProfileCommand
from eroica.producers.hook.guard import Guard
from eroica.producers.hook.said import Said
from eroica.producers.hook.session import Session
from eroica.producers.hook.tracefile import check_complete, write_json
from eroica.producers.hook.userprofiler import UserProfilers

EXPORT_WAIT_S = 30.0
"""At exit a trace that is being written is waited for this long."""


class Profiling:
    """At most one profile at a time; a request is served once, however often it is asked for.

    :param report: called with the fields of the ``profiled`` message; from the export thread too.
    :param users: knows of torch profilers of the program's own, which come first.
    :param usual_cpu_ns: processor time of the training thread that a step took of late, up to the given step; 0: unknown.
    """

    def __init__(
        self,
        report: Callable[[dict[str, Any]], None],
        users: UserProfilers,
        rank: Callable[[], int],
        usual_cpu_ns: Callable[[int], float] = lambda step: 0.0,
    ) -> None:
        self.active = False
        """True while a profile collects; read on the hot path."""
        self.pending: ProfileCommand | None = None
        self._users = users
        self._rank = rank
        self._session: Session | None = None
        self._export: threading.Thread | None = None
        self._usual_cpu_ns = usual_cpu_ns
        self._expires_ns = 0
        self._notes: tuple[str, ...] = ()
        self._wasted_ns = 0
        """What an attempt with stacks has cost that was thrown away."""
        self._said = Said(report)
        users.on_start = self._give_way

    def ask(self, command: ProfileCommand) -> None:
        """Take a command; it starts at the boundary of its step. One that was answered is answered again: whoever asks twice
        is an agent whose predecessor died with the answer.
        """
        if self._said.before(command):
            return
        self._expire()
        if self.busy:
            self._fail(command, "another profile is pending, running or being written")
        else:
            self._wait(command, 0)

    @property
    def busy(self) -> bool:
        """True while a profile is pending, running or being written."""
        return self.pending is not None or self.active or (self._export is not None and self._export.is_alive())

    def boundary(self, step: int, torch: Any) -> None:
        """Iteration *step* begins now, in this thread: stop what is complete, start what is due."""
        if self._session is not None:
            self._continue(self._session, step)
        elif not self._expire() and self.pending is not None and step >= self.pending.start_step:
            command, self.pending = self.pending, None
            self._start(command, step, torch)

    def receive_waits(self, name: str, ranks: Sequence[int], waits_us: Any) -> None:
        """See :func:`eroica.producers.hook.record_receive_waits`; nothing unless a profile collects.

        :raises ValueError, TypeError, OverflowError: as :meth:`ReceiveWaits.add`.
        """
        session = self._session
        if session is not None:
            session.receive.add(name, ranks, waits_us)

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

    def _wait(self, command: ProfileCommand, wasted_ns: int, *notes: str) -> None:
        self._notes = notes
        self._wasted_ns = wasted_ns
        self._expires_ns = time.monotonic_ns() + command.expires_ms * 1_000_000
        self.pending = command

    def _expire(self) -> bool:
        """Give up a command whose step has not come in time; true if one was given up."""
        command = self.pending
        if command is None or time.monotonic_ns() < self._expires_ns:
            return False
        self.pending = None
        self._fail(command, f"given up: step {command.start_step} was not reached within {command.expires_ms / 1e3:g} s")
        return True

    def _again(self, command: ProfileCommand, wasted_ns: int, why: str) -> None:
        """The same profile once more without stacks, from the next boundary on."""
        self._wait(command._replace(with_stack=False), wasted_ns, f"profiled without stacks: {why}")

    def _start(self, command: ProfileCommand, step: int, torch: Any) -> None:
        problem = self._obstacle(command)
        if problem:
            self._fail(command, problem)
            return
        before_ns = time.perf_counter_ns()
        try:
            session = Session(command, torch, step, self._usual_cpu_ns(step))
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

    def _continue(self, session: Session, step: int) -> None:
        session.close_annotation(time.perf_counter_ns())
        command = session.command
        longest_ms = command.duration_ms or command.max_duration_ms
        elapsed_ms = self._elapsed_ms(session)
        done = len(session.steps) / command.steps if command.steps else elapsed_ms / longest_ms
        if session.stacks_too_dear(done):
            before_ns = time.perf_counter_ns()
            self._discard(session)
            wasted_ns = session.start_stop_ns + time.perf_counter_ns() - before_ns
            self._again(command, wasted_ns, "with them a step of this rank takes too much longer, for it makes too many calls")
            self.boundary(step, session.torch)
            return
        complete = bool(command.steps) and len(session.steps) >= command.steps
        if complete or elapsed_ms >= min(longest_ms, command.max_duration_ms):
            self._stop(session)
        else:
            session.annotate(step, time.perf_counter_ns())

    def _elapsed_ms(self, session: Session) -> float:
        return (time.perf_counter_ns() - session.started_ns) / 1e6

    def _stop(self, session: Session) -> None:
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
        if session is not None:
            self._fail(session.command, "given up: the program started its own torch.profiler")
            self._discard(session)

    def _discard(self, session: Session) -> None:
        """End a profile that nobody will read."""
        self._session = None
        self.active = False
        session.pauses.stop()
        with suppress(Exception):
            session.close_annotation(time.perf_counter_ns())
        with self._users.ours():
            session.collector.stop_trace()
        session.collector.profiler = None

    def _write(self, session: Session, ended_wall_ns: int) -> None:
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
            check_complete(part)
            size = part.stat().st_size
            if command.with_stack and 0 < command.max_trace_bytes < size:
                part.unlink()
                why = f"with them the trace has {size / 1e6:.1f} MB, more than the {command.max_trace_bytes / 1e6:.1f} allowed"
                self._again(command, session.start_stop_ns + export_ns, why)
                return
            write_json(
                side,
                {
                    "pauses": [session.pauses.summary()],
                    "receive_waits": session.receive.summary(),
                    "steps": session.steps,
                    "start_stop_ms": round(session.start_stop_ns / 1e6, 3),
                    "export_ms": round(export_ns / 1e6, 3),
                },
            )
            part.replace(target)
            self._said.say(
                command,
                {
                    **self._result(command),
                    "path": str(target),
                    "first_step": session.first_step,
                    "last_step": session.first_step + len(session.steps) - 1,
                    "late_by": max(0, session.first_step - command.start_step),
                    "blocked_ms": round((self._wasted_ns + session.start_stop_ns + export_ns) / 1e6, 3),
                    "started_wall_ns": session.started_wall_ns,
                    "ended_wall_ns": ended_wall_ns,
                    "notes": list(self._notes),
                },
            )
        if attempt.failures:
            for path in (part, side, target):
                with suppress(OSError):
                    path.unlink()
            self._fail(command, f"trace not written: {attempt.last}")

    def _result(self, command: ProfileCommand) -> dict[str, Any]:
        return {
            "request": command.request,
            "attempt": command.attempt,
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
        self._said.say(command, {**self._result(command), "error": error[:500]})
