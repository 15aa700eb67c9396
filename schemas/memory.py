"""Topics ``baselines`` (localizer → localizer, key job/class, compacted) and ``feedback`` (people → localizer, key job)."""

from __future__ import annotations

import msgspec

from eroica.schemas.base import Int, Message


class Baseline(Message, frozen=True, kw_only=True, tag="baseline"):
    """A healthy profile of one class of a job: what "as usual" is. The last word of each key counts."""

    job: str
    cls: str
    request: str
    """The request whose profile it came from."""
    fingerprint: str = ""
    """Digest of code and configuration; a baseline of another fingerprint is not comparable."""
    event_time_us: Int
    step_us: float
    functions: dict[str, float] = msgspec.field(default_factory=dict)
    """Function → median exclusive time per step, µs."""


class Feedback(Message, frozen=True, kw_only=True, tag="feedback"):
    """Whether a verdict's remedy helped."""

    job: str
    verdict_id: str
    helped: bool
    comment: str = ""
    event_time_us: Int
