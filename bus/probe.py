"""Is there a Kafka broker at this address? Answers within seconds and says what is there instead."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from eroica.bus.config import client_config
from eroica.bus.errors import is_passing, translate
from eroica.schemas.errors import BrokerAway, BrokerError, UsageError
from eroica.schemas.settings import KafkaSettings

_API_VERSIONS = 18
_CORRELATION = 0x45524F49
_TLS_ALERT = 0x15


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A cluster that answered."""

    brokers: tuple[str, ...]
    """``host:port`` of each broker as the cluster announces it."""
    cluster_id: str
    topics: Mapping[str, int]
    """Partitions of each topic that we may see."""


def check_broker(settings: KafkaSettings) -> BrokerInfo:
    """Find out within about ``connect_timeout_ms`` whether a usable Kafka broker is at the bootstrap address.

    :raises UsageError: the address is not ``host:port``.
    :raises BrokerError: no such host, nothing listens, something else than Kafka listens, another security protocol is spoken,
        credentials are refused, or the cluster announces addresses that cannot be reached from here. A :class:`BrokerAway` among
        them where time may cure it.
    """
    budget_s = settings.connect_timeout_ms / 1000
    protocol = dict(settings.extra).get("security.protocol", "plaintext").lower()
    addresses = [parse_address(part) for part in settings.bootstrap.split(",")]
    problems: list[BrokerError] = []
    for host, port in addresses:
        try:
            _probe(host, port, budget_s / (2 * len(addresses)), speak=protocol == "plaintext")
            break
        except BrokerError as error:
            problems.append(error)
    else:
        raise problems[0]
    try:
        info = _metadata(settings, budget_s)
    except BrokerAway as error:
        if protocol == "plaintext":
            raise
        # Nothing has answered us yet, so the protocol may be what is wrong.
        raise BrokerError(error.what, where=error.where, do=error.do) from error
    _check_announced(info, budget_s / 4)
    return info


def parse_address(text: str) -> tuple[str, int]:
    """``host:port`` (or ``PROTOCOL://host:port``, ``[::1]:port``) as a pair.

    :raises UsageError: for anything else.
    """
    bare = text.strip().rpartition("://")[2]
    host, colon, port = bare.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65_536:
        raise UsageError(f"{text.strip()[:100]!r} is not host:port", where="kafka.bootstrap", do="give e.g. localhost:9092")
    return host, int(port)


def _probe(host: str, port: int, timeout_s: float, *, speak: bool) -> None:
    """Connect, and when *speak* say one ApiVersions request (version 0, known to every Kafka) and look at the answer."""
    where = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
    except socket.gaierror as error:
        raise BrokerAway(
            f"there is no host of this name ({error.strerror})", where=where, do="check the bootstrap address", reached=False
        ) from error
    except TimeoutError as error:
        raise BrokerAway(
            "the host does not answer", where=where, do="check the address and the firewall", reached=False
        ) from error
    except OSError as error:
        raise BrokerAway(
            f"nothing listens there ({error.strerror or error})",
            where=where,
            do="start the broker or mend the bootstrap address",
            reached=False,
        ) from error
    if not speak:
        connection.close()
        return
    body = struct.pack(">hhi", _API_VERSIONS, 0, _CORRELATION) + struct.pack(">h", 6) + b"eroica"
    answer = b""
    with connection:
        try:
            connection.sendall(struct.pack(">i", len(body)) + body)
            while len(answer) < 8 and (piece := connection.recv(64)):
                answer += piece
        except TimeoutError as error:
            if not answer:
                raise BrokerAway(
                    "something listens there, but it stays silent",
                    where=where,
                    do="the broker may be overloaded or stopped; else check the port, and security.protocol",
                ) from error
        except OSError:
            pass  # judged below by what arrived before it
    if len(answer) >= 8 and struct.unpack(">i", answer[4:8])[0] == _CORRELATION:
        return
    if answer[:1] == bytes([_TLS_ALERT]):
        raise BrokerError("the port speaks TLS, we speak plain text", where=where, do="set security.protocol=SSL or SASL_SSL")
    if answer:
        raise BrokerError("something listens there, but it is not a Kafka broker", where=where, do="check the port")
    raise BrokerError(
        "something listens there, but it does not answer as a Kafka broker does",
        where=where,
        do="check the port, and security.protocol if the broker wants TLS or SASL",
    )


def _metadata(settings: KafkaSettings, timeout_s: float) -> BrokerInfo:
    heard: list[KafkaError] = []
    config = client_config(settings, "admin", client_id="eroica-check")
    config["error_cb"] = heard.append
    try:
        client = AdminClient(config)
    except KafkaException as error:
        raise translate(error, settings.bootstrap) from error
    try:
        listed = client.list_topics(timeout=timeout_s)
    except KafkaException as error:
        client.poll(0)
        # That nobody answered is the consequence; what TLS or SASL said on the way is the cause.
        causes = [said for said in heard if not is_passing(said)]
        raise translate(causes[0] if causes else error, settings.bootstrap) from error
    return BrokerInfo(
        brokers=tuple(f"{b.host}:{b.port}" for _, b in sorted(listed.brokers.items())),
        cluster_id=listed.cluster_id or "",
        topics={name: len(topic.partitions) for name, topic in sorted(listed.topics.items())},
    )


def _check_announced(info: BrokerInfo, timeout_s: float) -> None:
    """Clients go on from the bootstrap address to the announced ones: one of these at least must be reachable."""
    for broker in info.brokers:
        try:
            socket.create_connection(parse_address(broker), timeout=timeout_s).close()
        except (OSError, UsageError):
            continue
        return
    raise BrokerError(
        f"the cluster answers but announces addresses that cannot be reached from here: {', '.join(info.brokers[:5])}",
        do="mend advertised.listeners of the brokers",
    )
