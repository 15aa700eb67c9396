"""Group and localize on three Kafka nodes, while everything that can die does: the verdict is the calm one, and it comes once."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest
from waiting import until

from eroica.bus import BusProducer, ensure_topics, read_partitions
from eroica.bus.local import KafkaCluster
from eroica.bus.local.ports import free_ports
from eroica.bus.producer import wait_delivered
from eroica.localizer.core import LocalizerCore
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.settings import KafkaSettings, load_settings
from eroica.schemas.summaries import CloseClass, Expectation, Summary
from eroica.schemas.verdicts import Verdict
from eroica.simulator.messages import Emission
from eroica.simulator.simulation import Simulation
from eroica.simulator.source import load_scenario
from eroica.streams.collect import GroupCore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SCENARIO = """
name: failures
about: a throttled GPU in a data-parallel job
job: {name: failures, world: 16, framework: ddp}
faults:
  - {fault: slow_gpu_clock, at: {ranks: "5"}, dose: 1.5}
"""


def emitted(folder: Path) -> list[Output]:
    """What agents and the opener put on summaries."""
    file = folder / "failures.yaml"
    # Dated now: the broker's retention goes by the time of the records.
    file.write_text(f'{SCENARIO}start: "{datetime.now(timezone.utc).isoformat()}"\n')
    wanted = (Expectation, Summary, CloseClass)
    return [o for o in Emission(Simulation(load_scenario(file), 3)).all() if isinstance(o.message, wanted)]


def calm_verdict(outputs: list[Output]) -> Verdict:
    """Through the cores, in order, without a broker."""
    group, localizer = GroupCore(load_settings().group), LocalizerCore(load_settings().localize)
    verdicts = []
    for offset, output in enumerate(outputs):
        message = output.message
        assert isinstance(message, (Expectation, Summary, CloseClass))
        for made in group.feed(message, InputRef("summaries", 0, offset)):
            assert isinstance(made.message, GroupChunk)
            verdicts += localizer.feed(made.message, InputRef("groups", 0, len(verdicts)))
    [verdict] = [o.message for o in verdicts]
    assert isinstance(verdict, Verdict)
    return verdict


def comparable(verdict: Verdict) -> bytes:
    """Offsets differ where messages came twice; nothing else may."""
    return encode(msgspec.structs.replace(verdict, provenance=msgspec.structs.replace(verdict.provenance, inputs={})))


class Services:
    """Processes of ours on one broker."""

    def __init__(self, settings: KafkaSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, what: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{what}-{len(self._running)}.log"
        command = [sys.executable, "-m", "eroica.cli", what, "--bootstrap", self._settings.bootstrap]
        command += ["--prefix", self._settings.prefix]
        env = os.environ | {
            "TMPDIR": str(self._folder),
            "EROICA_KAFKA__EXTRA": '{"session.timeout.ms": "3000"}',
            "EROICA_KAFKA__CONNECT_TIMEOUT_MS": "5000",  # brokers die here
        }
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=env, stdout=file, stderr=file)
        self._running.append((process, log))
        return process

    def wait_ready(self) -> None:
        for process, log in self._running:
            until(lambda log=log, process=process: " ready " in log.read_text() or process.poll() is not None, log.read_text)

    def logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for _, log in self._running)

    def saying(self, text: str) -> int:
        """In how many logs *text* stands."""
        return sum(text in log.read_text() for _, log in self._running)

    def close(self) -> None:
        for process, _ in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(100)


def verdicts_on(settings: KafkaSettings) -> list[Verdict]:
    return [
        decode_as(Verdict, record.value, record.where)
        for batch in read_partitions(settings, "verdicts", to_end=True)
        for record in batch
    ]


@pytest.fixture
def services(kafka3: KafkaCluster, prefix: str, tmp_path: Path) -> Iterator[tuple[KafkaSettings, Services]]:
    settings = KafkaSettings(bootstrap=kafka3.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    running = Services(settings, tmp_path)
    yield settings, running
    running.close()


def test_deaths_duplicates_and_disorder_change_nothing(
    services: tuple[KafkaSettings, Services], kafka3: KafkaCluster, tmp_path: Path
) -> None:
    settings, running = services
    outputs = emitted(tmp_path)
    expected = calm_verdict(outputs)
    assert [(c.class_, c.suspects.ranks) for c in expected.causes] == [("worker", "5")]
    mixed = [*outputs, *outputs[::3]]
    random.Random(5).shuffle(mixed)
    group, localizer = running.start("group"), running.start("localize")
    running.start("group")
    running.wait_ready()
    with BusProducer(settings, "test") as producer:

        def send(part: list[Output]) -> None:
            for output in part:
                assert producer.send(output.topic, key=output.key, value=encode(output.message))
            wait_delivered(producer, 100)

        send(mixed[: len(mixed) // 3])
        group.kill()
        kafka3.kill_node(2)
        try:
            send(mixed[len(mixed) // 3 : 2 * len(mixed) // 3])
            localizer.kill()
            running.start("localize")
            running.start("group")
            send(mixed[2 * len(mixed) // 3 :])
            until(lambda: len(verdicts_on(settings)) >= 1, lambda: "no verdict\n" + running.logs())
        finally:
            kafka3.restart_node(2)
        # The same once more: whatever comes again is known by its id.
        send(outputs)
        marker = emitted_as(outputs, "req-marker")
        send(marker)
    until(lambda: any(v.request.id == "req-marker" for v in verdicts_on(settings)), lambda: "no marker\n" + running.logs())
    found = [v for v in verdicts_on(settings) if v.request.id != "req-marker"]
    assert [comparable(v) for v in found] == [comparable(expected)]


def emitted_as(outputs: list[Output], request: str) -> list[Output]:
    """The same messages under another request: when its verdict is there, everything before it was dealt with."""
    renamed = []
    for output in outputs:
        message = output.message
        if isinstance(message, Summary):
            message = msgspec.structs.replace(message, who=msgspec.structs.replace(message.who, request=request))
        elif isinstance(message, Expectation):
            message = msgspec.structs.replace(message, request=msgspec.structs.replace(message.request, request=request))
        elif isinstance(message, CloseClass):
            message = msgspec.structs.replace(message, request=request)
        parts = output.key.split("/")
        renamed.append(Output("/".join([parts[0], request, *parts[2:]]), message, output.event_time_us))
    return renamed


def test_a_broker_that_crashes_and_one_that_comes_back_empty_are_waited_for(
    prefix: str, tmp_path: Path, kafka3: KafkaCluster
) -> None:
    """kafka3 only says whether there is a Kafka at all."""
    port, data = free_ports(2), tmp_path / "kafka"
    running: Services | None = None
    outputs = emitted(tmp_path)
    expected = comparable(calm_verdict(outputs))
    cluster = KafkaCluster(1, port=port, data=data).start()
    settings = KafkaSettings(bootstrap=cluster.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    try:
        ensure_topics(settings)
        running = Services(settings, tmp_path)
        group, localizer = running.start("group"), running.start("localize")
        running.wait_ready()
        with BusProducer(settings, "test") as producer:

            def send(part: list[Output]) -> None:
                for output in part:
                    while not producer.send(output.topic, key=output.key, value=encode(output.message)):
                        time.sleep(0.05)
                wait_delivered_again(producer)

            half = len(outputs) // 2
            send(outputs[:half])
            cluster.kill_node(1)
            cluster.restart_node(1)
            send(outputs[half:])
            until(lambda: len(verdicts_on(settings)) == 1, lambda: "no verdict after the crash\n" + running.logs())
            assert [comparable(v) for v in verdicts_on(settings)] == [expected]

            cluster.stop()
            shutil.rmtree(data)
            cluster = KafkaCluster(1, port=port, data=data).start()
            until(lambda: running.saying("topics are missing") == 2, lambda: "silent\n" + running.logs())
            assert running.saying("Traceback") == 0
            ensure_topics(settings)
            until(lambda: running.saying("begins anew: topics") == 2, lambda: "not noticed\n" + running.logs())
            # The very same messages: at the offsets, and with the ids, that the old broker's had.
            send(outputs)
            until(lambda: len(verdicts_on(settings)) == 1, lambda: "no verdict from the empty broker\n" + running.logs())
        assert [comparable(v) for v in verdicts_on(settings)] == [expected]
        assert group.poll() is None and localizer.poll() is None, running.logs()
    finally:
        if running is not None:
            running.close()
        cluster.stop()


def wait_delivered_again(producer: BusProducer) -> None:
    """Until everything is delivered or given up (what an old client held when another broker answered)."""
    until(lambda: producer.flush(0.5) == 0, lambda: f"undelivered: {producer.counters}")
