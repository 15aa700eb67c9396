"""The hook of one process: what the wrapped calls report becomes datagrams, and commands become profiles."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any

from eroica.producers.hook import hello, wire
from eroica.producers.hook.automaton import Automaton, Iteration
from eroica.producers.hook.command import parse_profile, request_id
from eroica.producers.hook.guard import Guard
from eroica.producers.hook.profiling import Profiling
from eroica.producers.hook.registry import Registry
from eroica.producers.hook.ring import BELL_WORD
from eroica.producers.hook.sender import Sender
from eroica.producers.hook.userprofiler import UserProfilers
from eroica.producers.hook.wire import ITERATION, LOADER_ENTER, LOADER_EXIT, OPTIMIZER_EXIT

COUNTERS_NS = 60_000_000_000
"""Counters are sent once a minute at most."""
NEWS_NS = 1_000_000_000
"""Whether hello must be said again (another process group, another signature) is looked at once a second at most."""
COMMANDS_A_STEP = 8
"""Commands read at one boundary; more wait for the next."""


class Recorder:
    """State of the hook in this process. The process counts as a rank from its first optimizer step (or mark) on.

    The callbacks may raise; their callers hold a :class:`Guard`. Only the training thread, the one of the first optimizer step,
    is listened to: loaders that other threads read ahead from belong to no iteration.
    """

    __slots__ = (
        "_connections",
        "_counters_ns",
        "_cpu_marks",
        "_gradients_on",
        "_introduce_ns",
        "_known",
        "_last_optimizer",
        "_last_symbol",
        "_marked",
        "_marked_ns",
        "_parameter_types",
        "_ring",
        "_started_ns",
        "_thread",
        "_wall_ns",
        "automaton",
        "guard",
        "loaders",
        "marking",
        "optimizers",
        "profiling",
        "rank",
        "sender",
        "torch",
    )

    def __init__(self, torch: Any, guard: Guard, users: UserProfilers) -> None:
        self.torch = torch
        self.guard = guard
        self.automaton = Automaton()
        self.sender = Sender(os.getpid())
        self._ring = self.sender.ring
        self._gradients_on: Callable[[], bool] = torch.is_grad_enabled
        self.loaders = Registry()
        self.optimizers = Registry()
        self.profiling = Profiling(self._report_profile, users, lambda: self.rank, self._usual_cpu_ns)
        self.rank = 0
        self.marking = False
        """True once ``mark_step()`` was called: then only it makes iterations."""
        self._marked = -1
        self._marked_ns = 0
        self._thread = 0
        """The training thread; 0 until the process is a rank."""
        self._known: tuple[int, int, bool, int] | None = None
        self._connections = 0
        self._introduce_ns = 0
        self._wall_ns = time.time_ns() - monotonic_ns()
        """What the wall clock is ahead of the monotonic one; looked at once a second."""
        self._cpu_marks: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
        """The last two looks: iteration, and the training thread's processor time then."""
        self._last_optimizer: Callable[[], Any] = _nothing
        """A weak reference to the optimizer that stepped last, and its symbol."""
        self._last_symbol = 0
        self._parameter_types: frozenset[str] = frozenset()
        self._counters_ns = 0
        self._started_ns = time.time_ns()

    @property
    def step(self) -> int:
        """Number of the iteration now running."""
        return self._marked + 1 if self.marking else self.automaton.completed

    def loader_enter(self, symbol: int) -> int:
        """The program asks a loader for a batch; answers the time, or 0 where nobody listens (see :meth:`loader_exit`).

        :param symbol: twice the loader's token, as :meth:`Automaton.feed` has it.
        """
        if get_ident() != self._thread:
            # Before the first optimizer step: the signature wants the call, the agent does not.
            return 0 if self._thread else monotonic_ns()
        ring, profiling = self._ring, self.profiling
        if ring.words[BELL_WORD] != ring.heard or profiling.active or profiling.pending is not None:
            self._before_loader(symbol)
        now_ns = monotonic_ns()
        step = self._marked + 1 if self.marking else self.automaton.completed
        if not ring.put(LOADER_ENTER, step, now_ns, 0, 0):
            self._event(LOADER_ENTER, step, now_ns, 0, 0)
        return now_ns

    def loader_exit(self, symbol: int, entered_ns: int, returned: bool) -> None:
        """The loader answered; *returned* is false at the end of its data."""
        if not entered_ns:
            return
        now_ns = monotonic_ns()
        automaton, marking = self.automaton, self.marking
        if self._thread:
            step = self._marked + 1 if marking else automaton.completed
            if not self._ring.put(LOADER_EXIT, step, now_ns, 0, now_ns - entered_ns):
                self._event(LOADER_EXIT, step, now_ns, 0, now_ns - entered_ns)
        # Batches read with gradients off are evaluation.
        if returned and not marking and self._gradients_on():
            done = automaton.feed(symbol, entered_ns, now_ns)
            if done is not None:
                self._emit(done)
                if not automaton.expects_loader:
                    self._boundary(self.sender.receive())

    def optimizer_exit(self, optimizer: Any) -> None:
        """A step of *optimizer* returned, or was skipped by the gradient scaler."""
        if get_ident() != self._thread and (self._thread or not self._become_rank(optimizer)):
            return
        now_ns = monotonic_ns()
        automaton, done = self.automaton, None
        if not self.marking:
            symbol = self._last_symbol if self._last_optimizer() is optimizer else self._symbol(optimizer)
            done = automaton.feed(symbol, now_ns, now_ns)
        if done is None:
            step = self.step
            if not self._ring.put(OPTIMIZER_EXIT, step, now_ns, 0, 0):
                self._event(OPTIMIZER_EXIT, step, now_ns, 0, 0)
        else:
            self._emit(done)
            if not automaton.expects_loader:
                self._boundary(self.sender.receive())
        if self.profiling.active:
            self.profiling.overdue()

    def mark(self, step: int | None = None) -> None:
        """An iteration ends here, by the program's own word; *step* is its number where the program counts."""
        if not self._thread and not self._become_rank(None):
            return
        now_ns = monotonic_ns()
        started_ns = self._marked_ns
        if not self.marking:
            self.marking = True
            self._marked = self.automaton.completed - 1
        number = self._marked + 1 if step is None or step <= self._marked else step
        self._marked = number
        if started_ns:
            self._emit(Iteration(number, started_ns, now_ns))
        self._boundary(self.sender.receive())
        self._marked_ns = monotonic_ns()

    def goodbye(self) -> None:
        """The process ends in an orderly way."""
        if not self._thread:
            return
        self.profiling.finish()
        now_ns = monotonic_ns()
        self._send_counters(now_ns)
        self.sender.drain(now_ns)
        self.sender.goodbye(self.step, now_ns, time.time_ns())
        self.sender.close()

    def _become_rank(self, optimizer: Any) -> bool:
        """From now on this process is a worker of a job, unless it is a loader's worker."""
        if self.torch.utils.data.get_worker_info() is not None:
            return False
        self._thread = get_ident()
        if optimizer is not None:
            first = [parameter for group in optimizer.param_groups[:8] for parameter in group["params"][:8]]
            self._parameter_types = frozenset(type(parameter).__name__ for parameter in first)
        return True

    def _event(self, code: int, step: int, mono_ns: int, wall_ns: int, duration_ns: int) -> None:
        """The long way: the ring is full or not open, or the agent is to be looked for."""
        self.sender.event(code, step, mono_ns, wall_ns, duration_ns)
        if self.sender.connections != self._connections:
            self._introduce_ns = 0

    def _message(self, message: dict[str, Any], mono_ns: int, *, keep: bool = False) -> None:
        self.sender.message(message, mono_ns, keep=keep)
        if self.sender.connections != self._connections:
            self._introduce_ns = 0

    def _emit(self, iteration: Iteration) -> None:
        number, start_ns, end_ns = iteration
        if not self._ring.put(ITERATION, number, end_ns, end_ns + self._wall_ns, end_ns - start_ns):
            self._event(ITERATION, number, end_ns, end_ns + self._wall_ns, end_ns - start_ns)
        if end_ns >= self._introduce_ns:
            self._introduce(iteration)

    def _symbol(self, optimizer: Any) -> int:
        """Twice the token of *optimizer* and one, as :meth:`Automaton.feed` has it."""
        self._last_symbol = self.optimizers.token(optimizer, type(optimizer).__qualname__) << 1 | 1
        self._last_optimizer = weakref.ref(optimizer)
        return self._last_symbol

    def _before_loader(self, symbol: int) -> None:
        """A command may have come, or there is a profile to be begun or ended."""
        automaton = self.automaton
        if automaton.position == 0 and automaton.first == symbol and not self.marking and self._gradients_on():
            self._boundary(self.sender.receive())
        elif self.profiling.active:
            self.profiling.overdue()

    def _introduce(self, iteration: Iteration) -> None:
        """Say hello to a new agent or with news of ourselves, else the counters from time to time."""
        self._introduce_ns = iteration.end + NEWS_NS
        self._wall_ns = time.time_ns() - monotonic_ns()
        self._connections = self.sender.connections
        self._cpu_marks = (self._cpu_marks[1], (iteration.number + 1, time.thread_time_ns()))
        world = hello.distributed()
        known = (self.sender.connections, len(world.pg_map) if world else 0, self.marking, self.automaton.relearned)
        if known != self._known:
            self._known = known
            if not self.sender.hello(self._hello(world), iteration.end):
                self._known = None
                self._introduce_ns = 0
        elif iteration.end - self._counters_ns > COUNTERS_NS:
            self._send_counters(iteration.end)

    def _boundary(self, message: dict[str, Any] | None) -> None:
        """Between two iterations: obey *message* and what follows it, start or stop a profile."""
        left = COMMANDS_A_STEP
        while message is not None:
            self._command(message)
            left -= 1
            message = self.sender.receive() if left else None
        profiling = self.profiling
        if profiling.active or profiling.pending is not None:
            profiling.boundary(self.step, self.torch)

    def _usual_cpu_ns(self, step: int) -> float:
        """Processor time of a step, from the last look but one up to *step*, which begins now; 0 where there were none."""
        first, cpu_ns = self._cpu_marks[0]
        return (time.thread_time_ns() - cpu_ns) / (step - first) if cpu_ns and step > first else 0.0

    def _command(self, message: dict[str, Any]) -> None:
        if message.get("kind") != "profile":
            return
        try:
            command = parse_profile(message)
        except ValueError as error:
            self._report_profile({"request": request_id(message), "path": "", "error": f"refused: {error}"})
            return
        self.profiling.ask(command)

    def _hello(self, world: Any) -> dict[str, Any]:
        said = hello.described(self.torch, world, self._parameter_types, self._started_ns)
        self.rank = said["rank"]
        mode = "mark_step" if self.marking else "dataloader+optimizer"
        return {**self._header("hello"), **said, "hook": mode, "socket": self.sender.address}

    def _header(self, kind: str) -> dict[str, Any]:
        return {"kind": kind, "v": wire.WIRE_VERSION, "pid": self.sender.pid, "rank": self.rank}

    def _report_profile(self, fields: dict[str, Any]) -> None:
        self._message({**self._header("profiled"), **fields}, monotonic_ns(), keep=True)

    def _send_counters(self, now_ns: int) -> None:
        self._counters_ns = now_ns
        message = {
            **self._header("counters"),
            "dropped": self.sender.dropped,
            "failures": self.guard.failures,
            "relearned": self.automaton.relearned,
        }
        self._message(message, now_ns)


def _nothing() -> None:
    return None
