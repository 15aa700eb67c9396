"""Kafka plumbing that every room shares: clients, topics, dead letters, and brokers for a machine without one.

Only bytes pass here: what a message means is the business of :mod:`eroica.schemas` and of the rooms.
"""

from eroica.bus.admin import BrokerInfo, TopicChange, check_broker, delete_topics, ensure_topics, list_topics
from eroica.bus.cloudevents import cloudevent_headers, read_cloudevent
from eroica.bus.config import client_config, dead_letter_topic, full_name, mask_secrets
from eroica.bus.consumer import GroupConsumer, read_partitions
from eroica.bus.dlq import DeadLetter, DeadLetterLimit, DeadLetterQueue, dead_letter
from eroica.bus.groups import groups_with_members
from eroica.bus.message import Headers, Incoming
from eroica.bus.producer import BusProducer, ProducerCounters
from eroica.bus.table import CompactedTable

__all__ = [
    "BrokerInfo",
    "BusProducer",
    "CompactedTable",
    "DeadLetter",
    "DeadLetterLimit",
    "DeadLetterQueue",
    "GroupConsumer",
    "Headers",
    "Incoming",
    "ProducerCounters",
    "TopicChange",
    "check_broker",
    "client_config",
    "cloudevent_headers",
    "dead_letter",
    "dead_letter_topic",
    "delete_topics",
    "ensure_topics",
    "full_name",
    "groups_with_members",
    "list_topics",
    "mask_secrets",
    "read_cloudevent",
    "read_partitions",
]
