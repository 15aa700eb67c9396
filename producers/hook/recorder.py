"""The hook of one process: what the wrapped calls report becomes datagrams, and commands become profiles."""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import time
from typing import Any

from eroica.producers.hook import groups, identity, wire
from eroica.producers.hook.automaton import Automaton, Iteration
from eroica.producers.hook.command import parse_profile, request_id
from eroica.producers.hook.guard import Guard
from eroica.producers.hook.profiling import Profiling
from eroica.producers.hook.registry import Registry
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

    def __init__(self, torch: Any, guard: Guard, users: UserProfilers) -> None:
        self.torch = torch
        self.guard = guard
        self.automaton = Automaton()
        self.sender = Sender(os.getpid())
        self.loaders = Registry()
        self.optimizers = Registry()
        self.profiling = Profiling(self._report_profile, users, lambda: self.rank, self._usual_cpu_ns)
        self.rank = 0
        self.marking = False
        """True once ``mark_step()`` was called: then only it makes iterations."""
        self._marked = -1
        self._marked_ns = 0
        self._is_rank = False
        self._thread = 0
        self._known: tuple[int, int, bool, int] | None = None
        self._connections = 0
        self._introduce_ns = 0
        self._wall_ns = time.time_ns() - time.monotonic_ns()
        """What the wall clock is ahead of the monotonic one; looked at once a second."""
        self._cpu_marks: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
        """The last two looks: iteration, and the training thread's processor time then."""
        self._parameter_types: frozenset[str] = frozenset()
        self._counters_ns = 0
        self._started_ns = time.time_ns()

    @property
    def step(self) -> int:
        """Number of the iteration now running."""
        return self._marked + 1 if self.marking else self.automaton.completed

    def loader_enter(self, token: int) -> int:
        """The program asks loader *token* for a batch; answers the time, or 0 where nobody listens (see :meth:`loader_exit`)."""
        if not self._is_rank:
            # Before the first optimizer step: the signature wants the call, the agent does not.
            return time.monotonic_ns()
        if threading.get_ident() != self._thread:
            return 0
        # What comes in every iteration is written out here, for a call costs as much as what it does: the caches are cold.
        automaton, sender, profiling = self.automaton, self.sender, self.profiling
        begins = automaton.position == 0 and automaton.first == token << 1
        if begins and not self.marking and self.torch.is_grad_enabled():
            message = sender.receive()
            if message is not None or profiling.active or profiling.pending is not None:
                self._boundary(message)
        elif profiling.active:
            profiling.overdue()
        now_ns = time.monotonic_ns()
        step = self._marked + 1 if self.marking else automaton.completed
        if not sender.put(LOADER_ENTER, step, now_ns, 0, 0):
            sender.event(LOADER_ENTER, step, now_ns, 0, 0)
        return now_ns

    def loader_exit(self, token: int, entered_ns: int, returned: bool) -> None:
        """Loader *token* answered; *returned* is false at the end of its data."""
        if not entered_ns:
            return
        now_ns = time.monotonic_ns()
        automaton, marking = self.automaton, self.marking
        if self._is_rank:
            sender, step = self.sender, self._marked + 1 if marking else automaton.completed
            if not sender.put(LOADER_EXIT, step, now_ns, 0, now_ns - entered_ns):
                sender.event(LOADER_EXIT, step, now_ns, 0, now_ns - entered_ns)
        # Batches read with gradients off are evaluation.
        if returned and not marking and self.torch.is_grad_enabled():
            done = automaton.feed(token << 1, entered_ns, now_ns)
            if done is not None:
                self._emit(done)
                if not automaton.expects_loader:
                    self._boundary(self.sender.receive())

    def optimizer_exit(self, optimizer: Any) -> None:
        """A step of *optimizer* returned, or was skipped by the gradient scaler."""
        if not self._is_rank and not self._become_rank(optimizer):
            return
        if threading.get_ident() != self._thread:
            return
        now_ns = time.monotonic_ns()
        done = None
        if not self.marking:
            token = self.optimizers.known(optimizer)
            if token < 0:
                token = self.optimizers.token(optimizer, type(optimizer).__qualname__)
            done = self.automaton.feed(token << 1 | 1, now_ns, now_ns)
        if done is None:
            sender, step = self.sender, self.step
            if not sender.put(OPTIMIZER_EXIT, step, now_ns, 0, 0):
                sender.event(OPTIMIZER_EXIT, step, now_ns, 0, 0)
        else:
            self._emit(done)
            if not self.automaton.expects_loader:
                self._boundary(self.sender.receive())
        if self.profiling.active:
            self.profiling.overdue()

    def mark(self, step: int | None = None) -> None:
        """An iteration ends here, by the program's own word; *step* is its number where the program counts."""
        if not self._is_rank and not self._become_rank(None):
            return
        now_ns = time.monotonic_ns()
        started_ns = self._marked_ns
        if not self.marking:
            self.marking = True
            self._marked = self.automaton.completed - 1
        number = self._marked + 1 if step is None or step <= self._marked else step
        self._marked = number
        if started_ns:
            self._emit(Iteration(number, started_ns, now_ns))
        self._boundary(self.sender.receive())
        self._marked_ns = time.monotonic_ns()

    def goodbye(self) -> None:
        """The process ends in an orderly way."""
        if not self._is_rank:
            return
        self.profiling.finish()
        now_ns = time.monotonic_ns()
        self._send_counters(now_ns)
        self.sender.drain(now_ns)
        self.sender.goodbye(self.step, now_ns, time.time_ns())
        self.sender.close()

    def _become_rank(self, optimizer: Any) -> bool:
        """From now on this process is a worker of a job, unless it is a loader's worker."""
        if self.torch.utils.data.get_worker_info() is not None:
            return False
        self._is_rank = True
        self._thread = threading.get_ident()
        if optimizer is not None:
            first = [parameter for group in optimizer.param_groups[:8] for parameter in group["params"][:8]]
            self._parameter_types = frozenset(type(parameter).__name__ for parameter in first)
        return True

    def _emit(self, iteration: Iteration) -> None:
        number, start_ns, end_ns = iteration
        wall_ns, sender = end_ns + self._wall_ns, self.sender
        if not sender.put(ITERATION, number, end_ns, wall_ns, end_ns - start_ns):
            sender.event(ITERATION, number, end_ns, wall_ns, end_ns - start_ns)
        if end_ns >= self._introduce_ns or sender.connections != self._connections:
            self._introduce(iteration)

    def _introduce(self, iteration: Iteration) -> None:
        """Say hello to a new agent or with news of ourselves, else the counters from time to time."""
        self._introduce_ns = iteration.end + NEWS_NS
        self._wall_ns = time.time_ns() - time.monotonic_ns()
        self._connections = self.sender.connections
        self._cpu_marks = (self._cpu_marks[1], (iteration.number + 1, time.thread_time_ns()))
        world = self._distributed()
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

    def _distributed(self) -> Any:
        """Torch's registry of process groups, or ``None`` where there are none."""
        module = sys.modules.get("torch.distributed.distributed_c10d")
        world = getattr(module, "_world", None)
        return world if world is not None and world.pg_map else None

    def _hello(self, world: Any) -> dict[str, Any]:
        torch, environ = self.torch, os.environ
        place = identity.place(environ)
        rank, size = place.rank, place.world_size
        found = groups.process_groups(world) if world else []
        if world:
            rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.rank = rank
        framework = identity.framework(sys.modules, self._parameter_types, size)
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        return {
            **self._header("hello"),
            "world_size": size,
            "local_rank": place.local_rank,
            "host": identity.host_name(environ, socket.gethostname()),
            "job": identity.job_name(environ, script),
            "run_id": identity.run_id(environ, size, os.getppid(), f"{os.getpid()} {self._started_ns}"),
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "framework": framework,
            "coords": groups.coordinates(found, rank, framework),
            "backend": next((group["backend"] for group in found if group["backend"]), ""),
            "launcher": place.launcher,
            "groups": found,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "hook": "mark_step" if self.marking else "dataloader+optimizer",
            "socket": self.sender.address,
        }

    def _header(self, kind: str) -> dict[str, Any]:
        return {"kind": kind, "v": wire.WIRE_VERSION, "pid": self.sender.pid, "rank": self.rank}

    def _report_profile(self, fields: dict[str, Any]) -> None:
        self.sender.message({**self._header("profiled"), **fields}, time.monotonic_ns(), keep=True)

    def _send_counters(self, now_ns: int) -> None:
        self._counters_ns = now_ns
        message = {
            **self._header("counters"),
            "dropped": self.sender.dropped,
            "failures": self.guard.failures,
            "relearned": self.automaton.relearned,
        }
        self.sender.message(message, now_ns)
