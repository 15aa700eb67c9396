"""The brokers that we start ourselves: their ports, their ends, and what the bus does when they fail."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError
from waiting import until

from eroica.bus import BusProducer, check_broker, ensure_topics, read_partitions
from eroica.bus.local import EmbeddedBroker, KafkaCluster
from eroica.bus.local.jars import find_java
from eroica.bus.producer import wait_delivered
from eroica.schemas.errors import MissingDependency, UsageError
from eroica.schemas.settings import KafkaSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def has_ended(pid: int) -> bool:
    """Whether process *pid* runs no more; whoever should wait for it may not have done so yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        yield int(owner.getsockname()[1])


def test_a_taken_port_is_named_with_its_owner(taken_port: int) -> None:
    with pytest.raises(UsageError, match=f"port {taken_port} is taken by process {os.getpid()}"):
        EmbeddedBroker(taken_port).start()


def test_a_taken_kafka_port_is_refused_before_anything_starts(taken_port: int, kafka: KafkaCluster) -> None:
    with pytest.raises(UsageError, match=f"port {taken_port} is taken"):
        KafkaCluster(1, port=taken_port).start()


def test_the_embedded_broker_leaves_nothing_behind(tansu: EmbeddedBroker) -> None:
    with EmbeddedBroker() as broker:
        pid, log = broker.pid, broker._folder.path if broker._folder else None
        assert psutil.pid_exists(pid)
        assert log is not None and log.is_dir()
        assert broker.port != tansu.port
    assert not psutil.pid_exists(pid)
    assert not log.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_broker_dies_with_the_process_that_started_it(tansu: EmbeddedBroker, tmp_path: Path) -> None:
    code = (
        "from eroica.bus.local import EmbeddedBroker; import time\n"
        "broker = EmbeddedBroker().start(); print(broker.pid, flush=True); time.sleep(600)"
    )
    # A killed process cannot remove its folder; here it is the test's own.
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    assert until(lambda: has_ended(pid))


@pytest.mark.parametrize("nodes", ["0", "10"])
def test_the_command_refuses_senseless_sizes(nodes: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eroica.bus.local", "--nodes", nodes], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert "not between 1 and 9" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_prints_its_address_and_ends_on_a_signal(tansu: EmbeddedBroker) -> None:
    with subprocess.Popen([sys.executable, "-m", "eroica.bus.local", "--embedded"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip().removeprefix("bootstrap=")
        assert check_broker(KafkaSettings(bootstrap=address, connect_timeout_ms=30_000)).brokers == (address,)
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 0


@pytest.mark.parametrize(
    ("broker", "words", "says"),
    [("tansu", ["--embedded"], "the embedded broker is gone (signal 9"), ("kafka", [], "Kafka node 1 is gone (signal 9")],
)
def test_the_command_ends_with_its_broker(broker: str, words: list[str], says: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(broker)  # only says whether there is one
    command = [sys.executable, "-m", "eroica.bus.local", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith("bootstrap=")
            [child] = psutil.Process(process.pid).children()
            child.kill()
            _, told = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 1
    assert says in told.splitlines()[-1]
    assert told.count("is gone") == 1 and "Traceback" not in told


def test_absent_java_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingDependency, match="needs Java, which is not installed"):
        find_java()


def test_three_nodes_lose_one_and_nothing_else(kafka3: KafkaCluster, prefix: str) -> None:
    settings = KafkaSettings(bootstrap=kafka3.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    changes = ensure_topics(settings)
    assert {change.want.partition(", ")[2] for change in changes} == {"3 replicas"}
    with BusProducer(settings) as producer:
        for index in range(300):
            producer.send("control", key=f"job-{index % 11}", value=b"%d" % index)
            if index == 100:
                wait_delivered(producer, 100)
                kafka3.kill_node(2)
        try:
            wait_delivered(producer, 100)
            assert producer.counters.delivered == 300
            messages = [m for batch in read_partitions(settings, "control", to_end=True) for m in batch]
            assert sorted(int(m.value or b"") for m in messages) == list(range(300))
        finally:
            kafka3.restart_node(2)
    assert len(check_broker(settings).brokers) == 3


def test_a_broker_that_was_away_gets_everything_once(prefix: str, kafka: KafkaCluster) -> None:
    with KafkaCluster(1) as own:
        settings = KafkaSettings(bootstrap=own.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
        ensure_topics(settings)
        with BusProducer(settings) as producer:
            producer.send("control", key="j", value=b"0")
            wait_delivered(producer, 100)
            own.kill_node(1)
            for index in range(1, 50):
                assert producer.send("control", key="j", value=b"%d" % index)
            assert producer.counters.in_flight == 49
            own.restart_node(1)
            wait_delivered(producer, 100)
        messages = [m for batch in read_partitions(settings, "control", to_end=True) for m in batch]
        assert [int(m.value or b"") for m in messages] == list(range(50))


def test_a_producer_that_failed_for_good_is_replaced(tansu: EmbeddedBroker, prefix: str) -> None:
    settings = KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    with BusProducer(settings) as producer:
        producer.send("control", key="j", value=b"before")
        wait_delivered(producer, 100)
        producer._on_error(KafkaError(KafkaError._FATAL, "out of order sequence", True))
        assert producer.send("control", key="j", value=b"after")
        wait_delivered(producer, 100)
        assert producer.counters.delivered == 2


def test_topics_are_widened_and_never_shrunk(kafka: KafkaCluster, prefix: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = KafkaSettings(bootstrap=kafka.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    early = [
        NewTopic(f"{prefix}verdicts", 2, 1, config={"retention.ms": "1000", "max.message.bytes": "5000000"}),
        NewTopic(f"{prefix}control", 9, 1),
    ]
    for future in admin.create_topics(early).values():
        future.result(100)
    assert until(lambda: {f"{prefix}verdicts", f"{prefix}control"} <= set(check_broker(settings).topics))

    planned = ensure_topics(settings, dry_run=True)
    assert check_broker(settings).topics[f"{prefix}verdicts"] == 2
    assert ensure_topics(settings) == planned
    told = [str(change) for change in planned]
    assert f"~ {prefix}verdicts: partitions 2 -> 4" in told
    assert any(line.startswith(f"~ {prefix}verdicts: retention.ms 1000 -> ") for line in told)
    assert any(line.startswith(f"= {prefix}verdicts: max.message.bytes 5000000 stays") for line in told)
    assert any(line.startswith(f"= {prefix}control: partitions 9 stays") for line in told)
    topics = check_broker(settings).topics
    assert (topics[f"{prefix}verdicts"], topics[f"{prefix}control"]) == (4, 9)
    assert {change.action for change in ensure_topics(settings)} == {"keep"}
