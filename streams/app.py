"""The one place where a Faust application gets its settings.

Faust brings consumer groups, assignment and scale-out by adding processes. What it does not do well is switched off
here: tables, transactions, topic creation, its web server, redirected output (facts and measurements:
docs/detection.md, "The shell").
"""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import Any

import aiokafka.client
import faust
from aiokafka.protocol.metadata import MetadataRequest

from eroica.bus.config import SESSION_TIMEOUT_MS, full_name
from eroica.bus.folders import own_folder
from eroica.schemas.errors import UsageError
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS
from eroica.streams.lean import LeanApp, RawSchema

COMMIT_INTERVAL_S = 1.0
"""How much is read again after a kill -9; a commit a second costs the broker nothing."""
MAX_FETCH_BYTES = 4 * 2**20
"""Per partition and fetch: several host batches at once, and above the largest message."""
REQUEST_TIMEOUT_S = 90.0
"""Faust wants it at or above the session timeout."""
METADATA_AGE_MS = 30_000
"""Topics that were lost and created again are found within this; aiokafka's own limit is five minutes."""
BUFFERED_MESSAGES = 4_096


def faust_app(settings: KafkaSettings, group: str, workdir: Path | None = None) -> faust.App:
    """An application whose consumer group is *group* (prefixed as the topics are).

    :param workdir: for the little that Faust keeps on disk; a folder of the user's own under the temporary one by default.
    :raises UsageError: a security setting that Faust's client does not know, or no such folder can be had.
    """
    create_no_topics()
    session_s = float(settings.extra.get("session.timeout.ms", SESSION_TIMEOUT_MS)) / 1_000
    return LeanApp(
        f"{settings.prefix}{group}",
        broker=[f"kafka://{address.strip()}" for address in settings.bootstrap.split(",") if address.strip()],
        broker_credentials=credentials(settings.extra),
        broker_client_id=f"eroica-{group}",
        broker_commit_interval=COMMIT_INTERVAL_S,
        broker_session_timeout=session_s,
        broker_heartbeat_interval=session_s / 4,
        broker_request_timeout=max(REQUEST_TIMEOUT_S, session_s),
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=MAX_FETCH_BYTES,
        consumer_metadata_max_age_ms=METADATA_AGE_MS,
        consumer_group_instance_id=settings.extra.get("group.instance.id"),
        producer_acks=-1,
        stream_wait_empty=False,
        stream_buffer_maxsize=BUFFERED_MESSAGES,
        table_standby_replicas=0,
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        worker_redirect_stdouts=False,
        web_enabled=False,
        datadir=str(workdir or own_folder(f"eroica-{group}")),
        autodiscover=False,
    )


def create_no_topics() -> None:
    """Let aiokafka not have the broker create what it asks about; it has no setting for that.

    A broker that comes back empty would else make our topics anew at once, with a number of partitions of its own.
    """
    aiokafka.client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)


def raw_topic(app: faust.App, settings: KafkaSettings, topic: str) -> Any:
    """*topic* (short name) as bytes: decoding is the agent's, where its errors can be dealt with."""
    return app.topic(
        full_name(settings, topic),
        schema=RawSchema(key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"),
        partitions=TOPICS[topic].partitions,
    )


def credentials(extra: dict[str, str]) -> Any:
    """librdkafka's security settings as Faust's credentials; ``None`` for plain connections.

    :raises UsageError: an unknown ``security.protocol`` or ``sasl.mechanism``, or files that cannot be loaded.
    """
    protocol = extra.get("security.protocol", "plaintext").lower()
    if protocol == "plaintext":
        return None
    if protocol not in ("ssl", "sasl_plaintext", "sasl_ssl"):
        raise UsageError(
            f"security.protocol {protocol!r} is not known",
            where="kafka.extra",
            do="use plaintext, ssl, sasl_plaintext or sasl_ssl",
        )
    context = _ssl_context(extra) if protocol.endswith("ssl") else None
    if protocol == "ssl":
        return faust.SSLCredentials(context)
    mechanism = extra.get("sasl.mechanism", extra.get("sasl.mechanisms", "PLAIN")).upper()
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise UsageError(
            f"sasl.mechanism {mechanism!r} is not supported here",
            where="kafka.extra",
            do="use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
        )
    return faust.SASLCredentials(
        username=extra.get("sasl.username", ""), password=extra.get("sasl.password", ""), mechanism=mechanism, ssl_context=context
    )


def _ssl_context(extra: dict[str, str]) -> ssl.SSLContext:
    authority = extra.get("ssl.ca.location")
    try:
        context = ssl.create_default_context(cafile=authority)
        certificate = extra.get("ssl.certificate.location")
        if certificate:
            context.load_cert_chain(certificate, extra.get("ssl.key.location"), extra.get("ssl.key.password"))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the TLS files cannot be loaded ({error})",
            where="kafka.extra",
            do="check ssl.ca.location and ssl.certificate.location",
        ) from error
    if extra.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    return context
