"""Topic ``groups``: the summaries of one comparison class in columns, chunked below the message limit. Key job/request.

COO layout: a *row* is a worker of the chunk (index into ``workers``), every table is a set of equally long columns with a
row column in front. The localizer stacks chunks without touching single summaries.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from eroica.schemas.base import Int, Message, Record
from eroica.schemas.control import ProfileRequest

ClosedBy = Literal["complete", "deadline", "idle"]


class PatternColumns(Record, frozen=True, kw_only=True):
    """One entry per (worker, function)."""

    row: list[Int] = msgspec.field(default_factory=list)
    function: list[Int] = msgspec.field(default_factory=list)
    """Index into ``GroupChunk.functions``."""
    beta: list[float] = msgspec.field(default_factory=list)
    mu: list[float] = msgspec.field(default_factory=list)
    sigma: list[float] = msgspec.field(default_factory=list)
    count: list[Int] = msgspec.field(default_factory=list)
    total_us: list[float] = msgspec.field(default_factory=list)
    exclusive_us: list[float] = msgspec.field(default_factory=list)
    p50_us: list[float] = msgspec.field(default_factory=list)
    p90_us: list[float] = msgspec.field(default_factory=list)
    p99_us: list[float] = msgspec.field(default_factory=list)
    max_us: list[float] = msgspec.field(default_factory=list)
    var_us2: list[float] = msgspec.field(default_factory=list)


class FunctionName(Record, frozen=True, kw_only=True):
    """Identity of a function: two functions are the same iff all fields are equal."""

    name: str
    category: str
    stack: str = ""
    resource: str = ""


class StepColumns(Record, frozen=True, kw_only=True):
    """One entry per (worker, step). ``phases_us`` maps a phase to its column; a missing phase is 0."""

    row: list[Int] = msgspec.field(default_factory=list)
    step: list[Int] = msgspec.field(default_factory=list)
    start_us: list[float] = msgspec.field(default_factory=list)
    duration_us: list[float] = msgspec.field(default_factory=list)
    phases_us: dict[str, list[float]] = msgspec.field(default_factory=dict)


class CommunicatorName(Record, frozen=True, kw_only=True):
    """Identity of a communicator: same name, kind and members."""

    name: str
    kind: str = ""
    backend: str = ""
    ranks: str = ""
    size: Int = 0


class SlotName(Record, frozen=True, kw_only=True):
    """Identity of a slot: a place in the step of a communicator."""

    communicator: Int
    op: str
    index: Int
    bytes: Int = 0
    dtype: str = ""


class ExecutionColumns(Record, frozen=True, kw_only=True):
    """One entry per (worker, execution of a collective); times as in ``schemas.summaries.Slot``."""

    row: list[Int] = msgspec.field(default_factory=list)
    slot: list[Int] = msgspec.field(default_factory=list)
    step: list[Int] = msgspec.field(default_factory=list)
    start_us: list[float] = msgspec.field(default_factory=list)
    duration_us: list[float] = msgspec.field(default_factory=list)
    exposed_us: list[float] = msgspec.field(default_factory=list)
    """Part of the duration on the critical path."""
    occurrence: list[Int] = msgspec.field(default_factory=list)
    """Which execution of the slot within its step, from 0 (or the sequence number where the trace has one): members match by
    (slot, step, occurrence)."""


class PauseColumns(Record, frozen=True, kw_only=True):
    """One entry per (worker, kind of pause)."""

    row: list[Int] = msgspec.field(default_factory=list)
    what: list[str] = msgspec.field(default_factory=list)
    count: list[Int] = msgspec.field(default_factory=list)
    total_us: list[float] = msgspec.field(default_factory=list)
    max_us: list[float] = msgspec.field(default_factory=list)


class ReceiveGroup(Record, frozen=True, kw_only=True):
    """Identity of an exchange: same name and sources."""

    name: str
    sources: str
    """Ranks as ranges."""


class ReceiveColumns(Record, frozen=True, kw_only=True):
    """One entry per (worker, exchange); the lists inside hold a figure per source, ascending rank."""

    row: list[Int] = msgspec.field(default_factory=list)
    group: list[Int] = msgspec.field(default_factory=list)
    """Index into ``GroupChunk.receive_groups``."""
    count: list[Int] = msgspec.field(default_factory=list)
    total_us: list[list[float]] = msgspec.field(default_factory=list)
    max_us: list[list[float]] = msgspec.field(default_factory=list)


class MetricColumns(Record, frozen=True, kw_only=True):
    """One entry per (worker, metric); ``name`` carries the unit as ``name[unit]``."""

    row: list[Int] = msgspec.field(default_factory=list)
    name: list[str] = msgspec.field(default_factory=list)
    mean: list[float] = msgspec.field(default_factory=list)


class Worker(Record, frozen=True, kw_only=True):
    """Identity of a row, and what it could not tell."""

    rank: Int
    host: str
    local_rank: Int = -1
    device: str = ""
    coords: dict[str, Int] = msgspec.field(default_factory=dict)
    first_step: Int
    last_step: Int
    window_us: float
    ended_at_us: Int = 0
    """Event time of the window's end by the rank's host, µs since the epoch."""
    late_by_steps: Int = 0
    lost: dict[str, Int] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)
    figures: dict[str, float] = msgspec.field(default_factory=dict)


class StackRow(Record, frozen=True, kw_only=True):
    """Stack evidence of one worker of a blocked job."""

    rank: Int
    host: str
    last_step: Int
    idle_us: Int
    ended_at_us: Int = 0
    last_event: str = ""
    threads: list[str] = msgspec.field(default_factory=list)
    error: str = ""


class GroupChunk(Message, frozen=True, kw_only=True, tag="group"):
    """A part of one closed class of a request.

    A class is emitted once, all chunks ``0..chunks-1`` in order and with equal coverage fields; after a crash it may be emitted
    again with the same content (readers keep the first of each (request, cls, chunk)). Content is a function of the class's
    partition of ``summaries`` alone.
    """

    job: str
    run_id: str
    request: ProfileRequest
    cls: str
    classes: list[str]
    """All classes of the request, ascending."""
    chunk: Int
    chunks: Int
    closed_by: ClosedBy
    expected: str
    """Ranks expected in the class, as ranges (coverage fields are of the class, not of the chunk)."""
    received: str
    late: str = ""
    """Ranks whose profile started late."""
    errors: dict[str, str] = msgspec.field(default_factory=dict)
    """Rank → why it could not give a summary."""
    inputs: dict[str, str] = msgspec.field(default_factory=dict)
    """``topic/partition`` → offsets as ranges, of what the class was made from."""
    workers: list[Worker] = msgspec.field(default_factory=list)
    functions: list[FunctionName] = msgspec.field(default_factory=list)
    patterns: PatternColumns = msgspec.field(default_factory=PatternColumns)
    steps: StepColumns = msgspec.field(default_factory=StepColumns)
    communicators: list[CommunicatorName] = msgspec.field(default_factory=list)
    slots: list[SlotName] = msgspec.field(default_factory=list)
    executions: ExecutionColumns = msgspec.field(default_factory=ExecutionColumns)
    pauses: PauseColumns = msgspec.field(default_factory=PauseColumns)
    receive_groups: list[ReceiveGroup] = msgspec.field(default_factory=list)
    receive_waits: ReceiveColumns = msgspec.field(default_factory=ReceiveColumns)
    metrics: MetricColumns = msgspec.field(default_factory=MetricColumns)
    stacks: list[StackRow] = msgspec.field(default_factory=list)
