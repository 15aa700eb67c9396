"""The localizer as a real process on real brokers: one verdict a request, whoever is killed on the way."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from scenes import Scene, steady
from waiting import until

from eroica.bus import BusProducer, Incoming, ensure_topics, read_partitions
from eroica.bus.local import EmbeddedBroker
from eroica.bus.producer import wait_delivered
from eroica.cli.main import main
from eroica.localizer.core import LocalizerCore
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.errors import MissingDependency
from eroica.schemas.groups import GroupChunk
from eroica.schemas.memory import Baseline
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import KafkaSettings, LocalizeSettings
from eroica.schemas.topics import message_key
from eroica.schemas.verdicts import Verdict

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RUN = (
    "import sys; from eroica.schemas.settings import load_settings; from eroica.localizer.service import run_localizer; "
    "sys.exit(run_localizer(load_settings()))"
)
DEADLINE_S = 200.0
CLASSES = {"pp0": range(4), "pp1": range(4, 8)}


class Broker(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Bench:
    """A prefix of its own, its topics, a producer, and localizers as processes."""

    def __init__(self, broker: Broker, prefix: str, folder: Path, **extra: str) -> None:
        self.settings = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
        # A dead member is noticed after the session timeout, and the embedded broker spends half of it on each join.
        self.extra = {"session.timeout.ms": "3000", **extra}
        self.folder = folder
        self.exactly_once = not isinstance(broker, EmbeddedBroker)
        ensure_topics(self.settings)
        self.producer = BusProducer(self.settings, "test")
        self.processes: list[subprocess.Popen[bytes]] = []

    def localizer(self) -> subprocess.Popen[bytes]:
        """Start one and wait until it has partitions."""
        process = self.start()
        self.wait_ready(process)
        return process

    def start(self) -> subprocess.Popen[bytes]:
        log = self.folder / f"localizer-{len(self.processes)}.log"
        env = os.environ | {
            "EROICA_KAFKA__BOOTSTRAP": self.settings.bootstrap,
            "EROICA_KAFKA__PREFIX": self.settings.prefix,
            "EROICA_KAFKA__EXTRA": json.dumps(self.extra),
            "TMPDIR": str(self.folder),
        }
        with log.open("wb") as file:
            process = subprocess.Popen([sys.executable, "-c", RUN], env=env, stderr=file)
        self.processes.append(process)
        return process

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"localizer-{self.processes.index(process)}.log").read_text()

    def wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        until(
            lambda: " ready " in self.log_of(process) or process.poll() is not None, lambda: "not ready: " + self.log_of(process)
        )
        assert process.poll() is None, self.log_of(process)

    def send(self, chunk: GroupChunk) -> None:
        key = message_key(chunk.job, chunk.request.request)
        assert self.producer.send("groups", key=key, value=encode(chunk))

    def verdicts(self, at_least: int) -> list[Incoming]:
        """All committed records on the topic once there are enough; a second look finds what came twice."""
        end = time.monotonic() + DEADLINE_S
        while len(found := self.records("verdicts")) < at_least:
            assert time.monotonic() < end, f"{len(found)} of {at_least} verdicts"
        return found

    def records(self, topic: str) -> list[Incoming]:
        """All on *topic*. The embedded broker shows also what an aborted transaction wrote: there a repetition is left out."""
        found = [r for batch in read_partitions(self.settings, topic, to_end=True, settle_s=0.3, poll_s=0.05) for r in batch]
        if self.exactly_once:
            return found
        return list({(r.key, r.value, r.header("__connect.errors.offset")): r for r in found}.values())

    def logs(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(100)
        self.producer.close(2)


def chunks(request: str, slow: int = 2) -> list[GroupChunk]:
    return Scene(8, steady(50_000.0, {slow: 1.8}), classes=CLASSES, request=request).chunks()


@pytest.fixture
def bench(broker: Broker, prefix: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(broker, prefix, tmp_path)
    yield made
    made.close()


@pytest.fixture
def kafka_bench(kafka: Broker, prefix: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(kafka, prefix, tmp_path)
    yield made
    made.close()


def test_a_request_in_two_classes_repeated_gives_the_cores_verdict_once(bench: Bench) -> None:
    process = bench.localizer()
    for chunk in [*chunks("req-a"), *chunks("req-a"), *chunks("req-b", slow=5)]:
        bench.send(chunk)
    wait_delivered(bench.producer, 100)
    found = bench.verdicts(2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(100) == 0
    found = bench.records("verdicts")
    core = LocalizerCore(LocalizeSettings())
    expected = {
        encode(output.message)
        for request, slow in (("req-a", 2), ("req-b", 5))
        for chunk in chunks(request, slow)
        for output in core.feed(chunk, InputRef("groups", 0, 0))
    }
    assert len(found) == 2
    assert {record.value for record in found} == expected
    assert {record.key for record in found} == {b"job"}
    assert found[0].header("ce_type") == b"io.eroica.verdict"


def test_kill_9_between_the_classes_of_a_request_loses_and_repeats_nothing(bench: Bench) -> None:
    first = bench.localizer()
    bench.send(chunks("req-done")[0])
    bench.send(chunks("req-done")[1])
    bench.send(chunks("req-open")[0])
    wait_delivered(bench.producer, 100)
    bench.verdicts(1)
    first.kill()
    first.wait(100)
    bench.send(chunks("req-open")[1])
    bench.send(chunks("req-done")[0])
    bench.send(chunks("req-done")[1])
    wait_delivered(bench.producer, 100)
    bench.localizer()
    bench.verdicts(2)
    bench.send(chunks("req-last")[0])
    bench.send(chunks("req-last")[1])
    wait_delivered(bench.producer, 100)
    found = [decode_as(Verdict, record.value).request.id for record in bench.verdicts(3)]
    assert sorted(found) == ["req-done", "req-last", "req-open"]


def test_two_localizers_share_the_work_and_one_takes_over(kafka_bench: Bench) -> None:
    first, _second = kafka_bench.localizer(), kafka_bench.localizer()
    for number in range(12):
        kafka_bench.send(chunks(f"req-{number}")[0])
    wait_delivered(kafka_bench.producer, 100)
    first.kill()
    first.wait(100)
    for number in range(12):
        kafka_bench.send(chunks(f"req-{number}")[1])
    wait_delivered(kafka_bench.producer, 100)
    kafka_bench.verdicts(12)
    found = [decode_as(Verdict, record.value).request.id for record in kafka_bench.records("verdicts")]
    assert sorted(found) == sorted(f"req-{number}" for number in range(12))


def test_what_cannot_be_read_is_a_dead_letter_and_the_rest_goes_on(bench: Bench) -> None:
    bench.localizer()
    good = chunks("req-good")
    impossible = encode(chunks("req-bad")[0]).replace(b'"chunks":1', b'"chunks":0')
    bad = [b"\xff not json", b'{"kind":"group","schema_version":"9.0"}', impossible]
    for value in bad:
        assert bench.producer.send("groups", key="job/req-bad", value=value)
    for chunk in good:
        bench.send(chunk)
    wait_delivered(bench.producer, 100)
    assert len(bench.verdicts(1)) == 1
    until(
        lambda: len(bench.records("groups.dlq")) >= len(bad),
        lambda: f"{len(bench.records('groups.dlq'))} dead letters; {bench.logs()}",
    )
    letters = bench.records("groups.dlq")
    assert sorted(letter.value or b"" for letter in letters) == sorted(bad)
    for letter in letters:
        assert letter.header("__connect.errors.exception.message")
        assert letter.header("__connect.errors.topic") == f"{bench.settings.prefix}groups".encode()


def test_a_flood_that_cannot_be_read_stops_nothing(bench: Bench) -> None:
    process = bench.localizer()
    flood = [b"\xff not json", b"null", b"{}", b"[" * 5_000] * 75
    for value in flood:
        assert bench.producer.send("groups", key="other/request", value=value)
    for chunk in chunks("req-good"):
        bench.send(chunk)
    wait_delivered(bench.producer, 100)
    assert len(bench.verdicts(1)) == 1
    until(lambda: len(bench.records("groups.dlq")) >= len(flood), bench.logs)
    assert process.poll() is None
    assert bench.logs().count("dead letters") < 50, "a line for each would fill a disk"


def test_an_outage_of_the_broker_is_waited_out(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker stands still for longer than any call to it waits: at work, at a start, and at an end."""
    monkeypatch.setenv("EROICA_KAFKA__CONNECT_TIMEOUT_MS", "5000")
    try:
        broker = EmbeddedBroker().start()
    except MissingDependency as error:
        pytest.skip(str(error))
    bench = Bench(broker, prefix, tmp_path, **{"socket.timeout.ms": "4000"})
    try:
        process = bench.localizer()
        os.kill(broker.pid, signal.SIGSTOP)
        until(lambda: "the consumer of localize waits for the broker" in bench.logs(), bench.logs)
        os.kill(broker.pid, signal.SIGCONT)
        for chunk in chunks("req-after"):
            bench.send(chunk)
        wait_delivered(bench.producer, 100)
        bench.verdicts(1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
        os.kill(broker.pid, signal.SIGSTOP)
        late = bench.start()
        until(lambda: "localize waits for the broker" in bench.log_of(late), bench.logs)
        os.kill(broker.pid, signal.SIGCONT)
        bench.wait_ready(late)
        os.kill(broker.pid, signal.SIGSTOP)
        until(lambda: "the consumer of localize waits for the broker" in bench.log_of(late), bench.logs)
        late.send_signal(signal.SIGTERM)
        assert late.wait(100) == 0, "an order to end is heard in an outage too"
    finally:
        os.kill(broker.pid, signal.SIGCONT)
        bench.close()
        broker.stop()


def verdict_of(bench: Bench, request: str, at_least: int) -> Verdict:
    for chunk in chunks(request):
        bench.send(chunk)
    wait_delivered(bench.producer, 100)
    found = [decode_as(Verdict, record.value) for record in bench.verdicts(at_least)]
    return next(v for v in found if v.request.id == request)


def counts(verdict: Verdict) -> dict[str, tuple[int, int]]:
    action = verdict.causes[0].action
    return {r.id: (r.helped, r.did_not_help) for r in action.remedies} | {"": (action.helped, action.did_not_help)}


def test_what_is_said_of_a_verdict_stands_in_the_next(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.localizer()
    first = verdict_of(bench, "req-1", 1)
    remedy = first.causes[0].action.remedies[0].id
    assert set(counts(first).values()) == {(0, 0)}
    at = ["--bootstrap", bench.settings.bootstrap, "--prefix", bench.settings.prefix]
    said = ["verdicts", "feedback", first.verdict_id, *at]
    assert main([*said, "--helped", "no", "--remedy", remedy, "--author", "ann"]) == 0
    assert main([*said, "--helped", "yes", "--remedy", remedy, "--author", "ann"]) == 0
    assert main([*said, "--helped", "no", "--author", "bob", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["helped"] is False
    assert main([*said, "--helped", "yes", "--remedy", "prayer"]) == 2
    assert main(["verdicts", "feedback", "verdict-unknown", "--helped", "yes", *at]) == 2
    bench.producer.send("feedback", key="job", value=b"\xff no vote")
    wait_delivered(bench.producer, 100)
    asked = itertools.count(2)
    last = [first]

    def shown() -> bool:
        number = next(asked)
        last[0] = verdict_of(bench, f"req-{number}", number)
        return counts(last[0]) == counts(first) | {remedy: (1, 0), "": (0, 1)}

    until(shown, lambda: f"{counts(last[0])}; {bench.logs()}")
    assert any(place.startswith("feedback/") for place in last[0].provenance.inputs)
    assert main(["verdicts", *at]) == 0
    assert "helped 1 of 1" in capsys.readouterr().out


def test_a_healthy_profile_by_hand_is_kept_as_the_jobs_past_and_its_verdict_goes_out(bench: Bench) -> None:
    bench.localizer()
    healthy = [
        with_reason(chunk, "manual") for chunk in Scene(8, steady(50_000.0, {}), classes=CLASSES, request="req-h").chunks()
    ]
    for chunk in healthy:
        bench.send(chunk)
    wait_delivered(bench.producer, 100)
    [record] = bench.verdicts(1)
    assert decode_as(Verdict, record.value).status == "no_fault_found"
    until(lambda: len(bench.records("baselines")) >= 2, bench.logs)
    kept = [decode_as(Baseline, r.value) for r in bench.records("baselines")]
    assert sorted((b.job, b.cls, b.request) for b in kept) == [("job", "pp0", "req-h"), ("job", "pp1", "req-h")]
    # A localizer that was not there then holds a later request of the job against it: all ranks have become slower alike.
    bench.processes[0].kill()
    bench.processes[0].wait(100)
    bench.localizer()
    later = Scene(8, steady(90_000.0, {}), classes=CLASSES, request="req-l", issued_at_us=60_000_000)
    for chunk in later.chunks():
        bench.send(chunk)
    wait_delivered(bench.producer, 100)
    found = {v.request.id: v for v in (decode_as(Verdict, r.value) for r in bench.verdicts(2))}
    assert [cause.class_ for cause in found["req-l"].causes] == ["whole_job"], bench.logs()
    for cls in CLASSES:
        bench.producer.send("baselines", key=f"job/{cls}", value=None)
    wait_delivered(bench.producer, 100)
    asked = itertools.count(3)
    last: list[Verdict] = []

    def forgotten() -> bool:
        number = next(asked)
        scene = Scene(8, steady(90_000.0, {}), classes=CLASSES, request=f"req-{number}", issued_at_us=60_000_000 + number)
        for chunk in scene.chunks():
            bench.send(chunk)
        wait_delivered(bench.producer, 100)
        found = [decode_as(Verdict, r.value) for r in bench.verdicts(number)]
        last[:] = [v for v in found if v.request.id == f"req-{number}"]
        return last[0].status == "no_fault_found" and "baselines" not in last[0].provenance.inputs

    until(forgotten, lambda: f"what was deleted still counts: {last}")


def test_every_localizer_holds_requests_against_a_profile_that_one_of_them_found(kafka_bench: Bench) -> None:
    bench = kafka_bench
    bench.producer.send("baselines", key="job/pp0", value=b"\xff no profile")
    odd = Baseline(job="job", cls="pp0", request="req-odd", event_time_us=59_000_000, step_us=1.0, ranks="0-9")
    bench.producer.send("baselines", key="job/pp0", value=encode(odd))
    for _ in range(2):
        bench.localizer()
    healthy = Scene(8, steady(50_000.0, {}), classes=CLASSES, request="req-h").chunks()
    for chunk in healthy:
        bench.send(with_reason(chunk, "scheduled"))
    wait_delivered(bench.producer, 100)
    bench.verdicts(1)
    until(lambda: len(bench.records("baselines")) == 4, bench.logs)
    found: dict[str, Verdict] = {}
    alarms: list[str] = []
    asked = itertools.count()

    def known() -> bool:
        """Whether all twelve of the next requests are held against it: each localizer reads it in its own time."""
        alarms[:] = [f"req-{next(asked)}" for _ in range(12)]
        for request in alarms:
            issued_at_us = (60 + int(request.removeprefix("req-"))) * 1_000_000
            later = Scene(8, steady(90_000.0, {}), classes=CLASSES, request=request, issued_at_us=issued_at_us)
            for chunk in later.chunks():
                bench.send(chunk)
        wait_delivered(bench.producer, 100)
        verdicts = bench.verdicts(1 + int(alarms[-1].removeprefix("req-")) + 1)
        found.update({v.request.id: v for v in (decode_as(Verdict, r.value) for r in verdicts)})
        return {found[request].provenance.inputs.get("baselines") for request in alarms} == {"req-h"}

    until(known, lambda: f"{[found[request].provenance.inputs for request in alarms]}; {bench.logs()}")
    logs = [log.read_text() for log in sorted(bench.folder.glob("*.log"))]
    asked_last = {message_key("job", request).encode() for request in alarms}
    half = {r.partition < 8 for r in bench.records("groups") if r.key in asked_last}
    assert half == {True, False}, "each of them has half of the partitions, and requests in them"
    assert {found[request].causes[0].class_ for request in alarms} == {"whole_job"}
    assert all("a healthy profile is left out (2 so far)" in log for log in logs)


def with_reason(chunk: GroupChunk, reason: str) -> GroupChunk:
    return msgspec.structs.replace(chunk, request=msgspec.structs.replace(chunk.request, reason=reason))
