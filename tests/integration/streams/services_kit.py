"""Detect and group as processes, what jobs would send to them, and what comes out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from waiting import until

from eroica.bus import BusProducer, Incoming, ensure_topics, read_partitions
from eroica.bus.producer import wait_delivered
from eroica.schemas.base import Message
from eroica.schemas.codec import decode, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import GroupChunk
from eroica.schemas.iterations import IterationBatch, RankIterations
from eroica.schemas.jobs import JobAnnouncement, RankInfo
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.summaries import Identity, Summary
from eroica.schemas.topics import MESSAGE_TOPIC, message_key
from eroica.streams.rebuild import committed_offsets

RUN = (
    "import logging, sys; logging.basicConfig(level=logging.INFO); from eroica.schemas.settings import load_settings; "
    "from eroica.streams import service; sys.exit(getattr(service, 'run_' + sys.argv[1])(load_settings(sys.argv[2:])))"
)
FAST = ("detect.window=10", "detect.recent=100", "detect.warmup=5", "group.idle_ms=120000")
DEADLINE_S = 200.0
STEP_US = 100_000
SECOND = 1_000_000


class Broker(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Service:
    """A process of ours, with what it wrote to stderr."""

    def __init__(self, settings: KafkaSettings, what: str, *assignments: str) -> None:
        environment = os.environ | {
            "EROICA_KAFKA__BOOTSTRAP": settings.bootstrap,
            "EROICA_KAFKA__PREFIX": settings.prefix,
            "EROICA_KAFKA__EXTRA": json.dumps(settings.extra),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, what, *FAST, *assignments], env=environment, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def readiness(self) -> int:
        return sum(" ready " in line for line in self.lines)

    def wait_ready(self) -> Service:
        until(lambda: self.readiness() > 0 or self.process.poll() is not None, lambda: "not ready: " + "".join(self.lines))
        assert self.process.poll() is None, "".join(self.lines)
        return self

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(100)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(100)
        self._reader.join(100)
        assert "did not end in time" not in "".join(self.lines)
        return code


class Bench:
    """A prefix of its own on a broker, its topics, a producer and the processes under test."""

    def __init__(self, broker: Broker, prefix: str, session_ms: int) -> None:
        """:param session_ms: a dead member is noticed after that, and one that a busy machine held up for so long counts as dead.
        The embedded broker spends half of it on each join.
        """
        self.settings = KafkaSettings(
            bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix, extra={"session.timeout.ms": str(session_ms)}
        )
        ensure_topics(self.settings)
        self.producer = BusProducer(KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix), "test")
        self.services: list[Service] = []
        self.start_us = time.time_ns() // 1_000 - 120 * SECOND

    def service(self, what: str, *assignments: str) -> Service:
        self.services.append(Service(self.settings, what, *assignments))
        return self.services[-1]

    def send(self, key: str, message: Message) -> None:
        assert self.producer.send(MESSAGE_TOPIC[type(message)].name, key=key, value=encode(message))

    def flush(self) -> None:
        wait_delivered(self.producer, 100)

    def read(self, topic: str, *, enough: Callable[[list[Incoming]], bool]) -> list[Incoming]:
        """Everything on *topic* until *enough*; fails after the deadline."""
        found: list[Incoming] = []
        end = time.monotonic() + DEADLINE_S

        def stop() -> bool:
            return enough(found) or time.monotonic() > end

        for batch in read_partitions(self.settings, topic, stop=stop, poll_s=0.1):
            found += batch
        logs = "".join(line for service in self.services for line in service.lines)
        assert enough(found), f"{topic}: only {len(found)} messages; {logs[-3_000:]}"
        return found

    def everything(self, topic: str) -> list[Incoming]:
        """What is on *topic* now."""
        return [m for batch in read_partitions(self.settings, topic, to_end=True, settle_s=0.3, poll_s=0.05) for m in batch]

    def close(self) -> None:
        for service in self.services:
            if service.process.poll() is None:
                service.kill()
        self.producer.close()


def feed(bench: Bench, job: str, turns: range, *, slow_from: int = 30) -> None:
    """One turn is a second: ten iterations of each of four ranks on two hosts, twice as long from *slow_from* on."""
    for turn in turns:
        duration = STEP_US if turn < slow_from else 2 * STEP_US
        at = bench.start_us + turn * SECOND
        for host, ranks in (("a", (0, 1)), ("b", (2, 3))):
            batch = IterationBatch(
                job=job, run_id="r", host=host, shard=0, ranks_per_shard=1_024, world_size=4, seq=turn, sent_at_us=at,
                ranks=[RankIterations(rank=r, first_step=turn * 10, duration_us=[duration] * 10) for r in ranks],
            )  # fmt: skip
            bench.send(message_key(job, 0), batch)
    bench.flush()


def announce(bench: Bench, job: str) -> None:
    for host, ranks in (("a", (0, 1)), ("b", (2, 3))):
        infos = [RankInfo(rank=r, coords={"pp": r // 2, "dp": r % 2}) for r in ranks]
        bench.send(f"{job}/{host}", JobAnnouncement(job=job, run_id="r", host=host, world_size=4, ranks=infos))
    bench.flush()


def once(messages: list[Incoming]) -> list[Incoming]:
    """*messages* without repetitions: a process that lost its place before it could commit says the same bytes again.

    Of dead letters each bad message's own place counts, for bad messages may be alike.
    """
    return list(
        {
            (m.key, m.value, m.header("__connect.errors.partition"), m.header("__connect.errors.offset")): m for m in messages
        }.values()
    )


def requests(messages: list[Incoming]) -> list[ProfileRequest]:
    decoded = [decode("control", m.value) for m in messages]
    return [m for m in decoded if isinstance(m, ProfileRequest)]


def answer(bench: Bench, request: ProfileRequest, ranks: tuple[int, ...]) -> None:
    """The summaries of *ranks*, as agents send them."""
    for rank in ranks:
        cls = next(name for name, members in sorted(request.classes.items()) if rank in _members(members))
        who = Identity(
            job=request.job, run_id="r", request=request.request, cls=cls, rank=rank, world_size=4, host="ab"[rank // 2]
        )
        at = request.issued_at_us + 5 * SECOND
        summary = Summary(who=who, first_step=request.start_step, last_step=request.start_step + 4, window_us=1.0, ended_at_us=at)
        bench.send(message_key(request.job, request.request, cls), summary)
    bench.flush()


def _members(text: str) -> set[int]:
    ranges = [part.split("-") for part in text.split(",")]
    return {r for part in ranges for r in range(int(part[0]), int(part[-1]) + 1)}


def chunks(messages: list[Incoming]) -> list[GroupChunk]:
    decoded = [decode("groups", m.value) for m in messages]
    return [m for m in decoded if isinstance(m, GroupChunk)]


def committed(bench: Bench, what: str = "group", topic: str = "summaries") -> int:
    return sum(committed_offsets(bench.settings, f"{bench.settings.prefix}{what}", topic, range(16)).values())
