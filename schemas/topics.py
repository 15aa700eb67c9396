"""The table of topics: name, direction, key, size and retention, in one place. Names get the configured prefix in front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from eroica.schemas.base import Message
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import GroupChunk
from eroica.schemas.iterations import IterationBatch, StepPartial
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.memory import Baseline, Feedback
from eroica.schemas.summaries import CloseClass, Expectation, StackEvidence, Summary, SummaryError
from eroica.schemas.verdicts import Verdict

HOUR_MS = 3_600_000
KEY_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. ``max_message_bytes`` bounds the decoded value as well as the broker's limit."""

    name: str
    key: str
    """Parts of the key, joined by ``/``."""
    messages: tuple[type[Message], ...]
    partitions: int
    max_message_bytes: int
    cleanup_policy: Literal["delete", "compact"] = "delete"
    retention_ms: int = 7 * 24 * HOUR_MS
    sender: str = ""
    receiver: str = ""

    @property
    def dlq(self) -> str:
        """Name of its dead-letter topic."""
        return f"{self.name}.dlq"

    @property
    def union(self) -> Any:
        """The union of its message classes, for a decoder."""
        union: Any = self.messages[0]
        for message in self.messages[1:]:
            union = union | message
        return union


_TOPICS = (
    Topic("jobs", "job/host", (JobAnnouncement,), 4, 2_000_000, "compact", sender="producers", receiver="all"),
    Topic(
        "iterations", "job/shard", (IterationBatch,), 16, 1_000_000, retention_ms=6 * HOUR_MS,
        sender="producers", receiver="streams",
    ),
    Topic(
        "partials", "job", (StepPartial,), 16, 1_000_000, retention_ms=6 * HOUR_MS, sender="streams", receiver="streams"
    ),
    Topic("control", "job", (ProfileRequest,), 4, 1_000_000, sender="streams, cli", receiver="producers, streams"),
    Topic(
        "summaries", "job/request/class", (Summary, SummaryError, StackEvidence, Expectation, CloseClass), 16, 1_000_000,
        sender="producers, streams", receiver="streams",
    ),
    Topic("groups", "job/request", (GroupChunk,), 16, 1_000_000, sender="streams", receiver="localizer"),
    Topic("baselines", "job/class", (Baseline,), 4, 1_000_000, "compact", sender="localizer", receiver="localizer"),
    Topic("verdicts", "job", (Verdict,), 4, 256_000, retention_ms=30 * 24 * HOUR_MS, sender="localizer", receiver="world"),
    Topic("feedback", "job", (Feedback,), 4, 64_000, retention_ms=90 * 24 * HOUR_MS, sender="people", receiver="localizer"),
)  # fmt: skip

TOPICS: dict[str, Topic] = {topic.name: topic for topic in _TOPICS}
MESSAGE_TOPIC: dict[type[Message], Topic] = {message: topic for topic in _TOPICS for message in topic.messages}
MAX_VERDICT_BYTES = 65_536


def message_key(*parts: str | int) -> str:
    """Join the parts of a key; a separator inside a part is replaced, so keys of different parts stay different in practice."""
    return KEY_SEPARATOR.join(str(part).replace(KEY_SEPARATOR, "_") for part in parts)
