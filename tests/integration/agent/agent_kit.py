"""A real agent, a real hooked job, and a reader of topics, for the agent's integration tests."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import waiting

from eroica.bus import BusProducer, Incoming, read_partitions
from eroica.bus.local.ports import LOOPBACK, free_port
from eroica.bus.producer import wait_delivered
from eroica.schemas.base import Message
from eroica.schemas.codec import decode, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.iterations import IterationBatch
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import message_key

JOB_SCRIPT = Path(__file__).with_name("gloo_job.py")
T = TypeVar("T")
STOP_S = 100
"""Twice five seconds by its own rules, on a quiet machine."""
PATIENT = ("agent.stacks_timeout_ms=200000", "agent.max_profile_ms=600000")
"""Limits that a busy machine does not reach."""
ENDLESS = 10**6
IMPORT_S = 300
"""Importing torch takes 3 s on a quiet machine; a busy one of two cores has taken 100."""

_AGENT = """
import sys
from pathlib import Path
from eroica.cli.output import set_up_logging
from eroica.producers.agent.service import run_agent
from eroica.schemas.settings import load_settings
from eroica.schemas.errors import EroicaError
set_up_logging()
try:
    sys.exit(run_agent(load_settings(sys.argv[3:]), host=sys.argv[1], runtime_dir=Path(sys.argv[2])))
except EroicaError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def until(condition: Callable[[], T], timeout_s: float, what: str, agent: RunningAgent | None = None) -> T:
    """The first true value of *condition*; fails with *what* (and the agent's log) when there is none in time."""
    return waiting.until(condition, lambda: f"{what}\n{agent.text() if agent is not None else ''}", timeout_s=timeout_s)


