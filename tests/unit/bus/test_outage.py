"""Waiting for a broker: what is waited for, what is said of it, and what ends it."""

from __future__ import annotations

import logging
import socket
import threading

import pytest
from confluent_kafka import KafkaError

from eroica.bus.errors import translate
from eroica.bus.outage import SAY_EVERY_S, patiently, wait_for_broker
from eroica.schemas.errors import BrokerAway, BrokerError
from eroica.schemas.settings import KafkaSettings

pytestmark = pytest.mark.unit


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_long_outage_is_waited_out_and_said_once_in_a_while(own_log: pytest.LogCaptureFixture) -> None:
    own_log.set_level(logging.WARNING)
    clock = Clock()
    outage_s = 10 * SAY_EVERY_S

    def call() -> str:
        if clock.now < outage_s:
            raise BrokerAway("no answer")
        return "done"

    assert patiently(call, "localize", clock=clock, sleep=clock.sleep) == "done"
    lines = [record.getMessage() for record in own_log.records]
    assert lines[0] == "localize waits for the broker: no answer"
    assert lines[-1] == f"localize goes on after {outage_s:.0f} s"
    assert len(lines) == 11


def test_what_waiting_does_not_cure_is_raised_at_once_and_a_stop_ends_the_waiting() -> None:
    clock, tries = Clock(), 0

    def refused() -> None:
        raise BrokerError("wrong password")

    def away() -> None:
        nonlocal tries
        tries += 1
        raise BrokerAway("no answer")

    with pytest.raises(BrokerError, match="wrong password"):
        patiently(refused, "x", clock=clock, sleep=clock.sleep)
    assert clock.now == 0
    with pytest.raises(BrokerAway, match="no answer"):
        patiently(away, "x", stop=lambda: tries == 5, clock=clock, sleep=clock.sleep)
    assert tries == 5


def test_where_nothing_listens_a_service_ends_at_once() -> None:
    with socket.socket() as held:  # bound, so that nobody else can listen there
        held.bind(("127.0.0.1", 0))
        nobody = KafkaSettings(bootstrap=f"127.0.0.1:{held.getsockname()[1]}")
        with pytest.raises(BrokerError, match="nothing listens there"):
            wait_for_broker(nobody, "x", sleep=lambda _: pytest.fail("it waits"))


def test_a_broker_that_was_met_is_waited_for_even_when_nothing_listens_any_more() -> None:
    stop, waits = threading.Event(), []
    listening = socket.create_server(("127.0.0.1", 0))
    settings = KafkaSettings(bootstrap=f"127.0.0.1:{listening.getsockname()[1]}", connect_timeout_ms=200)

    def sleep(_: float) -> None:
        waits.append(1)
        listening.close()
        if len(waits) == 3:
            stop.set()

    with pytest.raises(BrokerAway, match="nothing listens there"):
        wait_for_broker(settings, "x", stop=stop.is_set, sleep=sleep)
    assert len(waits) == 3


@pytest.mark.parametrize(
    ("code", "away"),
    [
        (KafkaError._TRANSPORT, True),
        (KafkaError._TIMED_OUT, True),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, True),
        (KafkaError._AUTHENTICATION, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, True),
    ],
)
def test_only_an_outage_is_waited_for(code: int, away: bool) -> None:
    assert isinstance(translate(KafkaError(code), "topic"), BrokerAway) is away
