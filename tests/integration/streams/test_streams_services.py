"""Detect and group as real processes on real brokers: what goes in comes out once, whatever it is."""

from __future__ import annotations

import json
import signal
import time

import pytest
from services_kit import (
    SECOND,
    Bench,
    Broker,
    Service,
    announce,
    answer,
    chunks,
    committed,
    feed,
    once,
    requests,
)

from eroica.bus import Incoming
from eroica.schemas.codec import decode, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.iterations import IterationBatch, StepPartial
from eroica.schemas.settings import KafkaSettings
from eroica.streams.app import BUFFERED_MESSAGES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_iterations_in_request_out_summaries_in_groups_out(bench: Bench) -> None:
    announce(bench, "j")
    detect, group = bench.service("detect"), bench.service("group")
    feed(bench, "j", range(40))
    [request] = requests(once(bench.read("control", enough=lambda found: len(found) >= 1)))
    assert request.reason == "degradation" and request.job == "j"
    assert sorted(request.classes.values()) == ["0-1", "2-3"], "the announced pipeline stages are the classes"
    answer(bench, request, (3, 0, 1, 2))
    groups = chunks(once(bench.read("groups", enough=lambda found: len(once(found)) == 2)))
    assert sorted((g.received, g.closed_by) for g in groups) == [("0-1", "complete"), ("2-3", "complete")]
    assert detect.stop(signal.SIGINT) == 0 and group.stop(signal.SIGINT) == 0
    assert len(once(bench.everything("control"))) == 1


def test_a_backlog_longer_than_any_buffer_is_read_whole_and_in_order(calm_bench: Bench) -> None:
    bench = calm_bench
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


def test_what_cannot_be_read_becomes_a_dead_letter_and_the_rest_goes_on(calm_bench: Bench) -> None:
    bench = calm_bench
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
    bench.read("control", enough=lambda found: len(found) >= 1)
    bench.read("iterations.dlq", enough=lambda found: len(once(found)) == len(flood))
    assert detect.process.poll() is None
    assert "".join(detect.lines).count("goes to the dead letters") < 50, "a line for each would fill a disk"


def test_silence_closes_a_class_through_the_topic(bench: Bench) -> None:
    group = bench.service("group", "group.idle_ms=5000").wait_ready()
    request = ProfileRequest(
        request="req-y", job="j", run_id="r", reason="manual", start_step=1, steps=5, world_size=4, classes={"all": "0-3"},
        issued_at_us=bench.start_us, deadline_ms=60_000,
    )  # fmt: skip
    bench.send("j", request)
    answer(bench, request, (0, 1, 2))
    [chunk] = chunks(once(bench.read("groups", enough=lambda found: len(found) >= 1)))
    assert (chunk.received, chunk.closed_by) == ("0-2", "idle")
    kinds = [json.loads(m.value or b"{}")["kind"] for m in once(bench.everything("summaries"))]
    assert sorted(kinds) == ["close_class", "expectation", "summary", "summary", "summary"]
    assert group.stop() == 0


def test_records_of_jobs_whose_clocks_are_far_off_are_dated_by_the_services(calm_bench: Bench) -> None:
    bench = calm_bench
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
    service = Service(KafkaSettings(bootstrap=kafka.bootstrap, connect_timeout_ms=30_000, prefix=prefix), "detect")
    assert service.process.wait(100) != 0
    service._reader.join(100)
    assert "eroica topics ensure" in "".join(service.lines)
