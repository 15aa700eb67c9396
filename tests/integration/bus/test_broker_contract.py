"""What the bus promises on every broker: the same tests on the embedded broker and on Apache Kafka."""

from __future__ import annotations

import threading
import time

import pytest
from waiting import until

from eroica.bus import (
    BusProducer,
    CompactedTable,
    DeadLetterQueue,
    GroupConsumer,
    Incoming,
    check_broker,
    cloudevent_headers,
    delete_topics,
    ensure_topics,
    list_topics,
    read_cloudevent,
    read_partitions,
)
from eroica.bus.local import EmbeddedBroker, KafkaCluster
from eroica.bus.producer import wait_delivered
from eroica.bus.recreated import created_again, forget_offsets, topic_ids
from eroica.bus.table import wait_for
from eroica.schemas.errors import BrokerError, InvalidInput, MessageTooLarge
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS
from eroica.streams.rebuild import committed_offsets

pytestmark = pytest.mark.integration
NOW_MS = time.time_ns() // 1_000_000
"""Records are dated about now: Kafka deletes those that are older than their topic keeps, at a time of its own."""


@pytest.fixture
def settings(broker: EmbeddedBroker | KafkaCluster, prefix: str) -> KafkaSettings:
    # The embedded broker spends half of the session's timeout on each join.
    extra = {"session.timeout.ms": "3000"} if isinstance(broker, EmbeddedBroker) else {}
    made = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix, extra=extra)
    ensure_topics(made)
    return made


def read_all(settings: KafkaSettings, topic: str, **options: object) -> list[Incoming]:
    return [m for batch in read_partitions(settings, topic, to_end=True, **options) for m in batch]  # type: ignore[arg-type]


def test_every_topic_and_its_dead_letters_exist_and_a_second_ensure_changes_nothing(settings: KafkaSettings) -> None:
    listed = list_topics(settings)
    assert listed == {f"{settings.prefix}{n}": t.partitions for n, t in TOPICS.items()} | {
        f"{settings.prefix}{t.dlq}": 1 for t in TOPICS.values()
    }
    assert ensure_topics(settings) == []


def test_delete_removes_our_topics_and_no_others(settings: KafkaSettings) -> None:
    other = settings.model_copy(update={"prefix": f"other-{settings.prefix}"})
    ensure_topics(other)
    assert len(delete_topics(settings)) == 2 * len(TOPICS)
    assert list_topics(settings) == {}
    assert len(delete_topics(other)) == 2 * len(TOPICS)
    assert delete_topics(other) == []


def test_messages_come_back_whole_and_in_order_within_a_key(settings: KafkaSettings) -> None:
    headers = cloudevent_headers(event_type="io.eroica.test", source="/test", event_id="1", time_ms=1_700_000_000_123)
    with BusProducer(settings) as producer:
        for index in range(200):
            key = f"job-{index % 7}"
            assert producer.send("iterations", key=key, value=f"{index}".encode(), headers=headers, timestamp_ms=NOW_MS + index)
        wait_delivered(producer, 100)
        assert producer.counters.delivered == 200
    messages = read_all(settings, "iterations")
    assert sorted(int(m.value or b"") for m in messages) == list(range(200))
    for key in {m.key for m in messages}:
        mine = [m for m in messages if m.key == key]
        assert len({m.partition for m in mine}) == 1
        assert [int(m.value or b"") for m in mine] == sorted(int(m.value or b"") for m in mine)
    first = next(m for m in messages if m.value == b"5")
    assert first.timestamp_ms == NOW_MS + 5
    assert read_cloudevent(first.headers) == {
        "specversion": "1.0",
        "type": "io.eroica.test",
        "source": "/test",
        "id": "1",
        "time": "2023-11-14T22:13:20.123Z",
    }


def test_topics_that_were_just_made_are_read_to_their_end(broker: EmbeddedBroker | KafkaCluster, prefix: str) -> None:
    """Their leaders answer a moment later than the metadata says."""
    for number in range(3):
        fresh = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=f"{prefix}{number}.")
        ensure_topics(fresh)
        assert read_all(fresh, "groups") == read_all(fresh, "verdicts") == []


def test_a_sender_whose_clock_is_ahead_is_heard(settings: KafkaSettings) -> None:
    ahead_ms = time.time_ns() // 1_000_000 + 86_400_000
    with BusProducer(settings) as producer:
        assert producer.send("iterations", key="j/0", value=b"v", timestamp_ms=ahead_ms)
        wait_delivered(producer, 100)
    assert [m.timestamp_ms for m in read_all(settings, "iterations")] == [ahead_ms]
    assert ensure_topics(settings, dry_run=True) == []


