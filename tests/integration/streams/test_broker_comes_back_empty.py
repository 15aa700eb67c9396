"""The embedded broker is killed and comes back with nothing: what a service had on its way arrives, and ends no service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from services_kit import Bench, feed, once, requests
from waiting import until

from eroica.bus import BusProducer, ensure_topics, read_partitions
from eroica.bus.local import EmbeddedBroker
from eroica.bus.local.ports import free_port
from eroica.bus.producer import wait_delivered
from eroica.schemas.errors import MissingDependency
from eroica.schemas.settings import KafkaSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SEND = """
import asyncio, logging, sys
from eroica.schemas.settings import KafkaSettings
from eroica.streams.outbox import Letter, Outbox

logging.basicConfig(level=logging.WARNING)

async def main():
    outbox = Outbox(KafkaSettings(bootstrap=sys.argv[1], prefix=sys.argv[2]), "detect")
    for numbers in (range(20), range(20, 40)):
        arrived = asyncio.Event()
        await outbox.send([Letter("control", "job", b"%d" % number, ()) for number in numbers], arrived.set)
        print("under way", flush=True)
        await arrived.wait()
        print("arrived", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    outbox.close()

asyncio.run(main())
"""
"""Twenty messages, and once it is told so on standard input, twenty more."""


@pytest.fixture
def brokers() -> Iterator[list[EmbeddedBroker]]:
    """A broker on a port of the test's own; those that the test starts after it are stopped too."""
    try:
        started = [EmbeddedBroker(free_port()).start()]
    except MissingDependency as error:
        pytest.skip(str(error))
    yield started
    for broker in started:
        broker.stop()


def kill(broker: EmbeddedBroker) -> None:
    os.kill(broker.pid, signal.SIGKILL)
    until(lambda: not broker.alive)


def unread(port: int) -> bool:
    """Whether a connection to *port* of this machine holds bytes that its server has not read."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return any(
        int(row[1].rpartition(":")[2], 16) == port and row[3] == "01" and int(row[4].partition(":")[2], 16) for row in rows
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the kernel's table of connections")
def test_what_was_under_way_arrives_though_the_broker_forgot_its_sender(brokers: list[EmbeddedBroker], prefix: str) -> None:
    settings = KafkaSettings(bootstrap=brokers[0].bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    command = [sys.executable, "-c", SEND, settings.bootstrap, prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sender:
        assert sender.stdin is not None and sender.stdout is not None and sender.stderr is not None
        try:
            assert [sender.stdout.readline(), sender.stdout.readline()] == ["under way\n", "arrived\n"]
            os.kill(brokers[0].pid, signal.SIGSTOP)
            print(file=sender.stdin, flush=True)
            assert sender.stdout.readline() == "under way\n"
            # Only what the old broker may have taken is given up by the client; what it can't have taken is tried on.
            until(lambda: unread(brokers[0].port))
            kill(brokers[0])
            brokers.append(EmbeddedBroker(brokers[0].port).start())
            ensure_topics(settings)
            assert sender.stdout.readline() == "arrived\n", sender.stderr.read()
            print(file=sender.stdin, flush=True)
            assert sender.wait(100) == 0
            log = sender.stderr.read()
        finally:
            sender.kill()
    assert "begins anew" in log and "ending without a commit" not in log
    found = [m.value for batch in read_partitions(settings, "control", to_end=True, settle_s=1.0) for m in batch]
    assert sorted(set(found)) == sorted(b"%d" % number for number in range(20, 40)), log


def test_a_message_that_the_client_would_try_for_ever_arrives_at_a_later_try(brokers: list[EmbeddedBroker], prefix: str) -> None:
    """The client thinks that it is safe to try on with its old number, and is refused each time without telling."""
    settings = KafkaSettings(
        bootstrap=brokers[0].bootstrap, connect_timeout_ms=30_000, prefix=prefix, extra={"message.timeout.ms": "5000"}
    )
    ensure_topics(settings)
    with BusProducer(settings, "agent") as producer:
        producer.send("control", key="job", value=b"old")
        wait_delivered(producer, 100)
        kill(brokers[0])
        brokers.append(EmbeddedBroker(brokers[0].port).start())
        ensure_topics(settings)

        def arrived() -> bool:
            producer.send("control", key="job", value=b"new")
            until(lambda: producer.flush(1.0) == 0)
            return producer.counters.delivered > 1

        until(arrived, lambda: str(producer.counters))
    found = {m.value for batch in read_partitions(settings, "control", to_end=True, settle_s=1.0) for m in batch}
    assert found == {b"new"}


def test_detect_goes_on_in_the_same_process(brokers: list[EmbeddedBroker], prefix: str) -> None:
    bench = Bench(brokers[0], prefix, session_ms=3_000)
    try:
        detect = bench.service("detect").wait_ready()
        feed(bench, "j", range(30))
        bench.read("partials", enough=lambda found: len(found) >= 20)
        kill(brokers[0])
        brokers.append(EmbeddedBroker(brokers[0].port).start())
        ensure_topics(bench.settings)
        feed_again = Bench(brokers[1], prefix, session_ms=3_000)
        feed_again.start_us = bench.start_us
        try:
            feed(feed_again, "j", range(50))
            found = requests(once(bench.read("control", enough=lambda found: len(found) >= 1)))
        finally:
            feed_again.close()
        assert [(request.job, request.reason) for request in found] == [("j", "degradation")]
        assert detect.process.poll() is None, "".join(detect.lines)
        assert detect.stop() == 0
    finally:
        bench.close()
