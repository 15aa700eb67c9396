"""Recording a job's topics from a broker: only that job's messages, bounded memory, safe to stop and go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import Consumer
from pydantic import ValidationError

from eroica.bus import Incoming, client_config, read_partitions
from eroica.bus.consumer import partition_ids
from eroica.offline.writer import RecordingWriter
from eroica.schemas.base import Message
from eroica.schemas.codec import decode
from eroica.schemas.errors import SchemaError, UsageError
from eroica.schemas.settings import EroicaSettings, KafkaSettings
from eroica.schemas.summaries import Expectation, StackEvidence, Summary, SummaryError
from eroica.schemas.topics import KEY_SEPARATOR, message_key
from eroica.schemas.wrongsetting import may_be

RECORDED_TOPICS = ("verdicts", "groups", "feedback", "summaries", "control", "baselines", "partials", "iterations", "jobs")
"""Effects before their causes: what is recorded has everything that led to it recorded too, though the job goes on meanwhile."""
RECORDED_SETTINGS = ("detect", "group", "localize")
SETTLE_S = 0.5
"""A topic counts as read when all ends were met and nothing came for so long (end offsets alone may read too low)."""
CHECKPOINT_S = 2.0
OF_ALL_JOBS = frozenset({"feedback"})
"""Topics of which every message is recorded, whatever the job."""
MAX_OTHERS = 10

Until = Literal["now", "verdict", "stopped"]


@dataclass(frozen=True, slots=True)
class RecordProgress:
    """How far a recorder is."""

    topic: str
    counts: dict[str, int]


class JobFilter:
    """Decides which records are of one job. Pure.

    The key's first part names the job; a separator in the name was replaced there, so where two names could share a key the
    message itself decides. What cannot be read is kept: a recording is faithful.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._key = message_key(job).encode()
        self._part = self._key + KEY_SEPARATOR.encode()
        self._ambiguous = "_" in message_key(job)
        self.others: set[str] = set()
        """Some names of other jobs that were met, as their keys spell them."""

    def __call__(self, topic: str, record: Incoming) -> bool:
        """Whether *record* of *topic* (short name) is of the job."""
        if topic in OF_ALL_JOBS:  # what was said of remedies counts for the verdicts of all jobs
            return True
        key = record.key or b""
        if key != self._key and not key.startswith(self._part):
            if len(self.others) < MAX_OTHERS and key:
                self.others.add(key[:400].decode(errors="replace").partition(KEY_SEPARATOR)[0])
            return False
        if not self._ambiguous or record.value is None:
            return True
        try:
            return job_of(decode(topic, record.value)) == self._job
        except SchemaError:
            return True


def known_settings(recorded: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Of *recorded* settings those that this version knows, by section, and a note for each other one. Pure.

    A recording may be of another version: a setting that is gone, or may no longer have its value, must not keep it from being
    replayed.
    """
    known: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for section in RECORDED_SETTINGS:
        kind = type(EroicaSettings.model_fields[section].default)
        kept = known[section] = {}
        for key, value in recorded.get(section, {}).items():
            if key not in kind.model_fields:
                notes.append(f"the recording's setting {section}.{key} is not known here and left out")
                continue
            try:
                kind.model_validate({key: value})
            except ValidationError:
                needed = may_be(kind.model_fields[key])
                notes.append(f"the recording's setting {section}.{key} is not {needed}, as it must be here; it has its default")
            else:
                kept[key] = value
    return known, notes


def job_of(message: Message) -> str:
    """The job that a message is about."""
    if isinstance(message, (Summary, SummaryError, StackEvidence)):
        return message.who.job
    if isinstance(message, Expectation):
        return message.request.job
    return str(getattr(message, "job", ""))


def record(
    settings: EroicaSettings,
    job: str,
    directory: Path,
    *,
    until: Until = "now",
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[RecordProgress], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, int]:
    """Write *job*'s topics into *directory*; returns the number of messages by topic.

    :param until: ``now``: what is there; ``verdict``: go on until a verdict is recorded; ``stopped``: until *stop* says so.
    :param stop: asked between batches; what was read so far is a whole recording.
    :raises BrokerError: broker unreachable or a topic missing.
    :raises InvalidInput: *directory* holds a recording of something else.
    :raises UsageError: nothing on the topics is of *job*; a folder that was made for it is removed again.
    """
    kept = {name: getattr(settings, name).model_dump(mode="json") for name in RECORDED_SETTINGS}
    writer = RecordingWriter(directory, job=job, prefix=settings.kafka.prefix, settings=kept)
    wanted = JobFilter(job)
    before = writer.counts().get("verdicts", 0)
    try:
        while True:
            for topic in RECORDED_TOPICS:
                on_progress(RecordProgress(topic, writer.counts()))
                _read_topic(settings.kafka, topic, writer, wanted, stop, clock)
            if stop() or until == "now" or (until == "verdict" and writer.counts().get("verdicts", 0) > before):
                break
    except BaseException:
        writer.close(early=True)
        raise
    writer.close()
    counts = writer.counts()
    if not counts.keys() - OF_ALL_JOBS:
        writer.discard()
        raise UsageError(
            "nothing on the topics is of a job of this name, so nothing was recorded"
            + (f"; there are: {', '.join(sorted(wanted.others))}" if wanted.others else ""),
            where=f"job {job[:200]}",
            do="check the name and --prefix, and that an agent reports the job",
        )
    return counts


def _read_topic(
    settings: KafkaSettings,
    topic: str,
    writer: RecordingWriter,
    wanted: JobFilter,
    stop: Callable[[], bool],
    clock: Callable[[], float],
) -> None:
    """Read *topic* from where the recording ends to the topic's end as of now."""
    writer.note_partitions(topic, _partition_count(settings, topic))
    start = writer.start_of(topic)
    saved_at = clock()
    batches = read_partitions(
        settings, topic, start=start, to_end=True, settle_s=SETTLE_S, poll_s=0.1, stop=stop, client_id="eroica-record"
    )
    for batch in batches:
        for item in batch:
            if wanted(topic, item):
                writer.add(topic, item)
            writer.passed(topic, item.partition, item.offset)
        if clock() - saved_at > CHECKPOINT_S:
            writer.checkpoint()
            saved_at = clock()
    writer.checkpoint()


def _partition_count(settings: KafkaSettings, topic: str) -> int:
    consumer: Any = Consumer(client_config(settings, "consumer", client_id="eroica-record"))
    try:
        return len(partition_ids(consumer, settings, topic))
    finally:
        consumer.close()
