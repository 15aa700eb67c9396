"""Settings, names, headers and errors of the clients."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from eroica.bus import client_config, cloudevent_headers, dead_letter_topic, full_name, mask_secrets, read_cloudevent
from eroica.bus.config import MESSAGE_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS, message_limit_bytes
from eroica.bus.errors import is_passing, translate
from eroica.schemas.errors import BrokerAway, BrokerError, EroicaError, MessageTooLarge, TopicMissing
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS

pytestmark = pytest.mark.unit

SETTINGS = KafkaSettings(bootstrap="localhost:1", prefix="x.")


def test_librdkafka_accepts_every_role() -> None:
    Producer(client_config(SETTINGS, "producer"))
    Producer(client_config(SETTINGS, "transactional", transactional_id="t"))
    Consumer(client_config(SETTINGS, "consumer", group="g")).close()
    Consumer(client_config(SETTINGS, "consumer")).close()
    AdminClient(client_config(SETTINGS, "admin"))


def test_what_a_person_sets_wins_and_the_client_is_idempotent_by_default() -> None:
    assert client_config(SETTINGS, "producer")["enable.idempotence"] is True
    mine = SETTINGS.model_copy(update={"extra": {"linger.ms": "7", "security.protocol": "SASL_SSL"}})
    config = client_config(mine, "producer")
    assert (config["linger.ms"], config["security.protocol"]) == ("7", "SASL_SSL")


@pytest.mark.parametrize(
    ("extra", "session", "heartbeat"),
    [
        ({}, 10_000, 2_500),
        ({"session.timeout.ms": "3000"}, "3000", 750),
        ({"session.timeout.ms": "6000", "heartbeat.interval.ms": "100"}, "6000", "100"),
    ],
)
def test_heartbeats_come_four_to_a_session(extra: dict[str, str], session: object, heartbeat: object) -> None:
    config = client_config(SETTINGS.model_copy(update={"extra": extra}), "consumer", group="g")
    assert (config["session.timeout.ms"], config["heartbeat.interval.ms"]) == (session, heartbeat)
    Consumer(config).close()


def test_a_session_that_is_no_number_is_told_by_the_client() -> None:
    config = client_config(SETTINGS.model_copy(update={"extra": {"session.timeout.ms": "soon"}}), "consumer", group="g")
    with pytest.raises(KafkaException, match=r"session\.timeout\.ms"):
        Consumer(config)


def test_a_transaction_cannot_outlive_its_messages() -> None:
    config = client_config(SETTINGS, "transactional", transactional_id="t")
    assert config["message.timeout.ms"] <= config["transaction.timeout.ms"] == TRANSACTION_TIMEOUT_MS < MESSAGE_TIMEOUT_MS
    with pytest.raises(ValueError, match=r"transactional\.id"):
        client_config(SETTINGS, "transactional")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sasl.password", "****"),
        ("ssl.key.password", "****"),
        ("ssl.key.pem", "****"),
        ("ssl.keystore.password", "****"),
        ("sasl.oauthbearer.client.secret", "****"),
        ("sasl.oauthbearer.config", "****"),
        ("ssl.key.location", "value"),
        ("sasl.username", "value"),
    ],
)
def test_secrets_are_never_printed(name: str, shown: str) -> None:
    settings = SETTINGS.model_copy(update={"extra": {name: "value"}})
    assert mask_secrets(client_config(settings, "admin"))[name] == shown


def test_names_and_limits() -> None:
    assert full_name(SETTINGS, "verdicts") == "x.verdicts"
    assert dead_letter_topic("x.verdicts") == "x.verdicts.dlq"
    assert dead_letter_topic("x.verdicts.dlq") == "x.verdicts.dlq"
    for name, topic in TOPICS.items():
        assert message_limit_bytes(name) == message_limit_bytes(f"{name}.dlq") == topic.max_message_bytes
    assert message_limit_bytes("own") == max(t.max_message_bytes for t in TOPICS.values())


def test_cloudevent_attributes_travel_as_headers() -> None:
    headers = cloudevent_headers(event_type="io.eroica.summary", source="/agent/ä", event_id="7", partitionkey="job")
    assert ("content-type", b"application/json") in headers
    assert read_cloudevent(headers) == {
        "specversion": "1.0",
        "type": "io.eroica.summary",
        "source": "/agent/ä",
        "id": "7",
        "partitionkey": "job",
    }
    assert read_cloudevent((("trace", b"1"), ("ce_id", b"\xff" * 5_000)))["id"].count("\ufffd") == 1024
    with pytest.raises(ValueError, match="attribute name"):
        cloudevent_headers(event_type="t", source="s", event_id="1", Bad_Name="x")


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (KafkaError._ALL_BROKERS_DOWN, BrokerAway, "cannot be reached"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing, "eroica topics ensure"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerError, "not allowed"),
        (KafkaError.MSG_SIZE_TOO_LARGE, MessageTooLarge, "larger than the topic allows"),
        (KafkaError.NOT_CONTROLLER, BrokerError, "answered with an error"),
    ],
)
def test_errors_say_where_and_what_to_do(code: int, kind: type[EroicaError], text: str) -> None:
    for error in (KafkaError(code), KafkaException(KafkaError(code))):
        translated = translate(error, "x.topic")
        assert type(translated) is kind
        assert text in str(translated)
        assert str(translated).startswith("x.topic: ")


def test_only_hopeless_errors_end_a_consumer() -> None:
    assert is_passing(KafkaError(KafkaError._TRANSPORT))
    assert is_passing(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    assert not is_passing(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert not is_passing(KafkaError(KafkaError._TRANSPORT, "x", True))
