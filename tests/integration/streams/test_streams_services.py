"""Detect and group as real processes on real brokers: what goes in comes out once, whoever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from eroica.bus import BusProducer, Incoming, ensure_topics, read_partitions
from eroica.bus.local import EmbeddedBroker
from eroica.bus.producer import wait_delivered
from eroica.schemas.base import Message
from eroica.schemas.codec import decode, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import MissingDependency
from eroica.schemas.groups import GroupChunk
from eroica.schemas.iterations import IterationBatch, RankIterations, StepPartial
from eroica.schemas.jobs import JobAnnouncement, RankInfo
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.summaries import Identity, Summary
from eroica.schemas.topics import MESSAGE_TOPIC, message_key
from eroica.streams.app import BUFFERED_MESSAGES
from eroica.streams.rebuild import committed_offsets

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RUN = (
    "import logging, sys; logging.basicConfig(level=logging.INFO); from eroica.schemas.settings import load_settings; "
    "from eroica.streams import service; sys.exit(getattr(service, 'run_' + sys.argv[1])(load_settings(sys.argv[2:])))"
)
FAST = ("detect.window=10", "detect.recent=100", "detect.warmup=5", "group.idle_ms=3000")
DEADLINE_S = 90.0
STEP_US = 100_000
SECOND = 1_000_000
OUTAGE_S = 25.0
"""Longer than a session and any single call of a client."""


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
        self.process.wait(10)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(40)
        self._reader.join(10)
        assert "did not end in time" not in "".join(self.lines)
        return code


def until(condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            pytest.fail(complaint())
        time.sleep(0.05)


class Bench:
    """A prefix of its own on a broker, its topics, a producer and the processes under test."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        # A dead member is noticed after the session timeout, and the embedded broker spends half of it on each join.
        self.settings = KafkaSettings(bootstrap=broker.bootstrap, prefix=prefix, extra={"session.timeout.ms": "3000"})
        ensure_topics(self.settings)
        self.producer = BusProducer(KafkaSettings(bootstrap=broker.bootstrap, prefix=prefix), "test")
        self.services: list[Service] = []
        self.start_us = time.time_ns() // 1_000 - 120 * SECOND

    def service(self, what: str, *assignments: str) -> Service:
        self.services.append(Service(self.settings, what, *assignments))
        return self.services[-1]

    def send(self, key: str, message: Message) -> None:
        assert self.producer.send(MESSAGE_TOPIC[type(message)].name, key=key, value=encode(message))

    def flush(self) -> None:
        wait_delivered(self.producer, 30)

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


@pytest.fixture
def bench(broker: Broker, prefix: str) -> Iterator[Bench]:
    bench = Bench(broker, prefix)
    yield bench
    bench.close()


@pytest.fixture
def kafka_bench(kafka: Broker, prefix: str) -> Iterator[Bench]:
    bench = Bench(kafka, prefix)
    yield bench
    bench.close()


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


def test_iterations_in_request_out_summaries_in_groups_out(bench: Bench) -> None:
    announce(bench, "j")
    detect, group = bench.service("detect"), bench.service("group")
    feed(bench, "j", range(40))
    [request] = requests(bench.read("control", enough=lambda found: len(found) == 1))
    assert request.reason == "degradation" and request.job == "j"
    assert sorted(request.classes.values()) == ["0-1", "2-3"], "the announced pipeline stages are the classes"
    answer(bench, request, (3, 0, 1, 2))
    groups = chunks(bench.read("groups", enough=lambda found: len(found) == 2))
    assert sorted((g.received, g.closed_by) for g in groups) == [("0-1", "complete"), ("2-3", "complete")]
    assert detect.stop(signal.SIGINT) == 0 and group.stop(signal.SIGINT) == 0
    assert len(bench.everything("control")) == 1


