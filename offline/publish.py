"""A recording back onto a broker, under another prefix, at its own speed or faster."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from pathlib import Path

from eroica.bus import BusProducer, Headers, Incoming, ensure_topics, list_topics
from eroica.bus.config import full_name
from eroica.bus.producer import wait_delivered
from eroica.offline.recording import Manifest, read_file
from eroica.schemas.errors import BrokerError, UsageError
from eroica.schemas.ids import stable_id
from eroica.schemas.settings import KafkaSettings

REPLAY_HEADER = "x-replay-id"
"""Tells a reader that a record comes from a recording, and from which replay."""
MAX_GAP_MS = 60_000
"""Longest pause between two messages: where a record is dated far off, nobody waits a year for it."""
FULL_QUEUE_S = 60.0
DELIVERY_S = 60.0


def publish(
    directory: Path,
    manifest: Manifest,
    settings: KafkaSettings,
    *,
    speed: float = 1.0,
    on_progress: Callable[[int], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Write all recorded messages in the order of their timestamps; returns how many.

    Each keeps its partition, key, headers and timestamp, and gets the header ``x-replay-id``. The topics are made if needed.

    :param speed: 1 as recorded, 10 ten times as fast, 0 without any pause.
    :raises UsageError: the prefix is the recording's own, or a negative speed.
    :raises BrokerError: broker unreachable, a topic with fewer partitions than recorded, or messages undelivered.
    """
    if speed < 0:
        raise UsageError("the speed is negative", where="--speed", do="1 is the original speed, 0 means without pauses")
    if settings.prefix == manifest.prefix:
        raise UsageError(f"the recording came from prefix {settings.prefix!r} itself", where="--prefix", do="name another one")
    ensure_topics(settings)
    present = list_topics(settings)
    recorded = dict(manifest.partitions)
    for entry in manifest.files:
        recorded[entry.topic] = max(recorded.get(entry.topic, 0), entry.partition + 1)
    for topic, wanted in sorted(recorded.items()):
        if present.get(full_name(settings, topic), 0) < wanted:
            raise BrokerError(f"the topic has fewer than the recorded {wanted} partitions", where=full_name(settings, topic))
    replay_id = stable_id("replay", manifest.job, settings.prefix, *(entry.sha256 for entry in manifest.files)).encode()
    streams = [read_file(directory, entry) for entry in manifest.files]
    began, last_ms, passed_ms, sent = clock(), None, 0, 0
    with BusProducer(settings, "eroica-replay") as producer:
        for record in heapq.merge(*streams, key=lambda r: (r.timestamp_ms, r.topic, r.partition, r.offset)):
            if stop():
                break
            passed_ms += min(MAX_GAP_MS, max(0, record.timestamp_ms - (record.timestamp_ms if last_ms is None else last_ms)))
            last_ms = record.timestamp_ms
            if speed > 0:
                _pause(began + passed_ms / 1_000 / speed, clock, sleep, stop)
            _send(producer, record, (*record.headers, (REPLAY_HEADER, replay_id)), clock, sleep)
            sent += 1
            if sent % 500 == 0:
                on_progress(sent)
        wait_delivered(producer, DELIVERY_S)
    return sent


def _send(
    producer: BusProducer, record: Incoming, headers: Headers, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Queue one record; a full queue is waited for."""
    deadline = clock() + FULL_QUEUE_S
    while not producer.send(
        record.topic,
        key=record.key,
        value=record.value,
        headers=headers,
        timestamp_ms=record.timestamp_ms if record.timestamp_ms >= 0 else None,
        partition=record.partition,
    ):
        if clock() > deadline:
            raise BrokerError("the broker does not take messages", where=record.where, do="check that it is up")
        sleep(0.05)


def _pause(until: float, clock: Callable[[], float], sleep: Callable[[float], None], stop: Callable[[], bool]) -> None:
    while (left := until - clock()) > 0 and not stop():
        sleep(min(left, 0.2))
