"""A scenario: what cluster, what job, what is broken, and what else goes wrong. Every field is checked."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from eroica.schemas.control import Reason

__all__ = [
    "Cluster",
    "Fault",
    "History",
    "Job",
    "Model",
    "Noise",
    "Nuisance",
    "Profile",
    "Scenario",
    "Target",
]

MAX_WORLD = 1_048_576
MAX_STEPS = 200

Positive = Annotated[float, Meta(gt=0, le=1e6)]
NotNegative = Annotated[float, Meta(ge=0, le=1e6)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=100_000)]
Milliseconds = Annotated[int, Meta(ge=1, le=10**9)]
"""Bounds that no machine and no job comes near: times, rates and sizes stay finite whatever is made of them."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a scenario; unknown fields are refused."""


class Cluster(Part, frozen=True, kw_only=True):
    """The machines. Rates are what one rank reaches in a collective."""

    gpus_per_host: Count = 8
    """Ranks on a host."""
    hosts_per_rack: Count = 4
    """Hosts in a rack."""
    device: str = "NVIDIA H100 80GB HBM3"
    """Device model of the ranks."""
    other_devices: dict[str, str] = {}
    """Hosts as ranges → another device model on them."""
    other_speed: dict[str, Positive] = {}
    """Device model → its speed against the first one's."""
    nvlink_gbytes: Positive = 300.0
    """GB/s inside a host."""
    nic_gbytes: Positive = 50.0
    """GB/s of a rank's own NIC."""
    latency_us: NotNegative = 15.0
    """What each transfer takes however little it moves, µs."""


class Model(Part, frozen=True, kw_only=True):
    """The model as a chain of equal layers with its ends. Times are of one micro-batch on one rank."""

    layers_per_stage: Count = 4
    """Layers of a pipeline stage."""
    layer_ms: Positive = 3.0
    """Forward of a layer, ms; the backward takes twice as long."""
    head_layers: NotNegative = 0.5
    """Cost of the loss layer in layers."""
    embedding_layers: NotNegative = 0.1
    """Cost of the embedding in layers."""
    stage_scale: list[Positive] = []
    """Cost of each pipeline stage against the others, where they are meant to differ (vision and language)."""
    parameter_mb: NotNegative = 150.0
    """Parameters of a layer on one rank, MB."""
    activation_mb: NotNegative = 30.0
    """What one stage sends to the next, MB."""
    exchange_mb: NotNegative = 50.0
    """What a layer moves in tensor, context or expert parallel groups, each way, MB."""
    experts: bool = False
    """The layers hold experts: ranks exchange tokens in expert-parallel groups."""
    expert_spread: NotNegative = 0.0
    """Relative spread of the tokens that experts get, new in each step; ordinary routing, no fault."""
    length_spread: NotNegative = 0.0
    """Relative spread of the replicas' sequence lengths, new in each step; ordinary data, no fault."""
    loading_ms: NotNegative = 2.0
    """Reading a step's data, ms."""
    optimizer_ms: NotNegative = 6.0
    """The optimizer's part of a step, ms."""


class Job(Part, frozen=True, kw_only=True):
    """The training job."""

    name: str = "simulated"
    """Its name in messages and verdicts."""
    world: Annotated[int, Meta(ge=1, le=MAX_WORLD)] = 16
    """Number of ranks."""
    framework: str = "ddp"
    """Whose rules lay the ranks out."""
    sizes: dict[str, int | str | bool] = {}
    """As ``eroica topology`` takes them: tp, pp, dp_shard, order …"""
    coordinates: dict[str, list[int]] = {}
    """Of a ``custom`` framework: axis → one number a rank (``pp``, ``dp``, ``tp``, ``cp``, ``ep``, …)."""
    schedule: str = "1f1b"
    """Of the pipeline (docs/schedules.md)."""
    chunks: Count = 1
    """Model chunks a rank, for schedules that interleave them."""
    micro_batches: Count = 1
    """Micro-batches of a step."""
    sharding: Literal[0, 1, 2, 3] = 0
    """0: gradients are all-reduced; 1, 2: reduce-scattered, parameters gathered once; 3: parameters gathered twice."""
    buckets: Count = 4
    """Parts in which the gradients are reduced."""
    model: Model = Model()
    """What is trained."""


class Target(Part, frozen=True, kw_only=True):
    """Where a fault sits; only what the fault needs, the rest is drawn.

    Ranks, hosts and racks are numbers from 0, as ranges in a string (``"2-3,7"``); a single one may be a bare number.
    """

    ranks: str | int = ""
    """Ranks from 0."""
    hosts: str | int = ""
    """Hosts from 0."""
    racks: str | int = ""
    """Racks from 0."""
    stages: list[int] = []
    """Numbers of pipeline stages from 0; negative ones count from the last."""