class RunningAgent:
    """``run_agent`` in a process of its own."""

    def __init__(self, directory: Path, settings: KafkaSettings, *assignments: str, host: str = "host-a") -> None:
        self.directory = directory
        self.log = directory.with_name(f"{directory.name}-{time.monotonic_ns()}.log")
        words = [
            f"kafka.bootstrap={settings.bootstrap}", f"kafka.prefix={settings.prefix}", "agent.batch_interval_ms=200",
            f"agent.trace_directory={directory.parent}", *PATIENT, *assignments,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", _AGENT, host, str(directory), *words], stdout=log, stderr=log)

    def wait_listening(self) -> RunningAgent:
        until(lambda: "listens in" in self.text(), 100, "the agent listens", self)
        return self

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self) -> int:
        """Its exit code; it ends in bounded time whatever is left to do."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class JobServer:
    """The process that jobs are forked from (see gloo_job.py)."""

    def __init__(self) -> None:
        # Without the start-up hook: it is not inherited over a fork, so each rank activates its own.
        self._process = subprocess.Popen(
            [sys.executable, "-u", str(JOB_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ended: dict[int, int] = {}
        self._started: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, pid, *code = line.split()
            if word == "started":
                self._started.put(int(pid))
            else:
                self._ended[int(pid)] = int(code[0])

    def start(self, order: dict[str, object]) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._started.get(timeout=IMPORT_S)

    def ended(self, pid: int) -> int | None:
        return self._ended.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(100)


class RunningJob:
    """A hooked job of two gloo ranks, a process a rank: of *steps* steps, or until :meth:`finish` where there are none given.

    :param leash: the steps that it may train until :meth:`allow` says more; it stands still after the last of them.
    """

    def __init__(
        self, server: JobServer, directory: Path, job: str, *, step_s: float, steps: int = ENDLESS, leash: int = ENDLESS
    ) -> None:
        self._server = server
        self.steps = steps
        stem = directory.parent / f"{job}-{time.monotonic_ns()}"
        self.outputs = [Path(f"{stem}-{rank}.out") for rank in (0, 1)]
        self._leash, self._end = Path(f"{stem}.leash"), Path(f"{stem}.end")
        self.allow(leash)
        shared = {
            "EROICA_JOB": job, "EROICA_RUNTIME_DIR": str(directory), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        }  # fmt: skip
        self.pids = [
            server.start(
                {
                    "env": {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    "output": str(output),
                    "steps": steps,
                    "step_s": step_s,
                    "leash": str(self._leash),
                    "end": str(self._end),
                }
            )
            for rank, output in enumerate(self.outputs)
        ]

    def allow(self, steps: int = ENDLESS) -> None:
        """The job may train so many steps in all."""
        written = self._leash.with_suffix(".new")
        written.write_text(str(steps), encoding="utf-8")
        written.replace(self._leash)

    def finish(self, timeout_s: float = 200) -> int:
        """Let it go on to its end and wait for that; the exit codes must be 0. Returns the steps that were trained."""
        self.allow()
        if self.steps == ENDLESS:
            self._end.touch()
        said = set()
        for pid, output in zip(self.pids, self.outputs, strict=True):
            until(lambda pid=pid: self._server.ended(pid) is not None, timeout_s, "the job ends")  # type: ignore[misc]
            text = output.read_text(encoding="utf-8")
            assert self._server.ended(pid) == 0, text
            said |= {int(line.split()[1]) for line in text.splitlines() if line.startswith("trained ")}
        [trained] = said
        assert self.steps in (trained, ENDLESS), f"{trained} steps"
        return trained

    def end(self) -> None:
        for pid in self.pids:
            if self._server.ended(pid) is None:
                os.kill(pid, signal.SIGKILL)
                until(lambda pid=pid: self._server.ended(pid) is not None, 60, "a killed rank ends")  # type: ignore[misc]


class Topics:
    """Follows topics in threads and keeps all that was on them."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._records: dict[str, list[Incoming]] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        for topic in ("jobs", "iterations", "summaries"):
            self._records[topic] = []
            thread = threading.Thread(target=self._follow, args=(topic,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _follow(self, topic: str) -> None:
        for batch in read_partitions(self._settings, topic, stop=self._stop.is_set):
            self._records[topic].extend(batch)

    def end(self) -> None:
        """Stop following; more than once does no harm."""
        self._stop.set()
        for thread in self._threads:
            thread.join(100)

    def records(self, topic: str) -> list[Incoming]:
        return list(self._records[topic])

    def messages(self, topic: str) -> list[Message]:
        """Everything on *topic* so far, decoded, in the order of each partition."""
        return [decode(topic, record.value) for record in self.records(topic)]

    def announcements(self, job: str) -> list[JobAnnouncement]:
        return [m for m in self.messages("jobs") if isinstance(m, JobAnnouncement) and m.job == job]

    def whole(self, job: str, agent: RunningAgent, ranks: int = 2) -> JobAnnouncement:
        """The announcement of *job* with all its ranks, waited for."""
        return until(lambda: [a for a in self.announcements(job) if len(a.ranks) == ranks], 200, "the job is announced", agent)[
            -1
        ]

    def steps_of(self, job: str) -> dict[int, list[int]]:
        """Rank → the steps that were reported, in their order on the topic. Of a message that came twice, the first counts."""
        found: dict[int, list[int]] = {0: [], 1: []}
        # An agent that was killed may have sent what its successor finds on disk.
        for value in dict.fromkeys(record.value for record in self.records("iterations")):
            message = decode("iterations", value)
            if isinstance(message, IterationBatch) and message.job == job:
                for one in message.ranks:
                    found[one.rank].extend(range(one.first_step, one.first_step + len(one.duration_us)))
        return found

    def batches(self, job: str) -> list[IterationBatch]:
        return [m for m in self.messages("iterations") if isinstance(m, IterationBatch) and m.job == job]

    def last_step(self, job: str) -> int:
        """The step that all ranks have reported; -1 before."""
        return min(max(steps, default=-1) for steps in self.steps_of(job).values())


def begin(
    settings: KafkaSettings, topics: Topics, jobs: JobServer, folder: Path, running: list[Any], name: str, **job: Any
) -> tuple[RunningAgent, RunningJob, JobAnnouncement]:
    """An agent in ``folder/run`` that listens, a job beside it, and its whole announcement; both are ended with *running*."""
    agent = RunningAgent(folder / "run", settings)
    running.append(agent)
    agent.wait_listening()
    started = RunningJob(jobs, folder / "run", name, **job)
    running.append(started)
    return agent, started, topics.whole(name, agent)


def under_way(agent: RunningAgent, topics: Topics, request: ProfileRequest) -> None:
    """Return when the hooks have the command of *request*, which they look at between two steps."""
    until(lambda: f"{request.request} ({request.reason}" in agent.text(), 100, "the ranks are asked", agent)
    now_us = time.time_ns() // 1_000
    # Commands leave in the same turn of the agent as that line, or in the next one; each of these batches ends a turn.
    until(lambda: sum(b.sent_at_us > now_us for b in topics.batches(request.job)) > 2, 100, "the agent reports", agent)


def ask(settings: KafkaSettings, announced: JobAnnouncement, **fields: object) -> ProfileRequest:
    """Put a request for all ranks of *announced* on ``control``."""
    values: dict[str, object] = {
        "request": f"req-{time.time_ns()}", "job": announced.job, "run_id": announced.run_id, "reason": "manual",
        "steps": 3, "world_size": announced.world_size, "classes": {"all": f"0-{announced.world_size - 1}"},
        "issued_at_us": time.time_ns() // 1_000, "deadline_ms": 300_000, **fields,
    }  # fmt: skip
    request = ProfileRequest(**values)  # type: ignore[arg-type]
    with BusProducer(settings, "test") as producer:
        producer.send("control", key=message_key(request.job), value=encode(request))
        wait_delivered(producer, 100)
    return request
