"""What every message shares: a frozen struct with its kind and the version of the schema."""

from __future__ import annotations

from typing import Annotated

import msgspec

SCHEMA_VERSION = "1.0"
"""``major.minor``. Within a major version changes are additive and readers ignore unknown fields; another major is a
dead letter."""

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number of a message. JSON's have no end, but what exceeds 64 bits could be read and then neither be written again
nor stand in a column: it is refused where it is read."""


Micros = Annotated[float, msgspec.Meta(ge=0.0, le=1e14)]
"""A length of time, µs, up to three years: what is negative or longer was never measured, and would make nonsense of every
figure that it goes into."""
Offset = Annotated[float, msgspec.Meta(ge=-1e14, le=1e14)]
"""A moment against another, µs."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A message on a topic.

    Invariants: immutable once made; ``kind`` on the wire names the class; a reader of major version 1 accepts any 1.x.
    """

    schema_version: str = SCHEMA_VERSION


MAX_NAME_CHARS = 4_000
"""Of a job, a launch, a request, a class, a host: a key holds up to three of them, and headers and key have 64 KB."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message."""
