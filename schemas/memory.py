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
    """When the profile was asked for: of one clock with the requests that are held against it, unlike the workers'."""
    step_us: float
    own_us: float = 0.0
    """Median own time per step: the step less its exposed communication."""
    ranks: str = ""
    """The ranks of ``own_by_rank_us``, as ranges; empty for a class of more than some thousands."""
    own_by_rank_us: list[float] = msgspec.field(default_factory=list)
    """Median own time per step of each rank."""
    busy_us: float = 0.0
    """What the own times of all classes make of a step of the job, without communication."""
    lost_us: float = 0.0
    """Time of a step of the job that went to ranks slower than usual in their role, whoever it was."""
    once_us: float = 0.0
    """The part of it that comes once a step, however many micro-batches: loading, the optimizer."""
    spread_us: float = 0.0
    """By how much the own time of a worker differs from its own way in single steps (1.4826 median absolute deviations)."""
    functions: dict[str, float] = msgspec.field(default_factory=dict)
    """Function → median exclusive time per step, µs."""
    transfers: dict[str, float] = msgspec.field(default_factory=dict)
    """What a communicator does (kind, operation, place in the step, bytes, members) → median transfer, µs."""


class Feedback(Message, frozen=True, kw_only=True, tag="feedback"):
    """Whether what a verdict advised helped. The last word of an author on a remedy of a verdict counts."""

    job: str
    verdict_id: str
    helped: bool
    remedy: str = ""
    """Id of a remedy that the verdict offered; empty: the advice as a whole."""
    fault: str = ""
    """``action.playbook`` of the cause concerned."""
    author: str = ""
    comment: str = ""
    event_time_us: Int