def test_a_backlog_longer_than_any_buffer_is_read_whole_and_in_order(kafka_bench: Bench) -> None:
    bench = kafka_bench
    turns = BUFFERED_MESSAGES  # two messages each
    bench.start_us -= turns * SECOND
    feed(bench, "j", range(turns), slow_from=turns)
    detect = bench.service("detect", "detect.scheduled_every_ms=0")
    last = turns * 10 - 1

    def steps(found: list[Incoming]) -> list[int]:
        partials = [decode("partials", m.value) for m in found]
        return [p.first_step + i for p in partials if isinstance(p, StepPartial) for i in range(len(p.count))]

    found = bench.read("partials", enough=lambda found: bool(found) and last in steps(found[-1:]))
    assert steps(found) == list(range(last + 1))
    assert detect.stop() == 0
    assert committed(bench, "detect", "iterations") == 2 * turns, "all of it was acknowledged"
    assert bench.everything("iterations.dlq") == bench.everything("control") == []


def test_what_cannot_be_read_becomes_a_dead_letter_and_the_rest_goes_on(kafka_bench: Bench) -> None:
    bench = kafka_bench
    bench.service("detect").wait_ready()
    good = IterationBatch(
        job="j", run_id="r", host="a", shard=0, ranks_per_shard=1_024, world_size=4, seq=0, sent_at_us=bench.start_us, ranks=[]
    )  # fmt: skip
    strange = encode(good).replace(b'"world_size":4', b'"world_size":8')
    assert encode(good) != strange
    for value in (b"\xff\xfe", encode(good), strange, encode(good).replace(b'"1.0"', b'"7.0"')):
        assert bench.producer.send("iterations", key="j/0", value=value)
    feed(bench, "j", range(40))
    bench.read("control", enough=lambda found: len(found) == 1)
    letters = bench.read("iterations.dlq", enough=lambda found: len(found) == 3)
    reasons = {bytes(m.header("__connect.errors.exception.class.name") or b"").decode() for m in letters}
    assert reasons == {"SchemaError", "InvalidInput", "UnknownMajorVersion"}
    assert {m.value for m in letters} >= {b"\xff\xfe", strange}
    assert all(m.header("__connect.errors.offset") is not None for m in letters)


def test_a_flood_that_cannot_be_read_stops_nothing(bench: Bench) -> None:
    detect = bench.service("detect").wait_ready()
    flood = [b"\xff not json", b"null", b"{}", b"[" * 5_000] * 75
    for value in flood:
        assert bench.producer.send("iterations", key="other/0", value=value)
    feed(bench, "j", range(40))
    bench.read("control", enough=lambda found: len(found) == 1)
    bench.read("iterations.dlq", enough=lambda found: len(found) == len(flood))
    assert detect.process.poll() is None
    assert "".join(detect.lines).count("goes to the dead letters") < 50, "a line for each would fill a disk"


def test_an_outage_of_the_broker_is_waited_out(prefix: str) -> None:
    """The broker stands still while they start, and again while they work, for longer than their membership lasts."""
    try:
        broker = EmbeddedBroker().start()
    except MissingDependency as error:
        pytest.skip(str(error))
    bench = Bench(broker, prefix)
    try:
        os.kill(broker.pid, signal.SIGSTOP)
        detect, group = bench.service("detect"), bench.service("group")
        for service in (detect, group):
            until(lambda s=service: "waits for the broker" in "".join(s.lines), lambda s=service: "".join(s.lines))
        os.kill(broker.pid, signal.SIGCONT)
        detect.wait_ready()
        group.wait_ready()
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(OUTAGE_S)
        os.kill(broker.pid, signal.SIGCONT)
        feed(bench, "j", range(40))
        [request] = requests(bench.read("control", enough=lambda found: len(found) == 1))
        answer(bench, request, (0, 1, 2, 3))
        bench.read("groups", enough=lambda found: len(found) == 1)
        assert detect.stop() == 0 and group.stop() == 0
    finally:
        os.kill(broker.pid, signal.SIGCONT)
        bench.close()
        broker.stop()


