"""Topics that were lost and created again (an empty broker in the old one's place): what is known of their offsets is void."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from eroica.bus.config import client_config, full_name
from eroica.bus.consumer import METADATA_TIMEOUT_S, never, partition_ids
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

FORGET_S = 30.0
"""Longer than a session: other members of the group must have noticed too, or the broker them."""
RETRY_S = 0.5


def topic_ids(settings: KafkaSettings, topics: Iterable[str]) -> dict[str, str]:
    """The broker's own id of each of *topics* (short names), which a topic of the same name that is created later does not have.

    Topics whose id is not told (missing, or the broker is away) are left out.
    """
    names = {full_name(settings, topic): topic for topic in topics}
    found: dict[str, str] = {}
    try:
        client = AdminClient(client_config(settings, "admin", client_id="eroica-watch"))
        described = client.describe_topics(TopicCollection(list(names)), request_timeout=METADATA_TIMEOUT_S)
    except KafkaException as error:
        _log.debug("ids of topics: %s", error)
        return found
    for name, future in described.items():
        try:
            found[names[name]] = str(future.result().topic_id)
        except KafkaException as error:
            _log.debug("id of %s: %s", name, error)
    return found


def created_again(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Topics that had another id *before* than *now*, ascending."""
    return sorted(topic for topic, at in now.items() if before.get(topic, at) != at)


def forget_offsets(
    settings: KafkaSettings,
    group: str,
    topics: Iterable[str],
    *,
    stop: Callable[[], bool] = never,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Let *group* (short name) read *topics* (short names) from their beginning; needs a group without members.

    The embedded broker never lets go of a dead member, but deletes its group; Kafka deletes none that has members. A group
    that is deleted reads all its topics from their beginning: its outputs are repeated, none is lost.

    :returns: false where members were there all the time: then one of them has done the same.
    :raises BrokerError: the broker is away, or a topic is missing.
    """
    client = AdminClient(client_config(settings, "admin", client_id="eroica-watch"))
    places = [
        TopicPartition(full_name(settings, topic), partition, 0)
        for topic in topics
        for partition in partition_ids(client, settings, topic)
    ]
    deadline = clock() + FORGET_S
    while not stop():
        try:
            wanted = [ConsumerGroupTopicPartitions(f"{settings.prefix}{group}", places)]
            [future] = client.alter_consumer_group_offsets(wanted, request_timeout=METADATA_TIMEOUT_S).values()
            problems = [place.error for place in future.result().topic_partitions if place.error is not None]
        except KafkaException as error:
            problems = [error]
        if not problems or _forgot_group(client, f"{settings.prefix}{group}"):
            return True
        if clock() > deadline:
            _log.warning("the offsets of group %s stay as they are: %s", group, problems[0])
            return False
        sleep(RETRY_S)
    return False


def _forgot_group(client: AdminClient, name: str) -> bool:
    """Whether group *name* is deleted, or there was none: all that it knew of topics was of the old ones."""
    try:
        [future] = client.delete_consumer_groups([name], request_timeout=METADATA_TIMEOUT_S).values()
        future.result()
    except KafkaException as error:
        _log.debug("group %s is not deleted: %s", name, error)
        return bool(error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND)
    return True
