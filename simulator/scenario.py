"""A scenario: what cluster, what job, what is broken, and what else goes wrong. Read from YAML, checked field by field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from eroica.schemas.control import Reason
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.simulator.unknown import assigned_at, unknown_field
from eroica.simulator.yamlfile import line_of, read_yaml

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
    "load_scenario",
    "parse_scenario",
]

MAX_SCENARIO_BYTES = 1_000_000
MAX_WORLD = 1_048_576
MAX_STEPS = 200

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a scenario; unknown fields are refused."""


class Cluster(Part, frozen=True, kw_only=True):
    """The machines. Rates are what one rank reaches in a collective."""

    gpus_per_host: Count = 8
    hosts_per_rack: Count = 4
    device: str = "NVIDIA H100 80GB HBM3"
    other_devices: dict[str, str] = {}
    """Hosts as ranges → another device model on them."""
    other_speed: dict[str, Positive] = {}
    """Device model → its speed against the first one's."""
    nvlink_gbytes: Positive = 300.0
    """GB/s inside a host."""
    nic_gbytes: Positive = 50.0
    """GB/s of a rank's own NIC."""
    latency_us: NotNegative = 15.0


class Model(Part, frozen=True, kw_only=True):
    """The model as a chain of equal layers with its ends. Times are of one micro-batch on one rank."""

    layers_per_stage: Count = 4
    layer_ms: Positive = 3.0
    """Forward; the backward takes twice as long."""
    head_layers: NotNegative = 0.5
    """Cost of the loss layer in layers."""
    embedding_layers: NotNegative = 0.1
    stage_scale: list[Positive] = []
    """Cost of each pipeline stage against the others, where they are meant to differ (vision and language)."""
    parameter_mb: NotNegative = 150.0
    """Of a layer on one rank."""
    activation_mb: NotNegative = 30.0
    exchange_mb: NotNegative = 50.0
    """What a layer moves in tensor, context or expert parallel groups, each way."""
    experts: bool = False
    expert_spread: NotNegative = 0.0
    """Relative spread of the tokens that experts get, new in each step; ordinary routing, no fault."""
    length_spread: NotNegative = 0.0
    """Relative spread of the replicas' sequence lengths, new in each step; ordinary data, no fault."""
    loading_ms: NotNegative = 2.0
    optimizer_ms: NotNegative = 6.0


class Job(Part, frozen=True, kw_only=True):
    """The training job."""

    name: str = "simulated"
    world: Annotated[int, Meta(ge=1, le=MAX_WORLD)] = 16
    framework: str = "ddp"
    sizes: dict[str, int | str | bool] = {}
    """As ``eroica topology`` takes them: tp, pp, dp_shard, order …"""
    coordinates: dict[str, list[int]] = {}
    """Of a ``custom`` framework: axis → one number a rank (``pp``, ``dp``, ``tp``, ``cp``, ``ep``, …)."""
    schedule: str = "1f1b"
    chunks: Count = 1
    micro_batches: Count = 1
    sharding: Literal[0, 1, 2, 3] = 0
    """0: gradients are all-reduced; 1, 2: reduce-scattered, parameters gathered once; 3: parameters gathered twice."""
    buckets: Count = 4
    model: Model = Model()


class Target(Part, frozen=True, kw_only=True):
    """Where a fault sits; only what the fault needs, the rest is drawn.

    Ranks, hosts and racks are numbers from 0, as ranges in a string (``"2-3,7"``); a single one may be a bare number.
    """

    ranks: str | int = ""
    hosts: str | int = ""
    racks: str | int = ""
    stages: list[int] = []
    """Numbers of pipeline stages from 0; negative ones count from the last."""


class Fault(Part, frozen=True, kw_only=True):
    """One fault. Give ``dose`` or ``strength``."""

    fault: str
    at: Target = Target()
    dose: Annotated[float, Meta(gt=1, le=100)] | None = None
    """The profiled steps take this many times as long as without the fault; the strength follows."""
    strength: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """In the fault's own unit: by how much the time on the broken resource grows (0.5: half as much again)."""


class Noise(Part, frozen=True, kw_only=True):
    """Relative spreads; defaults are the fit to production timelines (docs/simulator.md)."""

    compute: NotNegative = 0.02
    """Of one operation, log-normal."""
    rank: NotNegative = 0.003
    """Of a rank against its peers, lasting."""
    transfer: NotNegative = 0.01
    latency_us: NotNegative = 60.0
    """Median of the log-normal addition to each transfer."""
    latency_sigma: NotNegative = 1.2
    host: NotNegative = 0.15
    """Of work on the host."""
    spikes: Share = 0.0005
    """Share of operations that take up to twice as long, for no reason."""
    surges: Share = 0.0001
    """Share of collectives and transfers that take many times as long, on all members, and are nobody's fault."""