class Fault(Part, frozen=True, kw_only=True):
    """One fault. Give ``dose`` or ``strength``."""

    fault: str
    """What is broken; ``eroica simulate --list`` says what each is."""
    at: Target = Target()
    """Where; what it leaves open is drawn."""
    dose: Annotated[float, Meta(gt=1, le=100)] | None = None
    """The profiled steps take this many times as long as without the fault; the strength follows."""
    strength: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """In the fault's own unit: by how much the time on the broken resource grows (0.5: half as much again)."""


class Noise(Part, frozen=True, kw_only=True):
    """Relative spreads; defaults are the fit to production timelines (docs/simulator.md)."""

    compute: NotNegative = 0.02
    """Spread of the time of one operation, log-normal."""
    rank: NotNegative = 0.003
    """Spread of a rank against its peers, lasting."""
    transfer: NotNegative = 0.01
    """Spread of the time of a transfer."""
    latency_us: NotNegative = 60.0
    """Median of the log-normal addition to each transfer, µs."""
    latency_sigma: NotNegative = 1.2
    """Its σ, in logarithms."""
    host: NotNegative = 0.15
    """Spread of work on the host."""
    spikes: Share = 0.0005
    """Share of operations that take up to twice as long, for no reason."""
    surges: Share = 0.0001
    """Share of collectives and transfers that take many times as long, on all members, and are nobody's fault."""


class Nuisance(Part, frozen=True, kw_only=True):
    """What goes wrong with the messages."""

    missing: Share = 0.0
    """Share of summaries that never come."""
    duplicate: Share = 0.0
    """Share that comes twice."""
    late: Share = 0.0
    """Share that comes after all others of their class."""
    late_start: Share = 0.0
    """Share of ranks that heard of the request late: the first steps are not in their profile."""
    truncated: Share = 0.0
    """Share of profiles that end early: the last step is not in it."""
    errors: Share = 0.0
    """Share of ranks that could not give a summary, and say so."""
    clock_offset_s: NotNegative = 0.0
    """Clocks of hosts are off by up to so much, s."""


class Profile(Part, frozen=True, kw_only=True):
    """The profile that the messages are about."""

    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)] = 5
    """Steps that are profiled."""
    reason: Reason = "degradation"
    """Why it was asked for."""
    sampling: bool = False
    """Utilisation of NVLink, NIC and SM is sampled finely, as in the paper; else μ and σ come from sizes and durations."""
    receive_waits: bool = False
    """Expert-parallel ranks tell how long they wait for each source, as DeepEP can count it."""
    max_slot_values: Count = 128
    """Executions of a communicator that a summary holds."""
    deadline_ms: Milliseconds = 60_000
    """How long group waits for summaries, ms."""


class History(Part, frozen=True, kw_only=True):
    """Iterations before and after the fault sets in, and whether a healthy profile was taken."""

    before: Annotated[int, Meta(ge=0, le=100_000)] = 200
    """Iterations without the fault."""
    after: Annotated[int, Meta(ge=0, le=100_000)] = 120
    """Iterations with it, at the end of which the job is profiled; detect needs a hundred to be sure by its defaults."""
    baseline: bool = False
    """A healthy profile was taken before the fault set in."""
    batch_ms: Milliseconds = 2_000
    """Iterations that go in one message, ms."""
    ranks_per_shard: Count = 1_024
    """Ranks that one message of iterations is about at most."""


class Scenario(Part, frozen=True, kw_only=True):
    """Everything. The same scenario and seed give the same bytes."""

    name: str = "scenario"
    """In the labels; verdicts speak of the job by ``job.name``."""
    about: str = ""
    """One sentence, for the list."""
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 1
    """The same scenario and seed give the same bytes."""
    start: str = ""
    """Event time of the first announcement, RFC 3339; by default the turn of the year 2026, and the present for a broker, which
    would forget old messages at once."""
    cluster: Cluster = Cluster()
    """The machines."""
    job: Job = Job()
    """The training job."""
    faults: list[Fault] = []
    """What is broken; nothing where it is empty."""
    noise: Noise | Literal["none", "quiet", "production", "noisy"] = "production"
    """How much times vary: a name, or the spreads themselves."""
    nuisance: Nuisance = Nuisance()
    """What goes wrong with the messages."""
    profile: Profile = Profile()
    """The profiled steps."""
    history: History = History()
    """The iterations around them."""
