"""Reading topics: all partitions without a group (tables, records, people), or a share of them in a group (services)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from eroica.bus.config import client_config, full_name
from eroica.bus.errors import is_passing, translate
from eroica.bus.message import Incoming, incoming
from eroica.schemas.errors import TopicMissing
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

BATCH = 500
"""Most messages handed over at once: large enough to make the per-call cost vanish, small enough to react to a stop."""
METADATA_TIMEOUT_S = 10.0
BUSY_S = 3.0
"""On a topic that never falls silent, reading to the end stops so long after what was the end at the start. At once would do on
Apache Kafka; the embedded broker's end offsets may read too low.
"""

NO_END = 2**63 - 1
"""End offset of a partition of which it is not known: only the end that is met while reading counts."""

Start = Literal["earliest", "latest"] | int | Mapping[int, int]
"""Where to begin: an end of the topic, a time (milliseconds since the epoch), or an offset for each partition."""


def never() -> bool:
    """The stop condition of a reader that runs until its process ends."""
    return False


def read_partitions(
    settings: KafkaSettings,
    topic: str,
    *,
    start: Start = "earliest",
    partitions: Iterable[int] | None = None,
    to_end: bool = False,
    settle_s: float = 0.5,
    poll_s: float = 0.2,
    stop: Callable[[], bool] = never,
    on_caught_up: Callable[[], None] | None = None,
    client_id: str = "eroica-reader",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Incoming]]:
    """Read *topic* (short name) without a consumer group, in batches of at most ``BATCH``.

    :param to_end: end when everything was read that was there at the start: every partition has reported its end and nothing came
        for *settle_s*; or, while others keep writing, ``BUSY_S`` after each was read up to its end offset of the start.
    :param stop: asked between batches.
    :param on_caught_up: called once, after the batch that brought the last of what was there at the start (an empty batch alone
        says only that the broker had nothing ready).
    :returns: batches in offset order within each partition; an **empty** batch each *poll_s* without news, so that a caller can
        look after its own time. Transactions: only committed messages.
    :raises BrokerError: broker unreachable, topic missing, rights missing. A broker that goes away later is waited for.
    """
    consumer = Consumer(client_config(settings, "consumer", client_id=client_id))
    try:
        name = full_name(settings, topic)
        chosen = sorted(partitions) if partitions is not None else sorted(partition_ids(consumer, settings, topic))
        ends = _end_offsets(consumer, name, chosen, stop, clock) if to_end or on_caught_up is not None else {}
        consumer.assign(_positions(consumer, name, chosen, start))
        at_end: set[int] = set()
        unread = set(ends)
        quiet_since = read_since = clock()
        while not stop():
            batch, ended = _split(_take(consumer, BATCH, poll_s), name)
            at_end |= {partition for _, partition in ended}
            if batch:
                quiet_since = clock()
            if unread:
                unread -= at_end
                unread -= {m.partition for m in batch if m.offset + 1 >= ends[m.partition]}
                read_since = clock()
            yield batch
            if on_caught_up is not None and not unread:
                on_caught_up()
                on_caught_up = None
            if not to_end:
                continue
            if not batch and len(at_end) == len(chosen) and clock() - quiet_since >= settle_s:
                return
            if not unread and clock() - read_since >= BUSY_S:
                return
    except KafkaException as error:
        raise translate(error, full_name(settings, topic)) from error
    finally:
        consumer.close()


def partition_ids(client: Any, settings: KafkaSettings, topic: str) -> list[int]:
    """Partitions of *topic* (short name) as the broker lists them.

    :raises BrokerError: broker unreachable or topic missing.
    """
    name = full_name(settings, topic)
    try:
        listed = client.list_topics(name, timeout=METADATA_TIMEOUT_S).topics.get(name)
    except KafkaException as error:
        raise translate(error, settings.bootstrap) from error
    if listed is None or listed.error is not None or not listed.partitions:
        raise TopicMissing("the topic does not exist", where=name, do="create the topics with: eroica topics ensure")
    return sorted(listed.partitions)


class GroupConsumer:
    """One member of a consumer group; the broker gives it a share of the partitions.

    Delivery is at least once: a message is redelivered until :meth:`commit` covered it. Not thread-safe: one thread owns it.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        topics: Iterable[str],
        *,
        client_id: str = "eroica-consumer",
        instance_id: str = "",
        on_revoke: Callable[[list[tuple[str, int]]], None] | None = None,
        on_outage: Callable[[str], None] | None = None,
    ) -> None:
        """Join *group* for *topics* (short names).

        :param instance_id: a stable name for this member; with it a quick restart moves no partitions (KIP-345).
        :param on_revoke: called with (full topic, partition) pairs before they go to another member; abort open work there.
        :param on_outage: called with the reason, in :meth:`batches`, whenever the client finds the brokers away.
        :raises BrokerError: broker unreachable or a topic missing.
        """
        self._settings = settings
        self.group = f"{settings.prefix}{group}"
        config = client_config(settings, "consumer", client_id=client_id, group=self.group)
        if on_outage is not None:
            config["error_cb"] = lambda error: on_outage(error.str())
        if instance_id:
            config["group.instance.id"] = instance_id
        self.assigned: frozenset[tuple[str, int]] = frozenset()
        self._on_revoke = on_revoke
        try:
            self._consumer = Consumer(config)
        except KafkaException as error:
            raise translate(error, self.group) from error
        try:
            names = list(topics)
            for topic in names:
                partition_ids(self._consumer, settings, topic)
            self._consumer.subscribe(
                [full_name(settings, topic) for topic in names],
                on_assign=self._assign,
                on_revoke=self._revoke,
                on_lost=self._revoke,
            )
        except BaseException:
            self._consumer.close()
            raise

    @property
    def client(self) -> Consumer:
        """The confluent client, for ``send_offsets_to_transaction`` and its group metadata."""
        return self._consumer

    def batches(self, *, poll_s: float = 0.2, batch: int = BATCH, stop: Callable[[], bool] = never) -> Iterator[list[Incoming]]:
        """Messages as they come, at most *batch* at once; an empty batch each *poll_s* without news.

        :raises BrokerError: on what waiting does not cure (rights, credentials, fenced). A broker that is away is waited for.
        """
        while not stop():
            try:
                messages, _ended = _split(_take(self._consumer, batch, poll_s), self.group)
            except KafkaException as error:
                if not is_passing(error.args[0]):
                    raise translate(error, self.group) from error
                _log.debug("%s: %s", self.group, error)
                messages = []
            yield messages

    def commit(self, messages: Iterable[Incoming]) -> None:
        """Store the offsets after *messages* for the group; returns when the broker has them.

        :raises BrokerError: when it refuses, for example since the partitions went to another member: they come again there.
        """
        offsets = next_offsets(messages)
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise translate(error, self.group) from error

    def rewind(self) -> None:
        """Go back to the committed offsets of all assigned partitions: what was not committed comes again."""
        owned = [TopicPartition(topic, partition) for topic, partition in sorted(self.assigned)]
        if not owned:
            return
        try:
            for position in self._consumer.committed(owned, timeout=METADATA_TIMEOUT_S):
                offset = position.offset if position.offset >= 0 else OFFSET_BEGINNING
                self._consumer.seek(TopicPartition(position.topic, position.partition, offset))
        except KafkaException as error:
            raise translate(error, self.group) from error

    def close(self) -> None:
        """Leave the group at once; uncommitted messages go to the next member."""
        self._consumer.close()

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned |= {(p.topic, p.partition) for p in partitions}

    def _revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = [(p.topic, p.partition) for p in partitions]
        if self._on_revoke is not None:
            self._on_revoke(gone)
        self.assigned -= set(gone)


