"""State after a restart or a takeover: a partition's recent past is read again, its outputs thrown away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from eroica.bus.config import client_config, full_name
from eroica.bus.consumer import METADATA_TIMEOUT_S, read_partitions
from eroica.bus.errors import translate
from eroica.bus.message import Incoming
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)


def committed_offsets(settings: KafkaSettings, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Where *group* (full name) goes on in *topic* (short name); partitions without a commit are left out. Blocks.

    :raises BrokerError: broker unreachable.
    """
    consumer = Consumer(client_config(settings, "consumer", client_id="eroica-rebuild", group=group))
    try:
        wanted = [TopicPartition(full_name(settings, topic), p) for p in sorted(partitions)]
        return {p.partition: p.offset for p in consumer.committed(wanted, timeout=METADATA_TIMEOUT_S) if p.offset >= 0}
    except KafkaException as error:
        raise translate(error, group) from error
    finally:
        consumer.close()


def read_again(
    settings: KafkaSettings, topic: str, until: Mapping[int, int], since_ms: int, feed: Callable[[Incoming], None]
) -> int:
    """Feed the messages of *topic* from the time *since_ms* up to (not including) the offset ``until[partition]``. Blocks.

    Ends when all were read; or, where the last of them are gone from the broker, when its end was met and nothing came for half a
    second. Returns the number of messages fed.

    :raises BrokerError: broker unreachable or topic missing.
    """
    missing = {partition for partition, offset in until.items() if offset > 0}
    if not missing:
        return 0
    count = 0
    for batch in read_partitions(
        settings,
        topic,
        start=since_ms,
        partitions=sorted(missing),
        to_end=True,
        poll_s=0.05,
        stop=lambda: not missing,
        client_id="eroica-rebuild",
    ):
        for message in batch:
            limit = until[message.partition]
            if message.offset < limit:
                feed(message)
                count += 1
            if message.offset >= limit - 1:
                missing.discard(message.partition)
    _log.info("%s: read %d messages again for %d partitions", topic, count, len(until))
    return count
