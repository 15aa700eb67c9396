"""Where the messages of a simulated job go: a recording that ``eroica replay`` takes, or a broker."""

from __future__ import annotations

import gc
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import orjson

from eroica.bus import BusProducer, Headers, Incoming, cloudevent_headers, ensure_topics
from eroica.bus.producer import wait_delivered
from eroica.offline.record import RECORDED_SETTINGS
from eroica.offline.writer import RecordingWriter
from eroica.schemas.base import Message
from eroica.schemas.codec import encode
from eroica.schemas.errors import BrokerError, MessageTooLarge, UsageError
from eroica.schemas.outputs import Output
from eroica.schemas.settings import EroicaSettings, KafkaSettings
from eroica.schemas.summaries import Summary
from eroica.schemas.topics import MESSAGE_TOPIC, TOPICS

LABELS = "labels.json"
FULL_QUEUE_S = 60.0
DELIVERY_S = 60.0
PROGRESS_EVERY = 500
FAST_LEVEL = 1
"""Compression of a recording that is written faster than any job would speak."""
_SUMMARIES = msgspec.json.Encoder()


def write_recording(
    outputs: Iterable[Output],
    directory: Path,
    *,
    job: str,
    labels: dict[str, Any],
    settings: EroicaSettings,
    on_progress: Callable[[int], None] = lambda _: None,
) -> dict[str, int]:
    """Write *outputs* as a recording of *job* into an empty folder, and the truth beside it; returns messages by topic.

    A key's partition is CRC-32 modulo their number, as librdkafka's default partitioner has it.

    :raises UsageError: the folder holds something.
    """
    if directory.exists() and any(directory.iterdir()):
        raise UsageError("the folder is not empty", where=str(directory), do="name another one")
    kept = {name: getattr(settings, name).model_dump(mode="json") for name in RECORDED_SETTINGS}
    writer = RecordingWriter(directory, job=job, prefix=settings.kafka.prefix, settings=kept, level=FAST_LEVEL)
    offsets: dict[tuple[str, int], int] = {}
    for spec in TOPICS.values():
        writer.note_partitions(spec.name, spec.partitions)
    with _collector_off():
        for count, output in enumerate(outputs, 1):
            topic, key = output.topic, output.key.encode()
            partition = zlib.crc32(key) % TOPICS[topic].partitions
            offset = offsets.get((topic, partition), 0)
            offsets[topic, partition] = offset + 1
            raw, headers = _encode(output.message), _headers(output, f"{topic}/{partition}/{offset}")
            writer.add(topic, Incoming(topic, partition, offset, key, raw, headers, output.event_time_us // 1_000))
            writer.passed(topic, partition, offset)
            if count % PROGRESS_EVERY == 0:
                on_progress(count)
    writer.close()
    (directory / LABELS).write_bytes(orjson.dumps(labels, option=orjson.OPT_INDENT_2) + b"\n")
    return writer.counts()


def send_to_broker(
    outputs: Iterable[Output],
    settings: KafkaSettings,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, int]:
    """Send *outputs* to the topics, which are made if needed; returns messages by topic.

    :raises BrokerError: the broker is away, or messages stay undelivered.
    """
    ensure_topics(settings)
    counts: dict[str, int] = {}
    with BusProducer(settings, "eroica-simulate") as producer:
        for count, output in enumerate(outputs, 1):
            _send(producer, output, count, clock, sleep)
            counts[output.topic] = counts.get(output.topic, 0) + 1
            if count % PROGRESS_EVERY == 0:
                on_progress(count)
        wait_delivered(producer, DELIVERY_S)
    return counts


def _send(producer: BusProducer, output: Output, number: int, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    raw, deadline = _encode(output.message), clock() + FULL_QUEUE_S
    headers = _headers(output, f"{output.topic}/{output.key}/{number}")
    while not producer.send(
        output.topic, key=output.key.encode(), value=raw, headers=headers, timestamp_ms=output.event_time_us // 1_000
    ):
        if clock() > deadline:
            raise BrokerError("the broker does not take messages", where=output.topic, do="check that it is up")
        sleep(0.05)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Without the cycle collector: messages are trees, and it would walk through millions of their lists for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _encode(message: Message) -> bytes:
    """The bytes of ``codec.encode``, three times as fast for summaries, of which a large job has a hundred thousand."""
    if not isinstance(message, Summary):
        return encode(message)
    raw = _SUMMARIES.encode(message)
    if len(raw) > MESSAGE_TOPIC[Summary].max_message_bytes:
        raise MessageTooLarge(f"a summary of {len(raw)} bytes is over the limit of its topic", where=f"rank {message.who.rank}")
    return raw


def _headers(output: Output, place: str) -> Headers:
    kind = type(output.message).__struct_config__.tag
    return cloudevent_headers(
        event_type=f"io.eroica.{kind}",
        source="/simulator",
        event_id=place,
        time_ms=output.event_time_us // 1_000,
    )
