"""Which consumer groups have members: whether a service runs, as the broker sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from eroica.bus.config import client_config
from eroica.bus.errors import translate
from eroica.schemas.errors import BrokerAway
from eroica.schemas.settings import KafkaSettings

SHORTER_TRIES = (0.2, 0.4)
"""Shares of the time to connect. A broker that never had a group makes the topic for their offsets first, and the client whose
question began that waits for an answer in vain; the next one gets it at once."""
_NOBODY = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)


def groups_with_members(settings: KafkaSettings, groups: Iterable[str]) -> frozenset[str]:
    """Those of *groups* (names without the prefix) that have a member now.

    A member that was killed counts until its session is over, some ten seconds; on the embedded broker much longer. The state
    of the group tells, for the embedded broker does not list members.

    :raises BrokerError: broker unreachable, or rights missing.
    """
    names = {f"{settings.prefix}{group}": group for group in groups}
    connect_s = settings.connect_timeout_ms / 1_000
    for share in SHORTER_TRIES:
        with suppress(BrokerAway):
            return _ask(settings, names, share * connect_s)
    return _ask(settings, names, connect_s)


def _ask(settings: KafkaSettings, names: Mapping[str, str], timeout_s: float) -> frozenset[str]:
    try:
        admin = AdminClient(client_config(settings, "admin", client_id="eroica-groups"))
        answers = admin.describe_consumer_groups(list(names), request_timeout=timeout_s)
    except KafkaException as error:
        raise translate(error, settings.bootstrap) from error
    found: set[str] = set()
    for name, answer in answers.items():
        try:
            if answer.result().state not in _NOBODY:
                found.add(names[name])
        except KafkaException as error:
            # Newer brokers say so of a group that never was.
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise translate(error, name) from error
    return frozenset(found)
