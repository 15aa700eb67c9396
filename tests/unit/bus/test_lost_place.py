"""A producer whose number the broker forgot begins anew; it is replaced, and not many times a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from eroica.bus.producer import RENEW_S, BusProducer, check_size
from eroica.schemas.base import MAX_NAME_CHARS
from eroica.schemas.errors import MessageTooLarge
from eroica.schemas.settings import KafkaSettings

pytestmark = pytest.mark.unit


@pytest.fixture
def producer() -> Iterator[BusProducer]:
    made = BusProducer(KafkaSettings(bootstrap="127.0.0.1:1"))
    yield made
    made.close(0.0)


def client_after_send(producer: BusProducer) -> object:
    assert producer.send("control", key="k", value=b"v")
    return producer._client


@pytest.mark.parametrize(
    ("code", "anew"),
    [
        (KafkaError.PRODUCER_FENCED, True),
        (KafkaError.UNKNOWN_PRODUCER_ID, True),
        (KafkaError.INVALID_PRODUCER_EPOCH, True),
        (KafkaError._MSG_TIMED_OUT, False),
    ],
)
def test_a_client_that_the_broker_forgot_is_replaced_once(producer: BusProducer, code: int, anew: bool) -> None:
    for _ in range(5):
        first = client_after_send(producer)
    producer._decided(KafkaError(code))
    second = client_after_send(producer)
    assert (second is not first) == anew
    producer._decided(KafkaError(code))
    assert client_after_send(producer) is second
    producer._renew_from -= RENEW_S
    producer._decided(KafkaError(code))
    assert (client_after_send(producer) is not second) == anew


def test_a_client_that_gave_up_on_everything_is_replaced(producer: BusProducer) -> None:
    first = client_after_send(producer)
    assert client_after_send(producer) is first
    producer._decided(KafkaError(KafkaError._MSG_TIMED_OUT))
    assert client_after_send(producer) is first, "others are still under way"
    producer._decided(KafkaError(KafkaError._MSG_TIMED_OUT))
    producer._decided(KafkaError(KafkaError._MSG_TIMED_OUT))
    assert producer.counters.in_flight == 0
    assert client_after_send(producer) is not first


@pytest.mark.parametrize(
    ("key", "value", "says"), [("k" * 70_000, b"v", "key and headers"), ("k", b"v" * 9_000_000, "over the limit of")]
)
def test_what_can_never_be_sent_says_which_part_is_too_large(key: str, value: bytes, says: str) -> None:
    with pytest.raises(MessageTooLarge, match=says):
        check_size("control", key, value)


def test_a_key_of_three_of_the_longest_names_can_be_sent() -> None:
    check_size("control", "/".join(["k" * MAX_NAME_CHARS] * 3), b"v")
