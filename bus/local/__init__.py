"""Brokers for a machine without one: Tansu from a wheel (at once, in memory) or Apache Kafka from its Maven jars."""

from eroica.bus.local.embedded import EmbeddedBroker
from eroica.bus.local.kafka_jars import KafkaCluster

__all__ = ["EmbeddedBroker", "KafkaCluster"]
