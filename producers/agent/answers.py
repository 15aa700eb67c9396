"""Serving requests: commands to the hooks, traces to summaries, stacks from outside; each rank is heard exactly once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from eroica.producers.agent.announce import Announcer
from eroica.producers.agent.answered import Answered
from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hardware import Hardware
from eroica.producers.agent.hoststate import HostState
from eroica.producers.agent.launches import Run, Worker
from eroica.producers.agent.openrequests import OpenRequests
from eroica.producers.agent.profiles import (
    Pending,
    Profiled,
    Profiles,
    deadline_us,
    failure,
    identity_of,
    profile_command,
    summary_key,
    without_stacks,
)
from eroica.producers.agent.requests import starts_too_late
from eroica.producers.agent.server import DatagramServer
from eroica.producers.agent.stacks import Stacks, dump_stacks
from eroica.producers.agent.summariser import Done, Summariser, Task
from eroica.producers.agent.traces import TraceStore
from eroica.schemas.codec import encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.outputs import Output
from eroica.schemas.settings import AgentSettings
from eroica.schemas.summaries import Identity, StackEvidence
from eroica.schemas.wording import say_count

_log = logging.getLogger(__name__)

STACK_DUMPS = 2
"""Ranks whose stacks are taken at once."""

SendRaw = Callable[[str, str, bytes, str, int], None]
"""Topic, key, value, kind, event time in µs."""


class Answers:
    """What this host says to requests. Owned by the main loop; results of other threads come back through *inbox*."""

    def __init__(
        self,
        settings: AgentSettings,
        host: str,
        state: HostState,
        announcer: Announcer,
        server: DatagramServer,
        counters: Counters,
        inbox: Callable[[Callable[[], None]], None],
        send_raw: SendRaw,
        hardware: Hardware | None = None,
    ) -> None:
        self._settings = settings
        self._host = host
        self._state = state
        self._announcer = announcer
        self._server = server
        self._counters = counters
        self._inbox = inbox
        self._send_raw = send_raw
        self._profiles = Profiles()
        self._hardware = hardware or Hardware.of(settings)
        self._open = OpenRequests()
        self._answered = Answered(server.directory / "answered")
        self._traces = TraceStore(settings.trace_directory, server.directory / "traces")
        self._summariser = Summariser(settings, lambda done: inbox(lambda: self._summarised(done)))
        self._stack_pool = ThreadPoolExecutor(STACK_DUMPS, thread_name_prefix="eroica-stacks")
        self._now_us = 0
        """At the last tick."""
        self._tasks: dict[tuple[str, int], Task] = {}
        """Traces that are being summarised or wait for it, by request and process."""
        self._silent: set[str] = set()
        """Requests that a rank was given up for: its hook may write yet."""
        if self._traces.removed:
            _log.info("removed the traces that %d ended agents had left", self._traces.removed)

    @property
    def summarising(self) -> bool:
        """Whether traces are being summarised or wait for it."""
        return bool(self._tasks)

    def request(self, request: ProfileRequest, now_us: int, mono_ns: int) -> None:
        """Serve a new request for whatever ranks of its launch are here.

        :raises SchemaError: its classes or lengths make no sense.
        """
        self._open.add(request)
        self._ask_due(now_us, mono_ns, only=request.request)

    def _ask_due(self, now_us: int, mono_ns: int, only: str | None = None) -> None:
        asked: Counter[str] = Counter()
        for request, run, worker, cls in self._open.due(self._state.runs, self._answered, now_us, mono_ns, only):
            who = identity_of(run, worker, request.request, cls, self._host)
            asked[f"{request.request} ({request.reason}, {request.mode}) of job {run.job}"] += 1
            if request.mode == "stacks":
                self._take_stacks(run, worker, who, now_us, mono_ns)
            elif not worker.alive:
                how = "has ended" if worker.ended else "is gone without a goodbye"
                self._fail(who, f"the process {how}, so it cannot be profiled", now_us)
            elif starts_too_late(request, worker.last_step, worker.mean_us):
                ahead = request.start_step - worker.last_step
                self._fail(
                    who,
                    f"step {request.start_step} is {say_count(ahead, 'step')} ahead: nobody waits for its profile so long",
                    now_us,
                )
            else:
                self._ask(request, worker, who, now_us)
        if asked and self._profiles:
            self._hardware.want(self._state.living_pids())
        for what, count in asked.items():
            _log.info("request %s: %s here", what, say_count(count, "rank"))

    def profiled(self, answer: Profiled, now_us: int) -> None:
        """A hook wrote a trace, or says why not."""
        pending = self._profiles.answered(answer)
        ours = bool(answer.path) and self._traces.is_ours(answer.path, answer.request)
        if pending is None:
            known = self._state.worker_of(answer.pid)
            if self._traces.adopted and not (known and (answer.request, known[1].hello.rank) in self._answered):
                # Our predecessor asked for it. We do too once we have read the request, and hear it again.
                return
            self._counters.add("profiles_unasked")
            # It may be late: then nobody wants the file any more.
            if ours and (answer.request, answer.pid) not in self._tasks:
                self._traces.remove(Path(answer.path))
            return
        if answer.error or not answer.path:
            self._fail(pending.who, f"no profile: {answer.error or 'the process gave no reason'}", now_us)
            self._leave(answer.request)
            return
        if not ours:
            where = "that is there no more" if self._traces.was_ours(answer.path, answer.request) else "outside of its folder"
            self._fail(pending.who, f"the process named a trace {where}; it is not read", now_us)
            return
        end_us = answer.ended_wall_ns // 1_000 or now_us
        self._hardware.at_once()
        run = self._state.runs.get((pending.who.job, pending.who.run_id))
        problem = self._announcer.problem_of(run) if run is not None else ""
        task = Task(
            who=pending.who,
            path=Path(answer.path),
            late_by_steps=answer.late_by,
            blocked_ms=answer.blocked_ms,
            ended_at_us=end_us,
            window=partial(self._hardware.window, pending.who, answer.started_wall_ns // 1_000, end_us),
            notes=(*((problem[:500],) if problem else ()), *pending.notes, *answer.notes),
            pending=pending,
            trace_bytes=_size(Path(answer.path)),
        )
        self._tasks[(answer.request, answer.pid)] = task
        self._summariser.submit(task)

    def tick(self, now_us: int, mono_ns: int) -> None:
        """What is due: ranks that were not known before, commands again to sockets that were full, samples, deadlines."""
        self._now_us = now_us
        self._ask_due(now_us, mono_ns)
        if not self._profiles:
            return
        self._profiles.farewell(set(self._state.living_pids()), now_us)
        self._hardware.want(self._state.living_pids())
        for pending in self._profiles.unsent():
            pending.sent = bool(self._server.command(pending.who.pid, pending.command))
        for pending in self._profiles.overdue(now_us):
            known = self._state.worker_of(pending.who.pid)
            if not pending.sent:
                self._counters.add("commands_unsent")
            self._counters.add("profiles_unanswered")
            self._silent.add(pending.who.request)
            self._fail(pending.who, _why_unanswered(pending, known[1] if known else None), now_us)

    def tidy(self) -> None:
        """Remove what is left of requests that are done."""
        self._traces.tidy(self._profiles.requests() | self._open.ids() | {request for request, _ in self._tasks})
        self._silent &= self._open.ids()
        self._answered.forget(self._now_us)

    def close(self, now_us: int) -> None:
        """The agent ends: whoever still waits is told so, and no trace stays behind."""
        self._hardware.close()
        self._summariser.close()
        self._stack_pool.shutdown(wait=False, cancel_futures=True)
        for who in [p.who for p in self._profiles.give_up()] + [task.who for task in self._tasks.values()]:
            self._fail(who, "the host's agent was stopped before the profile was summarised", now_us)
        self._tasks.clear()
        self._traces.close()

    def _ask(self, request: ProfileRequest, worker: Worker, who: Identity, now_us: int) -> None:
        longest_ms = self._settings.max_profile_ms
        directory = str(self._traces.for_request(request.request))
        deadline = deadline_us(request, worker, longest_ms, now_us)
        pending = Pending(
            who=who,
            deadline_us=deadline,
            allowed_us=deadline - now_us,
            command=profile_command(
                request,
                directory,
                max_duration_ms=longest_ms,
                expires_ms=(deadline - now_us) // 1_000,
                max_trace_bytes=self._settings.trace_max_bytes,
            ),
        )
        if not self._profiles.ask(pending):
            self._fail(who, "too many profiles are under way on this host", now_us)

    def _summarised(self, done: Done) -> None:
        task = done.task
        if self._tasks.pop((task.who.request, task.who.pid), None) is not None:
            self._settle(done)
        # Last: an agent that is killed before finds the trace again.
        self._traces.remove(task.path)
        self._leave(task.who.request)

    def _leave(self, request: str) -> None:
        """Done with the request's folder, unless a hook of this host may still write there."""
        waited_for = self._profiles.requests() | {asked for asked, _ in self._tasks} | self._silent
        if request not in waited_for:
            self._traces.leave(request)

    def _settle(self, done: Done) -> None:
        task = done.task
        kind = "summary_error" if b'"kind":"summary_error"' in done.raw[:64] else "summary"
        if done.error:
            self._counters.add("summaries_failed")
        if (done.error or kind == "summary_error") and self._once_more(task, done.error):
            return
        if done.error:
            self._fail(task.who, done.error, task.ended_at_us)
            return
        self._send_raw("summaries", summary_key(task.who), done.raw, kind, task.ended_at_us)
        self._answered.add(task.who.request, task.who.rank, self._now_us)

    def _once_more(self, task: Task, error: str) -> bool:
        """Ask for a profile without stacks where that with stacks gave no summary; false where it cannot help."""
        known = self._state.worker_of(task.who.pid)
        if task.pending is None or known is None or not known[1].alive:
            return False
        again = without_stacks(task.pending, task.trace_bytes, error or "its trace could not be read", self._now_us)
        if again is None or not self._profiles.ask(again):
            return False
        self._counters.add("profiles_repeated")
        _log.warning("job %s, rank %d, request %s: %s", task.who.job, task.who.rank, task.who.request, again.notes[0])
        return True

    def _take_stacks(self, run: Run, worker: Worker, who: Identity, now_us: int, mono_ns: int) -> None:
        idle_us = max(0, (mono_ns - worker.event_mono_ns) // 1_000)
        if worker.gone or worker.ended:
            reason = "the process is gone without a goodbye" if worker.gone else "the process has ended"
            self._send_stacks(run, worker, who, Stacks([], reason), idle_us, now_us)
            return
        timeout_ms = self._settings.stacks_timeout_ms

        def work() -> None:
            stacks = dump_stacks(who.pid, timeout_ms)
            self._inbox(lambda: self._send_stacks(run, worker, who, stacks, idle_us, now_us))

        self._stack_pool.submit(work)

    def _send_stacks(self, run: Run, worker: Worker, who: Identity, stacks: Stacks, idle_us: int, now_us: int) -> None:
        evidence = StackEvidence(
            who=who,
            ended_at_us=now_us,
            last_step=worker.last_step,
            idle_us=idle_us,
            last_event=worker.last_event,
            threads=stacks.threads,
            error=stacks.error,
        )
        if stacks.error:
            _log.warning("job %s, rank %d: stacks: %s", run.job, who.rank, stacks.error)
        self._send(who, Output(summary_key(who), evidence, now_us))

    def _fail(self, who: Identity, error: str, now_us: int) -> None:
        _log.warning("job %s, rank %d, request %s: %s", who.job, who.rank, who.request, error)
        self._send(who, failure(who, error, now_us))

    def _send(self, who: Identity, output: Output) -> None:
        kind = str(type(output.message).__struct_config__.tag)
        self._send_raw(output.topic, output.key, encode(output.message), kind, output.event_time_us)
        self._answered.add(who.request, who.rank, max(self._now_us, output.event_time_us))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _why_unanswered(pending: Pending, worker: Worker | None) -> str:
    if worker is None or worker.gone:
        return "the process went away before its profile was written"
    if worker.ended:
        return "the process ended before its profile was written"
    if not pending.sent:
        return "the process did not take the command: it has not come to the end of an iteration"
    return f"the process did not profile in time; its last event was {worker.last_event} in step {worker.last_step + 1}"
