"""Brokers for a machine without one: Tansu from a wheel (at once, in memory), Apache Kafka from its Maven jars (the real thing)."""

from eroica.bus.local.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
