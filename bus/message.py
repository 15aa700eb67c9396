"""A record as it came from the broker, free of any client library's types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Headers = tuple[tuple[str, bytes], ...]
"""Record headers in their order; a name may repeat."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One record read from a topic; nothing in it is decoded or trusted yet."""

    topic: str
    """Full name, prefix included."""
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    """``None`` is a tombstone: on a compacted topic it deletes the key."""
    headers: Headers
    timestamp_ms: int
    """The record's timestamp (producer's clock for CreateTime topics), -1 when the broker has none."""

    @property
    def where(self) -> str:
        """``topic[partition]@offset``, as errors and logs name a record."""
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def header(self, name: str) -> bytes | None:
        """The last header called *name*, or ``None``."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None


def incoming(message: Any) -> Incoming:
    """Copy a ``confluent_kafka.Message`` (which must not carry an error) into an :class:`Incoming`."""
    pairs = message.headers() or []
    return Incoming(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple((str(name), value if isinstance(value, bytes) else b"") for name, value in pairs),
        timestamp_ms=int(message.timestamp()[1]),
    )
