"""What is at the bootstrap address, when it is not the broker we hoped for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from eroica.bus import BusProducer, check_broker
from eroica.bus.probe import parse_address
from eroica.schemas.errors import BrokerError, MessageTooLarge, UsageError
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS

pytestmark = pytest.mark.unit


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """Something that listens and answers every connection with *answer*; ``None``: never answers."""
    listening = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            held.append(connection)
            if answer is not None:
                # The client may be gone already; what it got until then is what the test looks at.
                with suppress(OSError):
                    connection.recv(1024)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in held:
            connection.close()
        thread.join(100)


def settings(bootstrap: str, timeout_ms: int = 100_000, **extra: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=bootstrap, connect_timeout_ms=timeout_ms, extra=extra)


@contextmanager
def unheard() -> Iterator[str]:
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a Kafka broker"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "speaks TLS"),
        (b"", "does not answer as a Kafka broker"),
        (None, "it stays silent"),
        (b"\x00\x00\x00\x0a\x00\x00\x00\x01rubbish", "not a Kafka broker"),
    ],
)
def test_a_port_that_is_no_kafka_broker_is_told_from_one(answer: bytes | None, text: str) -> None:
    with server(answer) as port, pytest.raises(BrokerError, match=text) as raised:
        check_broker(settings(f"127.0.0.1:{port}", timeout_ms=100_000 if answer is not None else 1_000))
    assert f"127.0.0.1:{port}" in raised.value.where
    assert raised.value.exit_code == 4


def test_nothing_listens() -> None:
    with unheard() as address, pytest.raises(BrokerError, match="nothing listens there"):
        check_broker(settings(address))


def test_no_such_host() -> None:
    with pytest.raises(BrokerError, match="no host of this name"):
        check_broker(settings("no-such-host.invalid:9092"))


def test_tls_at_a_plain_port_is_a_broker_error_that_names_the_setting() -> None:
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port, pytest.raises(BrokerError) as raised:
        # It is looked at for the whole of the time that is given.
        check_broker(settings(f"127.0.0.1:{port}", timeout_ms=5_000, **{"security.protocol": "ssl"}))
    assert "the TLS connection failed" in str(raised.value)
    assert "check security.protocol" in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "localhost", "localhost:", ":9092", "localhost:x", "localhost:0", "localhost:70000", "h:9092:"]
)
def test_an_address_without_host_or_port_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not host:port"):
        check_broker(settings(text))


@pytest.mark.parametrize(
    ("text", "pair"),
    [("kafka:9092", ("kafka", 9092)), (" SASL_SSL://a.b:1 ", ("a.b", 1)), ("[::1]:9092", ("::1", 9092))],
)
def test_addresses(text: str, pair: tuple[str, int]) -> None:
    assert parse_address(text) == pair


def test_without_a_broker_sending_returns_at_once_and_every_message_is_accounted_for() -> None:
    with unheard() as address:
        producer = BusProducer(settings(address, **{"queue.buffering.max.messages": "10"}))
        outcomes = [producer.send("control", key="k", value=b"x") for _ in range(25)]
        assert outcomes == [True] * 10 + [False] * 15
        assert producer.close(timeout_s=0.1) == 10
    count = producer.counters
    assert (count.queued, count.delivered, count.lost, count.refused, count.in_flight) == (10, 0, 10, 15, 0)


def test_an_oversized_message_is_refused_before_it_is_queued() -> None:
    producer = BusProducer(settings("127.0.0.1:1"))
    with pytest.raises(MessageTooLarge, match="verdicts"):
        producer.send("verdicts", key="k", value=bytes(TOPICS["verdicts"].max_message_bytes + 1))
    with pytest.raises(MessageTooLarge, match="verdicts"):
        producer.send("verdicts", key="k", value=b"x", headers=(("h", bytes(100_000)),))
    assert producer.counters.queued == 0