def test_a_broker_that_does_not_know_the_setting_for_clocks_gets_its_topics_too(
    broker: EmbeddedBroker | KafkaCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eroica.bus.admin.CLOCKS", {"message.timestamp.of.tomorrow": "1"})
    settings = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    assert len(ensure_topics(settings)) == 2 * len(TOPICS)
    assert ensure_topics(settings) == []


@pytest.mark.parametrize("pause_s", [0.02, 0.0], ids=["a trickle", "a flood"])
def test_reading_to_the_end_ends_while_others_write_on(settings: KafkaSettings, pause_s: float) -> None:
    stop = threading.Event()
    with BusProducer(settings) as producer:
        for index in range(500):
            producer.send("control", key=f"before-{index}", value=b"%d" % index)
        wait_delivered(producer, 100)

        def write_on() -> None:
            index = 0
            while not stop.is_set():
                producer.send("control", key=f"after-{index % 50}", value=b"x" * 100)
                index += 1
                if pause_s or index % 100 == 0:
                    stop.wait(pause_s or 0.01)

        writer = threading.Thread(target=write_on)
        writer.start()
        try:
            found = read_all(settings, "control")
            with CompactedTable(settings, "control", bytes) as table:
                table.wait_ready(100)
                rows = len(table.snapshot())
        finally:
            stop.set()
            writer.join()
        assert len([m for m in found if (m.key or b"").startswith(b"before-")]) == 500, "all that was there at the start"
        assert rows >= 500


def test_a_follower_is_told_when_it_has_what_was_there_not_at_the_first_pause(settings: KafkaSettings) -> None:
    with BusProducer(settings) as producer:
        for number in range(40):
            producer.send("control", key=str(number), value=str(number).encode())
        assert producer.flush(100) == 0
    told = threading.Event()
    before: list[Incoming] = []
    deadline = time.monotonic() + 100
    for batch in read_partitions(
        settings, "control", poll_s=0.001, on_caught_up=told.set, stop=lambda: told.is_set() or time.monotonic() > deadline
    ):
        before += batch
    assert sorted(int(m.value or b"-1") for m in before) == list(range(40))


def test_reading_starts_where_it_is_told(settings: KafkaSettings) -> None:
    with BusProducer(settings) as producer:
        for index in range(10):
            producer.send("verdicts", key="j", value=b"%d" % index, timestamp_ms=NOW_MS + index * 1_000, partition=2)
        wait_delivered(producer, 100)
    assert [m.value for m in read_all(settings, "verdicts", partitions=[2], start={2: 7})] == [b"7", b"8", b"9"]
    assert read_all(settings, "verdicts", partitions=[0]) == []


def test_a_group_goes_on_where_it_committed(settings: KafkaSettings) -> None:
    with BusProducer(settings) as producer:
        for index in range(20):
            producer.send("control", key="one-job", value=b"%d" % index)
        wait_delivered(producer, 100)

    def take(count: int, *, commit: bool) -> list[bytes | None]:
        got: list[Incoming] = []
        deadline = time.monotonic() + 100
        with GroupConsumer(settings, "readers", ["control"]) as consumer:
            for batch in consumer.batches(batch=5):
                got.extend(batch)
                if batch and commit:
                    consumer.commit(batch)
                if len(got) >= count or time.monotonic() > deadline:
                    break
        return [m.value for m in got]

    everything = [b"%d" % index for index in range(20)]
    first = take(5, commit=True)
    assert first == everything[: len(first)]
    assert len(first) < 15
    unfinished = take(5, commit=False)
    again = take(5, commit=True)
    assert unfinished[:5] == again[:5] == everything[len(first) : len(first) + 5]


def test_a_group_reads_a_topic_that_was_created_again_from_its_beginning(settings: KafkaSettings) -> None:
    before = topic_ids(settings, ["control", "jobs", "absent"])
    assert set(before) == {"control", "jobs"}
    with BusProducer(settings, "test") as producer:
        producer.send("control", key="k", value=b"1")
        wait_delivered(producer, 100)
    with GroupConsumer(settings, "g", ["control"]) as consumer:
        for batch in consumer.batches():
            consumer.commit(batch)
            if batch:
                break
    assert sum(committed_offsets(settings, f"{settings.prefix}g", "control", range(4)).values()) == 1
    assert forget_offsets(settings, "g", ["control"])
    assert sum(committed_offsets(settings, f"{settings.prefix}g", "control", range(4)).values()) == 0
    delete_topics(settings)
    assert until(lambda: list_topics(settings) == {})
    ensure_topics(settings)
    assert created_again(before, topic_ids(settings, ["control", "jobs"])) == ["control", "jobs"]


def test_rewind_brings_back_what_was_not_committed(settings: KafkaSettings) -> None:
    with BusProducer(settings) as producer:
        for index in range(6):
            producer.send("control", key="one-job", value=b"%d" % index)
        wait_delivered(producer, 100)
    seen: list[bytes | None] = []
    deadline = time.monotonic() + 100
    with GroupConsumer(settings, "rewinders", ["control"]) as consumer:
        for batch in consumer.batches(batch=3):
            if batch and not seen:
                consumer.rewind()
            seen.extend(m.value for m in batch)
            if len(seen) >= 6 or time.monotonic() > deadline:
                break
    second_start = seen.index(b"0", 1)
    assert seen[:second_start] == [b"%d" % index for index in range(second_start)]
    assert seen[second_start:] == [b"%d" % index for index in range(len(seen) - second_start)]


def test_a_table_keeps_the_last_message_of_each_key(settings: KafkaSettings) -> None:
    def decode(value: bytes) -> int:
        if not value.isdigit():
            raise InvalidInput("not a number")
        return int(value)

    with BusProducer(settings) as producer:
        for round_ in range(3):
            for index in range(50):
                producer.send("jobs", key=f"job-{index}", value=b"%d" % (100 * round_ + index))
        producer.send("jobs", key="job-3", value=b"junk")
        producer.send("jobs", key="job-4", value=None)
        wait_delivered(producer, 100)
        with CompactedTable(settings, "jobs", decode) as table:
            table.wait_ready(100)
            rows = table.snapshot()
            assert len(rows) == 49
            assert table.get("job-4") is None
            assert table.get("job-3") == 203
            assert table.bad == 1
            producer.send("jobs", key="job-new", value=b"7")
            assert wait_for(table, "job-new", 100) == 7
            producer.send("jobs", key="job-new", value=None)
            assert until(lambda: table.get("job-new") is None)
            assert "job-new" not in rows


def test_a_full_table_keeps_what_it_has(settings: KafkaSettings) -> None:
    with BusProducer(settings) as producer:
        for index in range(30):
            producer.send("jobs", key=f"job-{index}", value=b"1", partition=0)
        wait_delivered(producer, 100)
    with CompactedTable(settings, "jobs", int, max_keys=10) as table:
        table.wait_ready(100)
        assert len(table.snapshot()) == 10
        assert table.over_limit == 20


def test_a_dead_letter_keeps_key_and_value_and_says_why(settings: KafkaSettings) -> None:
    bad = b"\xff not json"
    with BusProducer(settings) as producer:
        producer.send("summaries", key="job/r1/c", value=bad, headers=(("trace", b"abc"),), timestamp_ms=NOW_MS, partition=3)
        wait_delivered(producer, 100)
        (message,) = read_all(settings, "summaries")
        letters = DeadLetterQueue(settings, producer, "group")
        letters.refuse(message, InvalidInput("no JSON", where=message.where))
        wait_delivered(producer, 100)
    (letter,) = read_all(settings, "summaries.dlq")
    assert (letter.key, letter.value) == (b"job/r1/c", bad)
    headers = dict(letter.headers)
    assert headers["__connect.errors.topic"] == f"{settings.prefix}summaries".encode()
    assert (headers["__connect.errors.partition"], headers["__connect.errors.offset"]) == (b"3", str(message.offset).encode())
    assert headers["__connect.errors.exception.class.name"] == b"InvalidInput"
    assert b"no JSON" in headers["__connect.errors.exception.message"]
    assert headers["trace"] == b"abc"


@pytest.mark.parametrize("topic", ["iterations", "verdicts"])
def test_the_largest_message_goes_through_and_a_larger_one_is_refused_at_once(settings: KafkaSettings, topic: str) -> None:
    limit = TOPICS[topic].max_message_bytes
    incompressible = bytes((i * i * 2_654_435_761 >> 7) & 0xFF for i in range(4096)) * (limit // 4096 + 1)
    with BusProducer(settings) as producer:
        assert producer.send(topic, key="k", value=incompressible[:limit])
        wait_delivered(producer, 100)
        with pytest.raises(MessageTooLarge, match=topic):
            producer.send(topic, key="k", value=incompressible[: limit + 1])
    assert [len(m.value or b"") for m in read_all(settings, topic)] == [limit]


def test_a_missing_topic_is_named_with_its_remedy(broker: EmbeddedBroker | KafkaCluster, prefix: str) -> None:
    settings = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    with pytest.raises(BrokerError, match=rf"{prefix}verdicts: the topic does not exist.*eroica topics ensure"):
        next(read_partitions(settings, "verdicts"))
    with pytest.raises(BrokerError, match="eroica topics ensure"):
        GroupConsumer(settings, "g", ["verdicts"])
    with CompactedTable(settings, "jobs", int) as table, pytest.raises(BrokerError, match="does not exist"):
        table.wait_ready(100)


def test_check_names_the_brokers(broker: EmbeddedBroker | KafkaCluster) -> None:
    assert check_broker(KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000)).brokers == (broker.bootstrap,)


def test_a_producer_that_came_over_a_fork_makes_its_own_client(settings: KafkaSettings) -> None:
    import multiprocessing

    producer = BusProducer(settings)
    producer.send("feedback", key="parent", value=b"before")
    wait_delivered(producer, 100)

    def child() -> None:
        producer.send("feedback", key="child", value=b"child")
        wait_delivered(producer, 100)
        assert producer.counters.delivered == 1

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(100)
    assert process.exitcode == 0
    producer.send("feedback", key="parent", value=b"after")
    wait_delivered(producer, 100)
    producer.close()
    assert sorted(m.value or b"" for m in read_all(settings, "feedback")) == [b"after", b"before", b"child"]
