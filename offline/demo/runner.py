"""Playing the demo: broker, services, agents, a real training job; then the fault, and the wait for the verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from eroica.consumers.manual import find_job, find_progress, plan_request, send_request
from eroica.offline.demo.narrate import Narrator
from eroica.offline.demo.processes import Processes
from eroica.offline.demo.result import DemoResult
from eroica.offline.demo.scenario import HEALTHY_STEPS, Scenario, mistakes
from eroica.offline.demo.stage import SERVICES, Say, Stage, clean, prepare, require, start_all
from eroica.offline.demo.watch import Watcher
from eroica.offline.record import record
from eroica.schemas.errors import EroicaError, extra_missing
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.verdicts import Verdict
from eroica.schemas.wording import say_count

_TICK_S = 0.2

Wait = Callable[[str], None]


class DemoFailed(EroicaError):
    """The demo came to no verdict; the logs of its processes are kept (exit code 1)."""

    exit_code = 1


def run_demo(
    scenario: Scenario,
    settings: EroicaSettings,
    arguments: list[str],
    *,
    external: bool,
    own_prefix: bool,
    record_to: Path | None = None,
    timeout_s: float = 300.0,
    say: Say,
    waiting: Wait = lambda _: None,
) -> DemoResult:
    """Play *scenario* and return its verdict.

    :param arguments: options that give the processes the same settings, except for broker and prefix.
    :param external: use the broker of *settings* in place of an embedded one.
    :param own_prefix: on an external broker, work under a prefix of our own and delete its topics at the end.
    :param say: told what happens, a line at a time.
    :param waiting: told what is being waited for.

    Whatever happens, every process is ended and every file removed before this returns or raises; only after a failure
    the logs stay, and the error says where.

    :raises DemoFailed: a process ended, or no verdict came within *timeout_s*.
    :raises MissingDependency: torch, Faust or the embedded broker is not installed.
    :raises BrokerError: the external broker cannot be used.
    """
    require("torch", f"the training job of the demo needs it; {extra_missing('demo')}")
    require("faust", f"detect and group need it; {extra_missing('demo')}")
    begun = time.monotonic()

    def tell(line: str) -> None:
        say(f"[{time.monotonic() - begun:5.1f} s] {line}")

    with contextlib.ExitStack() as stack, _undisturbed_end(stack):
        folder = Path(tempfile.mkdtemp(prefix=f"eroica-demo-{os.getpid()}-"))
        keep_logs: list[bool] = []
        stack.callback(clean, folder, keep_logs)
        stage = prepare(stack, folder, settings, arguments, external, own_prefix, tell)
        processes = Processes(folder / "logs")
        stack.callback(processes.stop)
        try:
            start_all(stage, scenario, processes, tell)
            play = _Play(scenario, stage, processes, tell, waiting, deadline=begun + timeout_s)
            verdict, seconds = play.run(stack)
        except EroicaError as error:
            keep_logs.append(True)
            raise DemoFailed(error.what, where=error.where, do=f"{error.do}; the logs are in {folder / 'logs'}") from error
        if record_to is not None:
            waiting("recording")
            counts = record(stage.settings, stage.job, record_to)
            tell(f"recorded {say_count(sum(counts.values()), 'message')} to {record_to}")
        waiting("cleaning up")
    return DemoResult(scenario, verdict, mistakes(scenario, verdict), seconds, time.monotonic() - begun)


@contextlib.contextmanager
def _undisturbed_end(stack: contextlib.ExitStack) -> Iterator[None]:
    """Clean up when the body has ended, however it did, deaf to a second Ctrl-C or SIGTERM meanwhile: it is bounded."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    try:
        yield
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            stack.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Play:
    """The course of the demo once everything has been started."""

    def __init__(self, scenario: Scenario, stage: Stage, processes: Processes, tell: Say, waiting: Wait, deadline: float) -> None:
        self._scenario, self._stage, self._processes = scenario, stage, processes
        self._tell, self._waiting, self._deadline = tell, waiting, deadline
        self._narrator = Narrator()

    def run(self, stack: contextlib.ExitStack) -> tuple[Verdict, float]:
        """Healthy steps, the fault (or the request by hand), the verdict and how long it took."""
        watcher = Watcher(self._stage.settings.kafka, self._stage.job)
        stack.callback(watcher.close)
        narrator = self._narrator
        self._until(watcher, "the services", lambda: all("ready" in self._processes.log(name) for name in SERVICES))
        self._tell("detect, group and localize are ready")
        self._until(watcher, "the job's first steps (importing torch takes most of it)", lambda: narrator.last_step >= 0)
        self._until(watcher, "healthy steps", lambda: narrator.last_step >= HEALTHY_STEPS)
        triggered, triggered_us = time.monotonic(), time.time_ns() // 1_000
        if self._scenario.fault == "none":
            wanted = self._ask_by_hand()
        else:
            (self._stage.folder / "signals" / "fault").touch()
            self._tell(f">>> rank {self._scenario.fault_rank} is slowed down from here on: {self._scenario.fault}")
            wanted = ""

        def arrived() -> Verdict | None:
            """The verdict on what was done: one on an alarm of before does not count, nor one that nobody complained for."""
            for name, verdict in narrator.verdicts.items():
                request = narrator.requests.get(name)
                late = request is not None and request.issued_at_us >= triggered_us and request.reason != "scheduled"
                if name == wanted or (not wanted and late):
                    return verdict
            return None

        self._until(watcher, "the verdict", lambda: arrived() is not None)
        verdict = arrived()
        assert verdict is not None
        return verdict, time.monotonic() - triggered

    def _ask_by_hand(self) -> str:
        settings, job = self._stage.settings, self._stage.job
        view = find_job(settings.kafka, job)
        progress = find_progress(settings.kafka, view, now_ms=time.time_ns() // 1_000_000)
        steps = settings.detect.profile_steps or 5
        request = plan_request(view, progress, settings.detect, now_us=time.time_ns() // 1_000, steps=steps)
        send_request(settings.kafka, request)
        self._tell(f">>> nothing is slowed down; a profile is asked for by hand: {request.request}")
        return request.request

    def _until(self, watcher: Watcher, what: str, done: Callable[[], bool]) -> None:
        """Tell what comes until *done*.

        :raises EroicaError: a process ended, or the time is over.
        """
        self._waiting(f"waiting for {what}")
        looked_at = 0.0
        while not done():
            message = watcher.next(_TICK_S)
            if message is not None:
                for line in self._narrator.feed(message):
                    self._tell(line)
            if time.monotonic() - looked_at > _TICK_S:
                looked_at = time.monotonic()
                self._processes.require_alive()
            if time.monotonic() > self._deadline:
                raise EroicaError(f"the time is over while waiting for {what}", do="give it longer with --timeout")