def test_a_killed_detect_loses_nothing_and_asks_once(bench: Bench) -> None:
    first = bench.service("detect").wait_ready()
    feed(bench, "j", range(30))
    bench.read("partials", enough=lambda found: len(found) >= 25)
    first.kill()
    second = bench.service("detect")
    feed(bench, "j", range(30, 50))
    found = requests(bench.read("control", enough=lambda found: len(found) >= 1))
    second.wait_ready()
    assert second.stop() == 0
    everything = requests(bench.everything("control"))
    assert len({r.request for r in everything}) == 1 and found[0] == everything[0]
    trigger = int(found[0].figures["step"])
    assert 310 < trigger < 330, "the healthy past was read again: without it there is nothing to be slower than"


def test_a_detect_without_a_past_asks_for_no_second_healthy_profile(bench: Bench) -> None:
    """Of the past that a new process reads again nothing is left; it knows of the first profile from the requests alone."""
    steady = ("detect.scheduled_after=30", "detect.budget_share=0.5", "detect.cooldown_ms=0")
    first = bench.service("detect", *steady)
    feed(bench, "j", range(40), slow_from=30)
    asked = requests(bench.read("control", enough=lambda found: len(found) >= 2))
    assert [r.reason for r in asked[:2]] == ["scheduled", "degradation"]
    first.wait_ready()
    assert first.stop() == 0
    before = len(bench.everything("control"))
    bench.service("detect", *steady, "detect.history_ms=1").wait_ready()
    feed(bench, "j", range(60, 130), slow_from=110)
    found = requests(bench.read("control", enough=lambda found: len(found) > before))
    assert [r.reason for r in found].count("scheduled") == 1, [(r.reason, r.figures) for r in found]
    assert found[before].figures["step"] > 1_100, "it has seen half a hundred steady turns before"


def test_of_two_detects_the_survivor_takes_over(kafka_bench: Bench) -> None:
    bench = kafka_bench
    pair = [bench.service("detect"), bench.service("detect")]
    for one in pair:
        one.wait_ready()
    until(lambda: any("iterations: 8" in line for one in pair for line in one.lines), lambda: "the partitions were not shared")
    jobs = [f"job-{i}" for i in range(6)]
    for job in jobs:
        feed(bench, job, range(33))
    pair[0].kill()
    for job in jobs:
        feed(bench, job, range(33, 50))
    done = bench.read("control", enough=lambda found: len({m.key for m in found}) == len(jobs))
    assert {r.job for r in requests(done)} == set(jobs)
    assert pair[1].stop() == 0
    ids = [r.request for r in requests(bench.everything("control"))]
    assert len(set(ids)) == len(jobs)


def test_a_killed_group_finishes_the_class_it_had_begun(kafka_bench: Bench) -> None:
    bench = kafka_bench
    first = bench.service("group").wait_ready()
    request = ProfileRequest(
        request="req-x", job="j", run_id="r", reason="manual", start_step=1, steps=5, world_size=4, classes={"all": "0-3"},
        issued_at_us=bench.start_us, deadline_ms=60_000,
    )  # fmt: skip
    bench.send("j", request)
    answer(bench, request, (0, 2))
    bench.read("summaries", enough=lambda found: len(found) == 3)
    # Its next commit covers what it holds only in memory: the second must find that again.
    until(lambda: committed(bench) >= 3, lambda: "nothing was committed")
    first.kill()
    second = bench.service("group", "group.idle_ms=60000")
    answer(bench, request, (1, 3))
    [chunk] = chunks(bench.read("groups", enough=lambda found: len(found) >= 1))
    assert (chunk.received, chunk.closed_by) == ("0-3", "complete")
    second.wait_ready()
    assert second.stop() == 0
    assert len({m.value for m in bench.everything("groups")}) == 1


