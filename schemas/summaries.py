"""Topic ``summaries``: a worker's behaviour in the profiled steps. Key job/request/class: a class meets in one partition.

Four kinds share the topic, because what closes a class must be ordered with what fills it: ``Expectation`` opens a class,
``Summary`` / ``StackEvidence`` / ``SummaryError`` fill it, ``CloseClass`` closes it when silence decided so.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from eroica.schemas.base import Int, Message, Micros, Offset, Record
from eroica.schemas.control import ProfileRequest
from eroica.schemas.sketch import Sketch

Category = Literal["compute", "memory", "collective", "python"]
"""Resource class of a function, in falling priority on the critical path. ``python`` covers all host work."""


class FunctionPattern(Record, frozen=True, kw_only=True):
    """What one function did on the critical path ([P] §4: β, μ, σ) and the distribution of its executions.

    ``beta`` in 0..1: share of the window's time that the function holds on the critical path.
    ``mu``, ``sigma``: duration-weighted mean utilisation of its resource, and the mean per-execution standard deviation; 0..1 for
    utilisations, Gb/s for ``resource="bus_gbps"``.
    """

    name: str
    category: Category
    stack: Int = -1
    """Index into ``Summary.stacks`` for Python functions, -1 without a stack."""
    beta: float
    mu: float = 0.0
    sigma: float = 0.0
    resource: str = ""
    """What mu and sigma measure: ``sm_clock``, ``cpu``, ``nvlink``, ``nic``, ``bus_gbps``; empty if nothing was sampled."""
    count: Int = 0
    total_us: Micros = 0.0
    """Sum of execution durations."""
    exclusive_us: Micros = 0.0
    """Time on the critical path, all steps together."""
    mean_us: Micros = 0.0
    p50_us: Micros = 0.0
    p90_us: Micros = 0.0
    p99_us: Micros = 0.0
    max_us: Micros = 0.0
    var_us2: float = 0.0
    sketch: Sketch | None = None
    """Durations in a form that can be merged across steps and ranks; absent for one execution (``max_us`` is it), and where it
    had to go for size."""


class StepRecord(Record, frozen=True, kw_only=True):
    """One profiled step of one rank. Offsets are from the start of the window by the rank's own clock; phases in µs."""

    step: Int
    start_us: Offset
    duration_us: Micros
    phases_us: dict[str, Micros] = msgspec.field(default_factory=dict)
    """``data``, ``forward``, ``backward``, ``optimizer``, ``comm_wait``, ``idle``, ``other``."""


class Slot(Record, frozen=True, kw_only=True):
    """A collective at one place of the step, with each execution in columns (entries in time order).

    ``start_us`` is the offset from the start of the entry's step by the rank's own clock, ``duration_us`` lasts from the member's
    entry to its end: the wait is inside.
    """

    op: str
    """``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``barrier``, ``send``, ``recv``, …"""
    index: Int
    """Place among the communicator's operations in the step, from 0."""
    bytes: Int = 0
    dtype: str = ""
    count: Int = 0
    """Executions in the window; the columns may hold a rule-bound selection of them."""
    total_us: Micros = 0.0
    step: list[Int] = msgspec.field(default_factory=list)
    start_us: list[Offset] = msgspec.field(default_factory=list)
    duration_us: list[Micros] = msgspec.field(default_factory=list)
    seq: list[Int] = msgspec.field(default_factory=list)
    """Sequence numbers where the trace has them, else empty."""
    exposed_us: list[Micros] = msgspec.field(default_factory=list)
    """Part of each duration on the critical path (not hidden behind compute); empty if all of it is."""


class Traffic(Record, frozen=True, kw_only=True):
    """Executions of one kind, size and type on a communicator. Durations hold the wait for the last member."""

    op: str
    up_to_bytes: Int
    """The least power of two that is not below the message's bytes; 0 where the trace does not tell them."""
    dtype: str = ""
    count: Int
    bytes: Int = 0
    """All executions together; of each the larger of input and output per rank."""
    total_us: Micros
    max_us: Micros
    var_us2: float = 0.0
    algorithm_gbps: float = 0.0
    """All bytes over all time, Gb/s."""
    bus_gbps: float = 0.0
    """That times nccl-tests' factor for the kind and the number of members; 0 where that is unknown."""
    best_bus_gbps: float = 0.0
    """Of the fastest execution: the least wait."""
    sketch: Sketch | None = None
    """Durations, µs; absent for one execution."""


class Communicator(Record, frozen=True, kw_only=True):
    """A process group's traffic as one member saw it."""

    name: str
    kind: str = ""
    backend: str = ""
    ranks: str = ""
    """Members as ranges; empty if the trace does not tell."""
    size: Int = 0
    slots: list[Slot] = msgspec.field(default_factory=list)
    traffic: list[Traffic] = msgspec.field(default_factory=list)
    """What all its executions add up to, whichever slots are kept."""