def next_offsets(messages: Iterable[Incoming]) -> list[TopicPartition]:
    """The offsets to commit once *messages* are dealt with: one past the highest of each partition."""
    highest: dict[tuple[str, int], int] = {}
    for message in messages:
        place = (message.topic, message.partition)
        highest[place] = max(highest.get(place, -1), message.offset)
    return [TopicPartition(topic, partition, offset + 1) for (topic, partition), offset in sorted(highest.items())]


def _end_offsets(
    consumer: Consumer, name: str, partitions: list[int], stop: Callable[[], bool], clock: Callable[[], float]
) -> dict[int, int]:
    """Where *partitions* end now; ``NO_END`` where the broker does not tell, since the topic is new or its leader is moving."""
    deadline = clock() + METADATA_TIMEOUT_S
    ends: dict[int, int] = {}
    for partition in partitions:
        ends[partition] = NO_END
        while not stop() and (left := deadline - clock()) > 0:
            try:
                marks = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=min(left, 1.0))
            except KafkaException as error:
                if not is_passing(error.args[0]):
                    raise
                time.sleep(0.05)
            else:
                ends[partition] = NO_END if marks is None else int(marks[1])
                break
    return ends


def _positions(consumer: Consumer, name: str, partitions: list[int], start: Start) -> list[TopicPartition]:
    if isinstance(start, str):
        end = OFFSET_BEGINNING if start == "earliest" else OFFSET_END
        return [TopicPartition(name, p, end) for p in partitions]
    if isinstance(start, int):
        found = consumer.offsets_for_times([TopicPartition(name, p, start) for p in partitions], timeout=METADATA_TIMEOUT_S)
        return list(found)
    return [TopicPartition(name, p, start.get(p, OFFSET_BEGINNING)) for p in partitions]


def _take(consumer: Consumer, most: int, wait_s: float) -> list[Any]:
    """What has come, as soon as something has. The client by itself would wait out *wait_s* for *most* messages."""
    first: list[Any] = consumer.consume(1, wait_s)
    return first + consumer.consume(most - 1, 0) if first and most > 1 else first


def _split(messages: list[Any], where: str) -> tuple[list[Incoming], list[tuple[str, int]]]:
    """Good records, and the partitions whose end was met; passing errors are logged and dropped."""
    good: list[Incoming] = []
    ended: list[tuple[str, int]] = []
    for message in messages:
        error: KafkaError | None = message.error()
        if error is None:
            good.append(incoming(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.append((message.topic(), message.partition()))
        elif is_passing(error):
            _log.debug("%s: %s", where, error)
        else:
            raise translate(error, where)
    return good, ended
