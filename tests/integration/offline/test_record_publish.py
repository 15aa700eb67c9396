"""Recording from a broker and publishing onto it: the same messages in the same places, on both kinds of broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from eroica.bus import BusProducer, Incoming, ensure_topics, read_partitions
from eroica.cli.main import main
from eroica.offline.publish import REPLAY_HEADER, publish
from eroica.offline.recording import read_file, read_manifest, verify
from eroica.schemas.codec import encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import UsageError
from eroica.schemas.memory import Feedback
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.summaries import CloseClass

pytestmark = pytest.mark.integration
NOW_MS = time.time_ns() // 1_000_000
"""Records are dated about now: Kafka deletes those that are older than their topic keeps, at a time of its own."""


def request(job: str, number: int) -> bytes:
    return encode(
        ProfileRequest(
            request=f"r{number}",
            job=job,
            run_id="1",
            reason="manual",
            steps=1,
            world_size=2,
            classes={"all": "0-1"},
            issued_at_us=number,
            deadline_ms=1,
        )
    )


def close(job: str, number: int) -> bytes:
    return encode(CloseClass(job=job, request=f"r{number}", cls="all", closed_by="idle"))


def fill(settings: KafkaSettings, job: str, numbers: range) -> None:
    with BusProducer(settings) as producer:
        for n in numbers:
            headers = (("ce_type", b"\xff"),)
            producer.send("control", key=job, value=request(job, n), headers=headers, timestamp_ms=NOW_MS + n)
            producer.send("summaries", key=f"{job}/r{n}/all", value=close(job, n), timestamp_ms=NOW_MS + n)
        assert producer.flush(100) == 0


def recorded(directory: Path) -> dict[str, list[Incoming]]:
    manifest = read_manifest(directory)
    verify(directory, manifest)
    found: dict[str, list[Incoming]] = {}
    for entry in manifest.files:
        found.setdefault(entry.topic, []).extend(read_file(directory, entry))
    return found


def essence(records: list[Incoming]) -> list[tuple[object, ...]]:
    pairs = [(r.partition, r.key, r.value, r.timestamp_ms, tuple(h for h in r.headers if h[0] != REPLAY_HEADER)) for r in records]
    return sorted(pairs, key=repr)


def test_a_jobs_messages_come_to_disk_and_back(
    broker: Any, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    fill(settings, "mine", range(300))
    fill(settings, "other", range(50))
    options = ["--bootstrap", broker.bootstrap, "--prefix", prefix]
    directory = tmp_path / "rec"
    assert main(["record", *options, "--job", "mine", "--out", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"control": 300, "summaries": 300}

    fill(settings, "mine", range(300, 320))
    assert main(["record", *options, "--job", "mine", "--out", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"control": 320, "summaries": 320}
    found = recorded(directory)
    assert {r.key for r in found["control"]} == {b"mine"}
    assert len({r.value for r in found["summaries"]}) == 320

    again = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=f"again.{prefix}")
    manifest = read_manifest(directory)
    assert publish(directory, manifest, again, speed=0) == 640
    for topic in ("control", "summaries"):
        published = [r for batch in read_partitions(again, topic, to_end=True) for r in batch]
        assert essence(published) == essence(found[topic])
        assert len({r.header(REPLAY_HEADER) for r in published}) == 1
        assert published[0].header(REPLAY_HEADER)


def test_a_job_that_nobody_knows_leaves_no_recording_and_says_which_there_are(
    tansu: Any, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    fill(settings, "mine", range(2))
    vote = Feedback(job="mine", verdict_id="v", helped=True, fault="worker", event_time_us=1)
    with BusProducer(settings) as producer:  # of no job in particular, and recorded with each
        producer.send("feedback", key="mine", value=encode(vote))
        assert producer.flush(100) == 0
    options = ["--bootstrap", tansu.bootstrap, "--prefix", prefix]
    assert main(["record", *options, "--job", "mien", "--out", str(tmp_path / "rec")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "job mien: nothing on the topics is of a job of this name" in told.err and "there are: mine" in told.err
    assert not (tmp_path / "rec").exists()
    assert main(["record", *options, "--job", "mine", "--out", str(tmp_path / "rec"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"control": 2, "feedback": 1, "summaries": 2}


def test_the_recordings_own_prefix_is_refused(tansu: Any, prefix: str, tmp_path: Path) -> None:
    settings = KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    fill(settings, "mine", range(1))
    options = ["--bootstrap", tansu.bootstrap, "--prefix", prefix]
    assert main(["record", *options, "--job", "mine", "--out", str(tmp_path / "rec")]) == 0
    with pytest.raises(UsageError, match="prefix"):
        publish(tmp_path / "rec", read_manifest(tmp_path / "rec"), settings, speed=0)


def test_pauses_are_those_of_the_recording(tansu: Any, prefix: str, tmp_path: Path) -> None:
    settings = KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    fill(settings, "mine", range(0, 4_000, 1_000))
    options = ["--bootstrap", tansu.bootstrap, "--prefix", prefix]
    assert main(["record", *options, "--job", "mine", "--out", str(tmp_path / "rec")]) == 0
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    again = KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=f"again.{prefix}")
    publish(tmp_path / "rec", read_manifest(tmp_path / "rec"), again, speed=10, clock=lambda: now[0], sleep=sleep)
    assert now[0] == pytest.approx(0.3)


@pytest.mark.timeout(120)
def test_a_recorder_that_follows_ends_in_order_on_sigterm(tansu: Any, prefix: str, tmp_path: Path) -> None:
    settings = KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    fill(settings, "mine", range(10))
    words = [
        "record",
        "--bootstrap",
        tansu.bootstrap,
        "--prefix",
        prefix,
        "--job",
        "mine",
        "--out",
        str(tmp_path / "rec"),
        "--follow",
    ]
    process = subprocess.Popen([sys.executable, "-m", "eroica.cli.main", *words], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: sum(len(records) for records in peek(tmp_path / "rec").values()) == 20)
        fill(settings, "mine", range(10, 15))
        until(lambda: sum(len(records) for records in peek(tmp_path / "rec").values()) == 30)
    finally:
        process.terminate()
        _, shown = process.communicate(timeout=100)
    assert process.returncode == 0
    assert "Traceback" not in shown
    assert len(recorded(tmp_path / "rec")["control"]) == 15


def peek(directory: Path) -> dict[str, list[Incoming]]:
    return recorded(directory) if (directory / "manifest.json").exists() else {}
