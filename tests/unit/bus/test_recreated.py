"""What is noticed of a broker that came back as another one."""

from __future__ import annotations

import logging

import pytest

from eroica.bus.probe import BrokerInfo
from eroica.bus.producer import BusProducer, _ClientLog
from eroica.bus.recreated import created_again
from eroica.bus.watch import narrow_topics, need_topics
from eroica.schemas.errors import TopicMissing
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("before", "now", "again"),
    [
        ({"a": "1", "b": "2"}, {"a": "1", "b": "2"}, []),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}, ["b"]),
        ({"a": "1", "b": "2"}, {}, []),
        ({"a": "1"}, {"a": "1", "b": "2"}, []),
        ({"b": "1", "a": "1"}, {"b": "2", "a": "2"}, ["a", "b"]),
    ],
)
def test_a_topic_with_another_id_was_created_again(before: dict[str, str], now: dict[str, str], again: list[str]) -> None:
    assert created_again(before, now) == again


def test_missing_topics_are_named_with_what_to_do() -> None:
    settings = KafkaSettings(prefix="p.")
    info = BrokerInfo(brokers=("b:1",), cluster_id="c", topics={"p.control": 4})
    need_topics(info, settings, ["control"])
    with pytest.raises(TopicMissing, match=r"p\.groups, p\.jobs.*eroica topics ensure"):
        need_topics(info, settings, ["groups", "control", "jobs"])


@pytest.mark.parametrize(
    ("have", "said"),
    [
        ({}, []),  # missing is another matter
        ({"p.iterations": 10**6, "p.iterations.dlq": 1}, []),
        ({"p.iterations": 4, "p.control": 1}, [f"p.iterations has 4 of {TOPICS['iterations'].partitions}", "p.control has 1 of"]),
    ],
)
def test_topics_with_too_few_partitions_are_named_with_what_to_do(have: dict[str, int], said: list[str]) -> None:
    info = BrokerInfo(brokers=("b:1",), cluster_id="c", topics=have)
    text = narrow_topics(info, KafkaSettings(prefix="p."), ["iterations", "control", "iterations.dlq"])
    assert all(part in text for part in said)
    assert bool(text) is bool(said) is text.endswith("eroica topics ensure")


def test_a_client_that_meets_another_cluster_is_given_up(own_log: pytest.LogCaptureFixture) -> None:
    heard: list[bool] = []
    log = _ClientLog(logging.getLogger("eroica.test"), lambda: heard.append(True))
    with own_log.at_level(logging.WARNING):
        log.log(logging.WARNING, "%s [%s] %s", "FAIL", "rdkafka#producer-1", "refused")
        log.log(logging.WARNING, "%s [%s] %s", "CLUSTERID", "rdkafka#producer-1", "another")
    assert heard == [True]
    assert [record.getMessage() for record in own_log.records] == [
        "FAIL [rdkafka#producer-1] refused",
        "CLUSTERID [rdkafka#producer-1] another",
    ]
    producer = BusProducer(KafkaSettings(bootstrap="127.0.0.1:1"), "test")
    first = producer._ready_client()
    assert producer._ready_client() is first
    producer._on_other_cluster()
    assert producer._ready_client() is not first
    producer.close(0)