class Pause(Record, frozen=True, kw_only=True):
    """Software pauses of one kind in the window."""

    what: str
    """``gc``, ``alloc``, ``loader``, ``compile``, ``checkpoint``, ``sync``."""
    count: Int
    total_us: Micros
    max_us: Micros


MAX_RECEIVE_GROUPS, MAX_SOURCES = 8, 1_024
"""Exchanges of a summary, and sources of one: what is more is refused where it is written and where it is read."""


class ReceiveWaits(Record, frozen=True, kw_only=True):
    """How long this rank waited for each source of an expert-parallel exchange, as the exchange's own kernels count it.

    Columns by source, ascending rank. A figure may stand for several receives: only ratios within a group are compared.
    """

    group: str
    """Name that the program gives the exchange, the same on all its members."""
    sources: str
    """Ranks as ranges."""
    count: Int
    """Reports in the window, one a step or one an exchange."""
    total_us: list[Micros] = msgspec.field(default_factory=list)
    max_us: list[Micros] = msgspec.field(default_factory=list)
    """Of the longest report."""


class Metric(Record, frozen=True, kw_only=True):
    """One hardware or host reading over the window."""

    name: str
    """e.g. ``sm_clock``, ``cpu_steal``, ``mem_pressure``, ``nic_rx``, ``gpu_foreign_processes``."""
    unit: str
    mean: float
    min: float | None = None
    max: float | None = None
    device: str = ""


class Identity(Record, frozen=True, kw_only=True):
    """Whose summary it is."""

    job: str
    run_id: str
    request: str
    cls: str
    """Comparison class, as the request assigns it."""
    rank: Int
    world_size: Int
    host: str
    local_rank: Int = -1
    pid: Int = 0
    device: str = ""
    coords: dict[str, Int] = msgspec.field(default_factory=dict)


class Summary(Message, frozen=True, kw_only=True, tag="summary"):
    """One worker's behaviour summary: a few KB in place of a trace.

    One per (request, rank); the first that arrives counts, repetitions change nothing. Limit: 100 KB encoded.
    """

    who: Identity
    first_step: Int
    last_step: Int
    window_us: Micros
    """Length of the profiled window, µs."""
    late_by_steps: Int = 0
    """How many steps after the asked-for one the profile started."""
    ended_at_us: Int
    """Event time of the window's end, µs since the epoch by the rank's host."""
    steps: list[StepRecord] = msgspec.field(default_factory=list)
    functions: list[FunctionPattern] = msgspec.field(default_factory=list)
    """Falling beta."""
    stacks: list[str] = msgspec.field(default_factory=list)
    """Call stacks, outermost first, frames joined by ``;``, each stored once."""
    communicators: list[Communicator] = msgspec.field(default_factory=list)
    pauses: list[Pause] = msgspec.field(default_factory=list)
    receive_waits: list[ReceiveWaits] = msgspec.field(default_factory=list)
    """Where the program hands them over; no trace holds them."""
    metrics: list[Metric] = msgspec.field(default_factory=list)
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    """Window figures: overlap_share, launch_delay_us, void_share, blocked_ms (what profiling cost) …"""
    lost: dict[str, Int] = msgspec.field(default_factory=dict)
    """What is missing and how much: functions_cut, events_dropped, events_repaired, stacks_cut …"""
    notes: list[str] = msgspec.field(default_factory=list)


class SummaryError(Message, frozen=True, kw_only=True, tag="summary_error"):
    """A worker that cannot give a summary says so: it counts as heard, not as received."""

    who: Identity
    error: str
    ended_at_us: Int


class StackEvidence(Message, frozen=True, kw_only=True, tag="stacks"):
    """Stacks of all processes of a stuck worker, taken from outside (answer to ``mode="stacks"``)."""

    who: Identity
    ended_at_us: Int
    last_step: Int
    idle_us: Int
    last_event: str = ""
    threads: list[str] = msgspec.field(default_factory=list)
    """One entry a thread: ``pid/thread name/state: frames``, frames outermost first joined by ``;``."""
    error: str = ""
    """Why stacks are missing (no permission, no py-spy, process gone)."""


class Expectation(Message, frozen=True, kw_only=True, tag="expectation"):
    """Opens a class of a request: who is expected. Written by group from ``control``; repetitions change nothing."""

    cls: str
    ranks: str
    classes: list[str]
    """All classes of the request, ascending: lets the localizer know when it has heard of every one."""
    request: ProfileRequest


class CloseClass(Message, frozen=True, kw_only=True, tag="close_class"):
    """Silence, written down: group's shell decided that nothing more will come, so that a replay needs no clock."""

    job: str
    request: str
    cls: str
    closed_by: Literal["deadline", "idle"]


SummaryTopicMessage = Summary | SummaryError | StackEvidence | Expectation | CloseClass