def test_groups_are_the_same_and_once_when_a_second_process_comes_and_one_goes_in_the_middle(kafka_bench: Bench) -> None:
    """Classes of twelve jobs are half filled when a second process joins, and three quarters when the first one leaves."""
    bench = kafka_bench
    wide = ("group.idle_ms=120000",)
    first = bench.service("group", *wide).wait_ready()
    asked = [
        ProfileRequest(
            request=f"req-{i}", job=f"j{i}", run_id="r", reason="manual", start_step=1, steps=5, world_size=4,
            classes={"a": "0-1", "b": "2-3"}, issued_at_us=bench.start_us, deadline_ms=300_000,
        )
        for i in range(12)
    ]  # fmt: skip
    for request in asked:
        bench.send(request.job, request)
        answer(bench, request, (0, 2))
    bench.read("summaries", enough=lambda found: len(found) == 12 * (2 + 2))
    second = bench.service("group", *wide).wait_ready()
    until(lambda: first.readiness() > 1, lambda: "the first was not assigned anew")
    for request in asked[:6]:
        answer(bench, request, (1, 3))
    bench.read("groups", enough=lambda found: len(found) >= 12)
    assert first.stop() == 0
    for request in asked[6:]:
        answer(bench, request, (1, 3))
    bench.read("groups", enough=lambda found: len(found) >= 24)
    assert second.stop() == 0
    found = chunks(bench.everything("groups"))
    assert sorted((g.request.request, g.cls, g.received, g.closed_by) for g in found) == sorted(
        (request.request, cls, ranks, "complete") for request in asked for cls, ranks in request.classes.items()
    )


def committed(bench: Bench, what: str = "group", topic: str = "summaries") -> int:
    return sum(committed_offsets(bench.settings, f"{bench.settings.prefix}{what}", topic, range(16)).values())


def test_silence_closes_a_class_through_the_topic(bench: Bench) -> None:
    group = bench.service("group").wait_ready()
    request = ProfileRequest(
        request="req-y", job="j", run_id="r", reason="manual", start_step=1, steps=5, world_size=4, classes={"all": "0-3"},
        issued_at_us=bench.start_us, deadline_ms=60_000,
    )  # fmt: skip
    bench.send("j", request)
    answer(bench, request, (0, 1, 2))
    [chunk] = chunks(bench.read("groups", enough=lambda found: len(found) == 1))
    assert (chunk.received, chunk.closed_by) == ("0-2", "idle")
    kinds = [json.loads(m.value or b"{}")["kind"] for m in bench.everything("summaries")]
    assert sorted(kinds) == ["close_class", "expectation", "summary", "summary", "summary"]
    assert group.stop() == 0


def test_records_of_jobs_whose_clocks_are_far_off_are_dated_by_the_services(kafka_bench: Bench) -> None:
    bench = kafka_bench
    detect, group = bench.service("detect"), bench.service("group")
    start_us = {f"j{days}": bench.start_us + days * 86_400 * SECOND for days in (400, -400)}
    before_ms = time.time_ns() // 1_000_000
    for job, bench.start_us in start_us.items():
        feed(bench, job, range(40))
    asked = requests(bench.read("control", enough=lambda found: len(found) == len(start_us)))
    assert {request.job for request in asked} == set(start_us)
    for request in asked:
        assert abs(request.issued_at_us - start_us[request.job]) < 60 * SECOND, "event time is in the message"
        answer(bench, request, (0, 1, 2, 3))
    bench.read("groups", enough=lambda found: len(found) == len(start_us))
    for topic in ("partials", "control", "summaries", "groups"):
        dates = [m.timestamp_ms for m in bench.everything(topic)]
        assert min(dates) >= before_ms - 1_000, topic
        assert max(dates) <= time.time_ns() // 1_000_000 + 1_000, topic
    assert detect.stop() == 0 and group.stop() == 0


def test_missing_topics_are_one_clear_error(kafka: Broker, prefix: str) -> None:
    service = Service(KafkaSettings(bootstrap=kafka.bootstrap, prefix=prefix), "detect")
    assert service.process.wait(60) != 0
    service._reader.join(10)
    assert "eroica topics ensure" in "".join(service.lines)