class Nuisance(Part, frozen=True, kw_only=True):
    """What goes wrong with the messages."""

    missing: Share = 0.0
    duplicate: Share = 0.0
    late: Share = 0.0
    """Come after all others of their class."""
    late_start: Share = 0.0
    """Heard of the request late: the first steps are not in their profile."""
    truncated: Share = 0.0
    """The profile ends early: the last step is not in it."""
    errors: Share = 0.0
    """Could not give a summary, and say so."""
    clock_offset_s: NotNegative = 0.0
    """Clocks of hosts are off by up to so much."""


class Profile(Part, frozen=True, kw_only=True):
    """The profile that the messages are about."""

    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)] = 5
    reason: Reason = "degradation"
    sampling: bool = False
    """Utilisation of NVLink, NIC and SM is sampled finely, as in the paper; else μ and σ come from sizes and durations."""
    receive_waits: bool = False
    """Expert-parallel ranks tell how long they wait for each source, as DeepEP can count it."""
    max_slot_values: Count = 128
    """Executions of a communicator that a summary holds."""
    deadline_ms: Count = 60_000


class History(Part, frozen=True, kw_only=True):
    """Iterations before and after the fault sets in, and whether a healthy profile was taken."""

    before: Annotated[int, Meta(ge=0, le=100_000)] = 200
    """Iterations without the fault."""
    after: Annotated[int, Meta(ge=0, le=100_000)] = 120
    """Iterations with it, at the end of which the job is profiled; detect needs a hundred to be sure by its defaults."""
    baseline: bool = False
    batch_ms: Count = 2_000
    ranks_per_shard: Count = 1_024


class Scenario(Part, frozen=True, kw_only=True):
    """Everything. The same scenario and seed give the same bytes."""

    name: str = "scenario"
    """In the labels, and part of the run's id; verdicts speak of the job by ``job.name``."""
    about: str = ""
    seed: int = 1
    start: str = ""
    """Event time of the first announcement, RFC 3339; by default the turn of the year 2026, and the present for a broker, which
    would forget old messages at once."""
    cluster: Cluster = Cluster()
    job: Job = Job()
    faults: list[Fault] = []
    noise: Noise | Literal["none", "quiet", "production", "noisy"] = "production"
    nuisance: Nuisance = Nuisance()
    profile: Profile = Profile()
    history: History = History()


def load_scenario(path: Path, assignments: Sequence[str] = ()) -> Scenario:
    """Read a scenario file.

    :param assignments: ``a.b=value`` over the file's own, the value in YAML.
    :raises UsageError: the file is not there, or an assignment is none.
    :raises InvalidInput: not YAML, or not a scenario; names the field.
    """
    try:
        if path.stat().st_size > MAX_SCENARIO_BYTES:
            raise InvalidInput(f"the file is over {MAX_SCENARIO_BYTES} bytes", where=str(path))
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the scenario cannot be read ({error.strerror})", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput("the file is not UTF-8 text", where=str(path)) from error
    return parse_scenario(text, assignments, where=str(path))


def parse_scenario(text: str, assignments: Sequence[str] = (), where: str = "scenario") -> Scenario:
    """Like :func:`load_scenario` from the text."""
    tree = read_yaml(text, where)
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise InvalidInput("a scenario is a table of fields", where=where, do="start from one of: eroica simulate --list")
    for assignment in assignments:
        _assign(tree, assignment)
    try:
        return msgspec.convert(tree, Scenario, strict=False)
    except msgspec.ValidationError as error:
        if (unknown := unknown_field(str(error), assignments, Scenario)) is not None:
            raise unknown from error
        line = 0 if assignments else line_of(text, str(error))
        assigned = assigned_at(str(error), assignments)
        place = f"--set {assigned[:100]}" if assigned else f"{where}, line {line}" if line else where
        raise InvalidInput(str(error), where=place, do="the fields are described in docs/simulator.md") from error


def _assign(tree: dict[str, Any], assignment: str) -> None:
    path, equals, value = assignment.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise UsageError(f"{assignment!r} is not field.field=value", where="--set", do="e.g. --set job.world=64")
    at: Any = tree
    for depth, name in enumerate(names):
        last = depth == len(names) - 1
        if isinstance(at, list):
            if not name.isdigit() or int(name) >= len(at):
                raise UsageError(f"there is no entry {name!r}", where=assignment, do=f"the list has {len(at)} entries")
            key: Any = int(name)
        elif isinstance(at, dict):
            key = name
        else:
            raise UsageError(f"{'.'.join(names[:depth])} is a value, not a table", where=assignment)
        if last:
            at[key] = read_yaml(value, assignment)
        else:
            if isinstance(at, dict):
                at.setdefault(key, {})
            at = at[key]
