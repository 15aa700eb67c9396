"""Topic ``verdicts``: what the world subscribes to. One per profile request, key job, exactly once.

The public interface: additive changes only. No clock reading of the writer is inside; the same input gives the same bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from eroica.schemas.base import Int, Message, Record
from eroica.schemas.control import Reason

Status = Literal["culprit_found", "shared_cause", "no_fault_found", "insufficient_data"]
CauseClass = Literal[
    "worker",
    "host",
    "link",
    "fabric",
    "pipeline_stage",
    "data_imbalance",
    "software_pause",
    "whole_job",
    "hang",
    "unknown",
]
ActionKind = Literal["drain", "check", "rollback", "tune", "watch"]
NOT_ENOUGH = "not enough to accuse"
"""How a note begins that tells of a suspicion too weak to be a cause."""


def is_same_again(one: Cause, other: Cause) -> bool:
    """Whether two causes are the same thing in two places: class, fault, functions, and what to do."""
    return (one.class_, one.fault, one.functions, one.action.playbook, one.action.text) == (
        other.class_,
        other.fault,
        other.functions,
        other.action.playbook,
        other.action.text,
    )


def is_suspicion(note: str) -> bool:
    """Whether *note*, of a verdict's coverage, tells of a suspicion too weak to be a cause."""
    return note.startswith(NOT_ENOUGH)


class Evidence(Record, frozen=True, kw_only=True):
    """One comparison that a person can redo: *metric* of *subject* was *value*, *expected* among *compared_with*."""

    kind: str
    """``function``, ``wait``, ``step``, ``pause``, ``metric``, ``stack``, ``coverage`` …"""
    metric: str
    subject: str
    """``rank 2``, ``host a``, ``communicator dp``…"""
    value: float
    unit: str
    expected: float
    score: float
    """How far out, as ``score_kind`` says."""
    score_kind: str = ""
    """``z`` (robust standard deviations), ``ratio`` (to what is expected), ``share`` (0..1), ``correlation``, ``value`` (the
    value itself, where there is nothing to hold it against); empty in verdicts of older writers."""
    rule: str
    compared_with: str
    """The peers, e.g. ``ranks 0-1,3``."""


class Suspects(Record, frozen=True, kw_only=True):
    """The smallest set at fault."""

    ranks: str = ""
    hosts: list[str] = msgspec.field(default_factory=list)
    links: list[str] = msgspec.field(default_factory=list)
    stages: list[Int] = msgspec.field(default_factory=list)


class IsolationGroup(Record, frozen=True, kw_only=True):
    """The smallest parallel group that holds the suspects."""

    kind: str
    ranks: str


class Remedy(Record, frozen=True, kw_only=True):
    """Something that may help, and how often people said that it did.

    The counts are of feedback on any job's verdicts; they decide nothing.
    """

    id: str
    text: str
    helped: Int = 0
    did_not_help: Int = 0


class Action(Record, frozen=True, kw_only=True):
    """What to do about it."""

    kind: ActionKind
    text: str
    playbook: str = ""
    """The entry of the playbook that this is from: the fault, or the class where no signature holds."""
    name: str = ""
    """The way to act, e.g. ``replace_device``."""
    first: str = ""
    """What to do before anything else."""
    who: str = ""
    """Who acts, e.g. ``hardware on call``."""
    helped: Int = 0
    did_not_help: Int = 0
    """Feedback on the advice as a whole."""
    remedies: list[Remedy] = msgspec.field(default_factory=list)


class Cause(Record, frozen=True, kw_only=True):
    """One cause; causes are listed by share explained, the first is the root."""

    class_: CauseClass = msgspec.field(name="class")
    fault: str | None = None
    suspects: Suspects
    isolation_group: IsolationGroup
    functions: list[str] = msgspec.field(default_factory=list)
    explains: float
    """Share of all waiting that this cause explains, 0..1."""
    confidence: float
    """0..1; below 0.5 nobody is accused."""
    evidence: list[Evidence] = msgspec.field(default_factory=list)
    action: Action


class RequestRef(Record, frozen=True, kw_only=True):
    """Which profile the verdict is about."""

    id: str
    reason: Reason
    steps: tuple[Int, Int]
    """First and last step that the verdict rests on."""


class Waiters(Record, frozen=True, kw_only=True):
    """Who is slow only because they wait."""

    ranks: str = ""
    wait_share: float = 0.0
    """Their mean share of the step spent waiting, 0..1."""


class Impact(Record, frozen=True, kw_only=True):
    """What it costs; ``None`` where it cannot be told."""

    step_ms: float | None = None
    ideal_step_ms: float | None = None
    slowdown: float | None = None
    """S = T / T_ideal."""
    waste: float | None = None
    """1 − 1/S."""
    recovered_by_slowest_3pct: float | None = None
    """M_W (OSDI '25)."""
    recovered_by_last_stage: float | None = None
    """M_S (OSDI '25)."""
    gpu_hours_per_day: float | None = None


class Coverage(Record, frozen=True, kw_only=True):
    """What the verdict was made from."""

    expected: Int
    received: Int
    missing: str = ""
    late: str = ""
    topology_source: str = "unknown"
    notes: list[str] = msgspec.field(default_factory=list)


class Provenance(Record, frozen=True, kw_only=True):
    """How to reproduce it."""

    settings_digest: str
    software: str
    rules: str
    playbook: str = ""
    """Digest of the signatures, actions and remedies."""
    inputs: dict[str, str] = msgspec.field(default_factory=dict)
    """``topic/partition`` → offsets as ranges; ``baselines`` → the request of the healthy profile that was compared with."""


class Verdict(Message, frozen=True, kw_only=True, tag="verdict"):
    """One root-cause verdict. At most 64 KB encoded; beyond, evidence is cut and ``coverage.notes`` says so."""

    verdict_id: str
    job: str
    request: RequestRef
    status: Status
    headline: str
    event_time: str
    """Latest event time of the input, RFC 3339, UTC; empty where files hold no date."""
    causes: list[Cause] = msgspec.field(default_factory=list)
    waiters: Waiters = msgspec.field(default_factory=Waiters)
    impact: Impact = msgspec.field(default_factory=Impact)
    coverage: Coverage
    provenance: Provenance
