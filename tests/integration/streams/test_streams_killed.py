"""Detect and group lose nothing and say nothing twice, whoever is killed, comes or goes on the way."""

from __future__ import annotations

import os
import signal
import time

import pytest
from services_kit import Bench, answer, chunks, committed, feed, once, requests, until

from eroica.bus.local import EmbeddedBroker
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import MissingDependency

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
OUTAGE_S = 25.0
"""Longer than a session and any single call of a client."""


def test_an_outage_of_the_broker_is_waited_out(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker stands still while they start, and again while they work, for longer than their membership lasts."""
    monkeypatch.setenv("EROICA_KAFKA__CONNECT_TIMEOUT_MS", "5000")
    try:
        broker = EmbeddedBroker().start()
    except MissingDependency as error:
        pytest.skip(str(error))
    bench = Bench(broker, prefix, session_ms=3_000)
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
        [request] = requests(once(bench.read("control", enough=lambda found: len(found) >= 1)))
        answer(bench, request, (0, 1, 2, 3))
        bench.read("groups", enough=lambda found: len(found) >= 1)
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
    asked = requests(once(bench.read("control", enough=lambda found: len(once(found)) >= 2)))
    assert [r.reason for r in asked[:2]] == ["scheduled", "degradation"]
    first.wait_ready()
    # All of it, or the second would see the rest, and then a job that stands still until the next feed.
    until(
        lambda: (
            committed(bench, "detect", "iterations") == 2 * 40
            and committed(bench, "detect", "partials") == len(bench.everything("partials"))
        ),
        lambda: "not all was read: " + "".join(first.lines),
    )
    assert first.stop() == 0
    before = len(once(bench.everything("control")))
    bench.service("detect", *steady, "detect.history_ms=1").wait_ready()
    feed(bench, "j", range(60, 130), slow_from=110)
    found = requests(once(bench.read("control", enough=lambda found: len(once(found)) > before)))
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
    bench.read("summaries", enough=lambda found: len(once(found)) == 3)
    # Its next commit covers what it holds only in memory: the second must find that again.
    until(lambda: committed(bench) >= 3, lambda: "nothing was committed")
    first.kill()
    second = bench.service("group")
    answer(bench, request, (1, 3))
    [chunk] = chunks(once(bench.read("groups", enough=lambda found: len(found) >= 1)))
    assert (chunk.received, chunk.closed_by) == ("0-3", "complete")
    second.wait_ready()
    assert second.stop() == 0
    assert len({m.value for m in bench.everything("groups")}) == 1


def test_groups_are_the_same_and_once_when_a_second_process_comes_and_one_goes_in_the_middle(calm_bench: Bench) -> None:
    """Classes of twelve jobs are half filled when a second process joins, and three quarters when the first one leaves."""
    bench = calm_bench
    first = bench.service("group").wait_ready()
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
    second = bench.service("group").wait_ready()
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
