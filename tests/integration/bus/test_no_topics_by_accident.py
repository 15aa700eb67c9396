"""A broker that creates topics on demand is never asked to by our clients; one that did is recognised."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from eroica.bus import check_broker, ensure_topics, list_topics
from eroica.bus.config import client_config
from eroica.bus.local import EmbeddedBroker
from eroica.bus.watch import BrokerWatch
from eroica.cli.main import main
from eroica.schemas.errors import BrokerError
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
Ask = Callable[[KafkaSettings, str], None]


def confluent(role: Any) -> Ask:
    def ask(settings: KafkaSettings, topic: str) -> None:
        config = client_config(settings, role, transactional_id="t" if role == "transactional" else "")
        client = {"consumer": Consumer, "admin": AdminClient}.get(role, Producer)(config)
        assert client.list_topics(topic, timeout=100).topics[topic].error is not None

    return ask


def faust_client(settings: KafkaSettings, topic: str) -> None:
    pytest.importorskip("faust")
    from aiokafka.client import AIOKafkaClient

    from eroica.streams.app import create_no_topics

    async def ask() -> None:
        client = AIOKafkaClient(bootstrap_servers=settings.bootstrap)
        await client.bootstrap()
        await client.add_topic(topic)
        await client.close()

    create_no_topics()
    asyncio.run(ask())


@pytest.fixture
def settings(tansu: EmbeddedBroker, prefix: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=prefix)


def created_by_the_broker(settings: KafkaSettings, topic: str) -> None:
    """What a client does that leaves creating topics to the broker."""
    stranger = Producer({"bootstrap.servers": settings.bootstrap})
    stranger.list_topics(topic, timeout=100)
    assert topic in check_broker(settings).topics


@pytest.mark.parametrize(
    "ask",
    [*(pytest.param(confluent(r), id=r) for r in ("producer", "transactional", "consumer", "admin")), faust_client],
)
def test_no_client_of_ours_makes_a_topic(settings: KafkaSettings, ask: Ask) -> None:
    ask(settings, f"{settings.prefix}control")
    assert list_topics(settings) == {}
    created_by_the_broker(settings, f"{settings.prefix}control")


def test_topics_that_the_broker_made_by_itself_are_recognised(
    settings: KafkaSettings, capsys: pytest.CaptureFixture[str], own_log: pytest.LogCaptureFixture
) -> None:
    topic = f"{settings.prefix}summaries"
    created_by_the_broker(settings, topic)
    have = list_topics(settings)[topic]
    assert have < TOPICS["summaries"].partitions, "or this shows nothing"
    with pytest.raises(
        BrokerError, match=rf"cannot widen topics: {topic} has {have} of .*eroica topics delete, eroica topics ens"
    ):
        ensure_topics(settings)
    words = ["--bootstrap", settings.bootstrap, "--prefix", settings.prefix]
    main(["doctor", "--json", *words])
    (line,) = [check for check in json.loads(capsys.readouterr().out) if check["name"] == "topics"]
    assert line["level"] == "bad" and f"{topic}: partitions {have} -> " in line["found"]
    watch = BrokerWatch(settings, "test", ["summaries"])
    with own_log.at_level(logging.ERROR):
        watch.look()
        watch.look()
    assert [m for m in own_log.messages if f"{topic} has {have} of" in m] == own_log.messages != []
    assert main(["topics", "delete", "--yes", *words]) == 0
    assert main(["topics", "ensure", *words]) == 0
    watch.look()
    assert len(own_log.messages) == 1
    assert list_topics(settings)[topic] == TOPICS["summaries"].partitions
