"""Settings of the Kafka clients, one function for all roles.

Names are librdkafka's own, so whatever a person sets in ``KafkaSettings.extra`` (security above all) reaches the client
unchanged and wins over the values chosen here.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS

Role = Literal["producer", "transactional", "consumer", "admin"]

LINGER_MS = 20
"""Wait for a batch to fill: at some messages a second per host this costs nothing and halves the requests."""
QUEUE_KBYTES = 32_768
"""Memory one producer may hold while the broker is away; librdkafka's 1 GiB would come out of a training host."""
MESSAGE_TIMEOUT_MS = 120_000
"""How long an undelivered message is retried: longer than a broker's restart or a rolling upgrade of three."""
TRANSACTION_TIMEOUT_MS = 60_000
"""Broker-side limit of an open transaction; ``message.timeout.ms`` must not be above it."""
SESSION_TIMEOUT_MS = 10_000
"""A dead group member is replaced after this. The embedded broker also spends half of it on each join."""
RECONNECT_MAX_MS = 2_000
"""A client is back within about this time of the broker's return (librdkafka's own limit is 10 s)."""
BATCH_OVERHEAD_BYTES = 65_536
"""Room for key, headers and batch framing over the largest value a topic allows."""
FETCH_TOTAL_BYTES = 16_777_216
"""One fetch answer's size; bounds what a consumer holds at once, together with its queue of twice this."""

_SECRET_MARKS = ("password", "secret", "key.pem", "oauthbearer.config", "token", "ssl.key")

_client_log = logging.getLogger("eroica.bus.librdkafka")
_client_log.addHandler(logging.NullHandler())  # reconnects are no news on the terminal of somebody who configured no logging


def full_name(settings: KafkaSettings, topic: str) -> str:
    """*topic* with the prefix of this installation: ``verdicts`` becomes ``eroica.verdicts``."""
    return f"{settings.prefix}{topic}"


def dead_letter_topic(topic: str) -> str:
    """Where the unreadable messages of *topic* (short or full name) go."""
    return topic if topic.endswith(".dlq") else f"{topic}.dlq"


def message_limit_bytes(topic: str) -> int:
    """Largest value of *topic* (short name, dead letters share their source's limit); for another name, the largest of all."""
    known = TOPICS.get(topic.removesuffix(".dlq"))
    return known.max_message_bytes if known else max(t.max_message_bytes for t in TOPICS.values())


def client_config(
    settings: KafkaSettings,
    role: Role,
    *,
    client_id: str = "eroica",
    group: str = "",
    transactional_id: str = "",
) -> dict[str, Any]:
    """Build the dictionary for a ``confluent_kafka`` client.

    :param role: what the client is for. ``transactional`` needs *transactional_id*; ``consumer`` may have a *group*
        (without one it must be assigned partitions by hand, and its offsets are never stored).
    :returns: a new dictionary; ``settings.extra`` has been laid over it last.
    :raises ValueError: for a transactional producer without an id: a programming error, not a user's.
    """
    largest = max(t.max_message_bytes for t in TOPICS.values()) + BATCH_OVERHEAD_BYTES
    config: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap,
        "client.id": client_id,
        # A broker that comes back empty would make our topics with a number of partitions of its own, before anybody can.
        "allow.auto.create.topics": False,
        "logger": _client_log,
        "log.connection.close": False,
        "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
        "socket.keepalive.enable": True,
        "socket.connection.setup.timeout.ms": 5_000,
    }
    if role in ("producer", "transactional"):
        config |= {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": LINGER_MS,
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "message.max.bytes": largest,
            "message.timeout.ms": MESSAGE_TIMEOUT_MS,
        }
    if role == "transactional":
        if not transactional_id:
            raise ValueError("a transactional producer needs a stable transactional.id")
        config |= {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 0,
        }
    if role == "consumer":
        config |= {
            "group.id": group or f"{client_id}-unassigned",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.max.bytes": max(FETCH_TOTAL_BYTES, largest),
            "queued.max.messages.kbytes": 2 * FETCH_TOTAL_BYTES // 1024,
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": largest,
            "receive.message.max.bytes": max(FETCH_TOTAL_BYTES, largest) + 1_048_576,
            "topic.metadata.refresh.interval.ms": 30_000,
        }
        if group:
            session = str(settings.extra.get("session.timeout.ms", ""))
            session_ms = int(session) if session.isdigit() else SESSION_TIMEOUT_MS
            config |= {
                "session.timeout.ms": session_ms,
                # Members hear of a rebalance with a heartbeat, so a shorter session needs them more often.
                "heartbeat.interval.ms": max(1, session_ms // 4),
                "partition.assignment.strategy": "range",
            }
    return config | dict(settings.extra)


def mask_secrets(config: dict[str, Any]) -> dict[str, str]:
    """*config* for printing and logs: every secret replaced by ``****``, objects left out."""
    shown: dict[str, str] = {}
    for name, value in config.items():
        if name == "logger" or callable(value):
            continue
        secret = any(mark in name for mark in _SECRET_MARKS) and not name.endswith(".location")
        shown[name] = "****" if secret and value else str(value)
    return shown
