"""What cores give back: messages with their key, and references to where an input came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from eroica.schemas.base import Message
from eroica.schemas.topics import MESSAGE_TOPIC


@dataclass(frozen=True, slots=True)
class Output:
    """A message that a core wants sent. ``event_time_us`` goes into its CloudEvents header ``ce_time``."""

    key: str
    message: Message
    event_time_us: int = 0
    encoded: bytes = field(default=b"", compare=False, repr=False)
    """The message's bytes where its maker had to know them, so that nobody makes them again; empty elsewhere."""

    @property
    def topic(self) -> str:
        """Short name of the topic it belongs on."""
        return MESSAGE_TOPIC[type(self.message)].name


@dataclass(frozen=True, slots=True)
class InputRef:
    """Where an input message came from."""

    topic: str
    partition: int
    offset: int
