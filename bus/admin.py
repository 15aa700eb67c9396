"""Topics as the table wants them: created where missing, widened where narrow, never shrunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from eroica.bus.config import BATCH_OVERHEAD_BYTES, client_config, full_name
from eroica.bus.errors import translate
from eroica.bus.probe import BrokerInfo, check_broker
from eroica.schemas.errors import BrokerError
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS, Topic
from eroica.schemas.wording import say_count

__all__ = ["BrokerInfo", "TopicChange", "check_broker", "delete_topics", "ensure_topics", "list_topics", "wanted_topics"]

MAX_REPLICATION = 3
DLQ_PARTITIONS = 1
DLQ_RETENTION_MS = 30 * 24 * 3_600_000
"""Dead letters are kept a month: long enough that somebody comes back from holidays and looks."""
REQUEST_TIMEOUT_S = 30.0
CLOCKS = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""Records are dated by their sender. Kafka refuses what is dated an hour ahead, and a host with a wrong clock would not be heard
at all. Left out where the broker does not know the setting (before Kafka 3.6).
"""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """One difference between a topic and what the table wants."""

    topic: str
    action: Literal["create", "partitions", "config", "keep"]
    """``keep``: the topic is wider than wanted and stays as it is."""
    setting: str
    have: str
    want: str

    def __str__(self) -> str:
        if self.action == "create":
            return f"+ {self.topic}: {self.want}"
        if self.action == "keep":
            return f"= {self.topic}: {self.setting} {self.have} stays (wanted {self.want}; nothing is ever shrunk)"
        return f"~ {self.topic}: {self.setting} {self.have} -> {self.want}"


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic as it should be on this cluster."""

    name: str
    partitions: int
    config: dict[str, str]


def wanted_topics(settings: KafkaSettings) -> list[WantedTopic]:
    """Every topic of the table and its dead letters, with full names."""
    wanted: list[WantedTopic] = []
    for topic in TOPICS.values():
        wanted.append(WantedTopic(full_name(settings, topic.name), topic.partitions, _config(topic)))
        letters = {
            "cleanup.policy": "delete",
            "retention.ms": str(DLQ_RETENTION_MS),
            "max.message.bytes": str(topic.max_message_bytes + BATCH_OVERHEAD_BYTES),
            **CLOCKS,
        }
        wanted.append(WantedTopic(full_name(settings, topic.dlq), DLQ_PARTITIONS, letters))
    return wanted


def ensure_topics(settings: KafkaSettings, *, dry_run: bool = False, timeout_s: float = REQUEST_TIMEOUT_S) -> list[TopicChange]:
    """Bring the cluster's topics to the table's shape. Idempotent: a second call returns no changes but ``keep``.

    Replication is ``min(3, brokers)`` and, with three, two of them must have a message before it counts as written.

    :param dry_run: only say what would change.
    :returns: the changes made, in the table's order, once every topic has a leader for each partition.
    :raises BrokerError: broker unreachable, rights missing, or a topic not usable within *timeout_s*.
    """
    info = check_broker(settings)
    admin = _admin(settings)
    wanted = wanted_topics(settings)
    changes: list[TopicChange] = []
    replication = min(MAX_REPLICATION, len(info.brokers))
    fresh: list[WantedTopic] = []
    for topic in wanted:
        if topic.name not in info.topics:
            fresh.append(topic)
            text = f"{say_count(topic.partitions, 'partition')}, {say_count(replication, 'replica')}"
            changes.append(TopicChange(topic.name, "create", "topic", "missing", text))
    existing = [topic for topic in wanted if topic.name in info.topics]
    changes += _partition_changes(existing, info)
    changes += _config_changes(admin, existing)
    if dry_run:
        return changes
    _create(admin, fresh, replication)
    _grow(admin, [change for change in changes if change.action == "partitions"])
    _alter(admin, [change for change in changes if change.action == "config"])
    wait_usable(admin, {topic.name: topic.partitions for topic in wanted}, timeout_s)
    if any(change.action == "config" for change in changes):
        # A broker tells of the former values until it has heard of the new ones from its controller.
        _wait(
            lambda: all(change.action == "keep" for change in _config_changes(admin, existing)),
            timeout_s,
            "the settings of the topics are not the new ones",
            [topic.name for topic in existing],
        )
    return changes


def list_topics(settings: KafkaSettings) -> dict[str, int]:
    """Our topics on the cluster (those that begin with the prefix) and their partition counts.

    :raises BrokerError: broker unreachable.
    """
    return {name: count for name, count in check_broker(settings).topics.items() if name.startswith(settings.prefix)}


def delete_topics(settings: KafkaSettings, *, timeout_s: float = REQUEST_TIMEOUT_S) -> list[str]:
    """Delete the table's topics and their dead letters under this prefix, nothing else; returns the names that were there.

    :raises BrokerError: broker unreachable or rights missing.
    """
    present = check_broker(settings).topics
    names = [topic.name for topic in wanted_topics(settings) if topic.name in present]
    if names:
        admin = _admin(settings)
        for name, future in admin.delete_topics(names, operation_timeout=REQUEST_TIMEOUT_S).items():
            _settle(future, name, ignore={KafkaError.UNKNOWN_TOPIC_OR_PART})
        _wait(
            lambda: not set(names) & set(admin.list_topics(timeout=5.0).topics), timeout_s, "the topics are still listed", names
        )
    return names


def wait_usable(admin: AdminClient, partitions: dict[str, int], timeout_s: float) -> None:
    """Return when each topic has its partitions and each partition a leader: creation is answered before that.

    :raises BrokerError: when it takes longer than *timeout_s*.
    """

    def usable() -> bool:
        listed = admin.list_topics(timeout=5.0).topics
        return all(
            name in listed
            and listed[name].error is None
            and len(listed[name].partitions) >= count
            and all(p.leader >= 0 for p in listed[name].partitions.values())
            for name, count in partitions.items()
        )

    _wait(usable, timeout_s, "the topics have no leaders yet", list(partitions))


def _config(topic: Topic) -> dict[str, str]:
    return {
        "cleanup.policy": topic.cleanup_policy,
        "retention.ms": str(topic.retention_ms) if topic.cleanup_policy == "delete" else "-1",
        "max.message.bytes": str(topic.max_message_bytes + BATCH_OVERHEAD_BYTES),
        **CLOCKS,
    }


def _admin(settings: KafkaSettings) -> AdminClient:
    try:
        return AdminClient(client_config(settings, "admin", client_id="eroica-admin"))
    except KafkaException as error:
        raise translate(error, settings.bootstrap) from error


def _partition_changes(topics: Iterable[WantedTopic], info: BrokerInfo) -> list[TopicChange]:
    changes: list[TopicChange] = []
    for topic in topics:
        have = info.topics[topic.name]
        if have != topic.partitions:
            action: Literal["partitions", "keep"] = "partitions" if have < topic.partitions else "keep"
            changes.append(TopicChange(topic.name, action, "partitions", str(have), str(topic.partitions)))
    return changes


def _config_changes(admin: AdminClient, topics: list[WantedTopic]) -> list[TopicChange]:
    """Differences in settings. A broker that does not describe a setting (the embedded one) has none to change."""
    changes: list[TopicChange] = []
    if not topics:
        return changes
    resources = {topic.name: ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics}
    answers = admin.describe_configs(list(resources.values()), request_timeout=REQUEST_TIMEOUT_S)
    for topic in topics:
        entries = _settle(answers[resources[topic.name]], topic.name) or {}
        for setting, want in topic.config.items():
            entry = entries.get(setting)
            if entry is None or entry.value is None or entry.value == want:
                continue
            shrinks = setting != "cleanup.policy" and _amount(entry.value) > _amount(want)
            changes.append(TopicChange(topic.name, "keep" if shrinks else "config", setting, entry.value, want))
    return changes


def _amount(value: str) -> float:
    """A size or time as a number; -1 means without limit."""
    number = float(value)
    return float("inf") if number < 0 else number


def _create(admin: AdminClient, topics: list[WantedTopic], replication: int) -> None:
    durable = {"min.insync.replicas": "2"} if replication >= MAX_REPLICATION else {}
    unknown: set[str] = set()
    for known in (True, False):
        todo = [topic for topic in topics if known or topic.name in unknown]
        if not todo:
            return
        new = []
        for topic in todo:
            config = {name: value for name, value in topic.config.items() if known or name not in CLOCKS}
            new.append(
                NewTopic(topic.name, num_partitions=topic.partitions, replication_factor=replication, config=config | durable)
            )
        for name, future in admin.create_topics(new, operation_timeout=REQUEST_TIMEOUT_S).items():
            # Two services may ensure at once: whoever is second finds the work done.
            ignored = {KafkaError.TOPIC_ALREADY_EXISTS} | ({KafkaError.INVALID_CONFIG} if known else set())
            if _settle(future, name, ignore=ignored) == KafkaError.INVALID_CONFIG:
                unknown.add(name)


def _grow(admin: AdminClient, changes: list[TopicChange]) -> None:
    if not changes:
        return
    for name, future in admin.create_partitions([NewPartitions(c.topic, int(c.want)) for c in changes]).items():
        if _settle(future, name, ignore={KafkaError._UNSUPPORTED_FEATURE}) == KafkaError._UNSUPPORTED_FEATURE:
            narrow = ", ".join(f"{c.topic} has {c.have} of {c.want} partitions" for c in changes)
            raise BrokerError(
                f"this broker cannot widen topics: {narrow}",
                where=name,
                do="delete our topics with all that is in them, and make them again: eroica topics delete, eroica topics ensure",
            )


def _alter(admin: AdminClient, changes: list[TopicChange]) -> None:
    entries: dict[str, list[ConfigEntry]] = {}
    for change in changes:
        entry = ConfigEntry(change.setting, change.want, incremental_operation=AlterConfigOpType.SET)
        entries.setdefault(change.topic, []).append(entry)
    if entries:
        resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=list_) for name, list_ in entries.items()]
        for resource, future in admin.incremental_alter_configs(resources).items():
            _settle(future, resource.name)


def _settle(future: Any, where: str, *, ignore: Container[int] = ()) -> Any:
    """The result of *future*, or the code of an error that is ignored."""
    try:
        return future.result(timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        code = error.args[0].code() if error.args else None
        if code in ignore:
            return code
        raise translate(error, where) from error


def _wait(condition: Callable[[], bool], timeout_s: float, what: str, names: list[str]) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except KafkaException:
            pass  # a broker between two states; the deadline decides
        if time.monotonic() >= deadline:
            raise BrokerError(f"{what} after {timeout_s:g} s", where=", ".join(names[:3]), do="look at the broker's log")
        time.sleep(0.1)
