"""A scenario's job as a step graph on its cluster: layout, hosts, operations, and what each operation talks to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from eroica.schemas.errors import TopologyError, UsageError
from eroica.schemas.ranks import RankArray
from eroica.schemas.wording import say_count
from eroica.simulator.places import numbers
from eroica.simulator.problem import ScenarioError, blaming, unknown_word
from eroica.simulator.scenario import Cluster, Job, Scenario
from eroica.topology import Groups, RankLayout, build_layout, comparison_classes
from eroica.topology.hosts import Hosts
from eroica.topology.lanes import Lanes
from eroica.topology.presets import FRAMEWORKS, custom
from eroica.topology.schedules import SCHEDULES
from eroica.topology.sources import from_layout, reconcile
from eroica.topology.step import LOADING, REPLICAS, WORLD, Step, build_step
from eroica.topology.strategy import Block, Exchange, ExchangeKind, LinkCosts, Plan

__all__ = ["COMPUTE", "HOST_KINDS", "Traffic", "Workload", "build_workload"]

COMPUTE = ("forward-compute", "backward-compute", "backward-input-compute", "backward-weight-compute")
HOST_KINDS = (LOADING, *COMPUTE, "optimizer")
"""Operations that take a rank's own time; all others are traffic."""
CLIP_BYTES = 4
"""The norm of the gradients, one float."""
MB = 1e6
_SHARING = {"megatron": "dp", "torchtitan": "fsdp", "deepspeed": "data", "ddp": "dp", "fsdp": "dp_shard", "hsdp": "dp_shard"}
_TENSOR = {"deepspeed": "model"}
_OPS = {"ring": "all_gather"}

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an operation of the graph moves."""

    axis: str
    """Kind of group, ``pp`` for a send or receive, ``world``."""
    op: str
    bytes: int
    peer_stage: int = -1
    """The other pipeline rank of a send or receive."""
    beside: bool = False
    """It runs beside the rank's compute, so only what compute does not hide counts."""


@dataclass(frozen=True)
class Workload:
    """A job on a cluster. Arrays over ranks have shape (world,)."""

    scenario: Scenario
    layout: RankLayout
    hosts: Hosts
    plan: Plan
    step: Step
    traffic: dict[int, Traffic]
    """Operation → what it moves; work has none."""
    groups: dict[str, Groups]
    """Axis of the traffic (``pp`` apart) → its groups."""
    devices: tuple[str, ...]
    speed: npt.NDArray[np.float64]
    """Speed of a rank's device against the first model's."""
    classes: dict[str, RankArray]

    @cached_property
    def world(self) -> int:
        """Number of ranks."""
        return self.layout.world

    @cached_property
    def rank_of(self) -> RankArray:
        """Shape (stages, lanes)."""
        return self.step.lanes.ranks[:, :, 0]

    @cached_property
    def stage_of(self) -> RankArray:
        """Pipeline rank of each rank."""
        out = np.empty(self.world, dtype=np.int64)
        out[self.rank_of] = np.arange(self.rank_of.shape[0])[:, None]
        return out

    @cached_property
    def lane_of(self) -> RankArray:
        """Lane of each rank."""
        out = np.empty(self.world, dtype=np.int64)
        out[self.rank_of] = np.arange(self.rank_of.shape[1])[None, :]
        return out

    @cached_property
    def rack_of(self) -> RankArray:
        """Rack of each rank."""
        return np.asarray(self.hosts.host_of // self.scenario.cluster.hosts_per_rack)

    @cached_property
    def crossing(self) -> dict[str, BoolArray]:
        """Axis → whether each rank's group sits on more than one host."""
        out = {}
        for axis, groups in self.groups.items():
            index = groups.index(self.world)
            out[axis] = np.where(index >= 0, self.hosts.crosses(groups)[index], False)
        return out

    @cached_property
    def group_of(self) -> dict[str, RankArray]:
        """Axis → group number of each rank."""
        return {axis: groups.index(self.world) for axis, groups in self.groups.items()}

    def host_name(self, rank: int) -> str:
        """Name of the host of *rank*."""
        return self.hosts.names[int(self.hosts.host_of[rank])]


def build_workload(scenario: Scenario) -> Workload:
    """Lay *scenario* out.

    :raises ScenarioError: an unknown framework, schedule or option, sizes that do not fit, devices on hosts that are not there,
        stage scales of another number.
    """
    job, cluster = scenario.job, scenario.cluster
    layout = _layout(job)
    digits = len(str(-(-job.world // cluster.gpus_per_host) - 1))
    hosts = Hosts.consecutive(job.world, cluster.gpus_per_host, name=f"node-{{:0{digits}d}}")
    devices, speed = _devices(cluster, hosts)
    plan = _plan(job, layout)
    with blaming("job.coordinates" if job.framework == "custom" else "job.sizes"):
        lanes = Lanes.of(layout)
    shared = {plan.sharing.axis, plan.sharing.replicas} - {""} if plan.sharing else set()
    axes = sorted({e.axis for b in plan.blocks for e in b.exchanges} | shared)
    groups = {axis: layout.groups(_kind(layout, axis)) for axis in axes}
    rate = {
        axis: (cluster.nic_gbytes if bool(hosts.crosses(g).any()) else cluster.nvlink_gbytes) * 1e3 for axis, g in groups.items()
    }
    rate["pp"] = (cluster.nic_gbytes if len(hosts.names) > 1 else cluster.nvlink_gbytes) * 1e3
    step = build_step(plan, lanes, LinkCosts(cluster.latency_us, rate))
    groups[WORLD] = Groups.uniform(np.arange(layout.world, dtype=np.int64)[None, :])
    placement = reconcile(layout.world, [from_layout(layout)])
    return Workload(
        scenario=scenario,
        layout=layout,
        hosts=hosts,
        plan=plan,
        step=step,
        traffic=_traffic(plan, step, layout),
        groups=groups,
        devices=tuple(devices),
        speed=speed,
        classes=comparison_classes(placement, tuple(devices)),
    )


def _layout(job: Job) -> RankLayout:
    """Where the ranks sit.

    :raises ScenarioError: an unknown framework, sizes or coordinates that contradict each other.
    """
    if job.framework not in (*FRAMEWORKS, "custom"):
        raise unknown_word(job.framework, "framework", "job.framework", (*FRAMEWORKS, "custom"))
    if job.framework != "custom":
        # Of DeepSpeed's experts alone no pipeline can be built; its other groups belong to them.
        framework = "deepspeed" if job.framework == "deepspeed-moe" else job.framework
        with blaming("job.sizes", "job.world", "job.framework"):
            return build_layout(framework, job.world, job.sizes)
    if job.sizes:
        raise ScenarioError("a custom job has coordinates in place of sizes", "job.sizes", "job.framework")
    with blaming("job.coordinates", "job.framework"):
        layout = custom({axis: np.array(values, dtype=np.int64) for axis, values in job.coordinates.items()})
    if layout.world != job.world:
        raise ScenarioError(
            f"the coordinates place {layout.world} ranks, not {job.world}", "job.coordinates", "job.world", do="make them agree"
        )
    return layout


def _devices(cluster: Cluster, hosts: Hosts) -> tuple[list[str], npt.NDArray[np.float64]]:
    model_of = np.zeros(len(hosts.names), dtype=np.int64)
    models = [cluster.device]
    for where, model in cluster.other_devices.items():
        which = numbers(where, len(hosts.names), "host", "cluster.other_devices")
        models.append(model)
        model_of[which] = len(models) - 1
    speed = np.array([cluster.other_speed.get(m, 1.0) for m in models])[model_of][hosts.host_of]
    return [models[i] for i in model_of[hosts.host_of].tolist()], speed


def _plan(job: Job, layout: RankLayout) -> Plan:
    model = job.model
    stages = layout.pipeline_size * (2 if job.schedule in ("zbv", "dualpipe-v") else job.chunks)
    scale = model.stage_scale or [1.0]
    if len(scale) not in (1, stages):
        raise ScenarioError(
            f"{say_count(len(scale), 'scale')} for {say_count(stages, 'stage')}",
            "job.model.stage_scale",
            "job.sizes",
            do="give one a stage, or none",
        )
    count = model.layers_per_stage
    exchanges = _model_exchanges(job, layout)
    blocks: list[Block] = []
    for stage in range(stages):
        factor = scale[stage % len(scale)]
        for layer in range(count):
            cost = model.layer_ms * 1e3 * factor
            first, last = stage == layer == 0, stage == stages - 1 and layer == count - 1
            cost += model.layer_ms * 1e3 * (model.embedding_layers * first + model.head_layers * last)
            blocks.append(
                Block(
                    f"layer {len(blocks)}",
                    cost,
                    parameter_bytes=model.parameter_mb * MB,
                    activation_bytes=model.activation_mb * MB,
                    exchanges=exchanges,
                )
            )
    cuts = [count * s for s in range(1, stages)]
    plan = Plan.of(blocks, optimizer=model.optimizer_ms * 1e3, loading=model.loading_ms * 1e3)
    if job.schedule not in SCHEDULES:
        raise unknown_word(job.schedule, "schedule", "job.schedule", tuple(SCHEDULES))
    with blaming("job.schedule", "job.chunks", "job.micro_batches", "job.sizes"):
        plan = plan.place(layout.pipeline_size, job.chunks, cuts).split(job.micro_batches)
        plan = plan.order(job.schedule if layout.pipeline_size > 1 or job.schedule != "1f1b" else "gpipe")
    axis = _sharing_axis(job, layout)
    if not axis:
        return plan
    replicas = "dp_replicate" if axis != "dp_replicate" and _size(layout, "dp_replicate") > 1 else ""
    if job.sharding == 0:
        return plan.replicate(axis, job.buckets, replicas)
    return plan.shard(axis, job.sharding, job.buckets, replicas)


def _model_exchanges(job: Job, layout: RankLayout) -> tuple[Exchange, ...]:
    size = job.model.exchange_mb * MB
    wanted: list[tuple[ExchangeKind, str]] = [("all-reduce", _TENSOR.get(layout.framework, "tp")), ("ring", "cp")]
    if job.model.experts:
        wanted.append(("all-to-all", "ep"))
    return tuple(Exchange(kind, axis, size) for kind, axis in wanted if _size(layout, axis) > 1)


def _sharing_axis(job: Job, layout: RankLayout) -> str:
    if job.framework == "custom":
        return next((a for a in ("dp_shard", "dp", "data", "dp_replicate") if _size(layout, a) > 1), "")
    axis = _SHARING[layout.framework]
    if layout.framework == "megatron" and _size(layout, "cp") > 1:
        axis = "dp-cp"
    if _size(layout, axis) < 2 and layout.framework in ("torchtitan", "hsdp"):
        axis = "dp_replicate"
    return axis if _size(layout, axis) > 1 else ""


def _kind(layout: RankLayout, axis: str) -> str:
    names = [k for k in layout.kinds if k.split(".")[-1] == axis]
    if not names:
        raise TopologyError(f"the layout has no group kind {axis!r}", do=f"it has {', '.join(layout.kinds)}")
    return names[0]


def _size(layout: RankLayout, axis: str) -> int:
    names = [k for k in layout.kinds if k.split(".")[-1] == axis]
    return layout.groups(names[0]).largest() if names else 1


def _traffic(plan: Plan, step: Step, layout: RankLayout) -> dict[int, Traffic]:
    """What each operation moves, read off its kind, stage and chunk."""
    sharing = plan.sharing
    stages, ranks = plan.stages(), step.lanes.stages
    out: dict[int, Traffic] = {}
    for number, op in enumerate(step.graph.ops):
        if op.kind in HOST_KINDS:
            continue
        if op.kind == "optimizer-clip-main-grad":
            out[number] = Traffic(WORLD, "all_reduce", CLIP_BYTES)
            continue
        stage = op.stage + op.chunk * ranks
        if layout.placement == "v" or plan.schedule in ("zbv", "dualpipe-v"):
            stage = op.stage if op.chunk == 0 else 2 * ranks - 1 - op.stage
        blocks = stages[stage]
        if op.kind.startswith(("grads-", "params-")):
            if sharing is None:
                raise UsageError(f"{op.kind!r} without anything shared")
            size = sum(b.parameter_bytes for b in blocks) / (sharing.buckets if op.kind.startswith("grads-") else 1)
            if op.kind == REPLICAS:
                part = size / _size(layout, sharing.axis) if sharing.level else size
                out[number] = Traffic(sharing.replicas, "all_reduce", int(part), beside=True)
            else:
                out[number] = Traffic(sharing.axis, op.kind.split("-", 1)[1].replace("-", "_"), int(size), beside=True)
        elif op.kind.endswith(("-send", "-recv")):
            way, side = op.kind.split("-")
            onward = (way == "forward") == (side == "send")
            peer = stage + (1 if onward else -1)
            at = peer % ranks if plan.schedule not in ("zbv", "dualpipe-v") else (peer if peer < ranks else 2 * ranks - 1 - peer)
            out[number] = Traffic("pp", side, int(blocks[-1].activation_bytes), peer_stage=at, beside=True)
        else:
            _, axis, kind = op.kind.split("-", 2)
            name, exchange = _exchange(plan, axis, kind)
            size = sum(e.size_bytes for b in blocks for e in b.exchanges if (e.axis, e.kind) == (name, exchange))
            out[number] = Traffic(name, _OPS.get(exchange, exchange.replace("-", "_")), int(size), beside=exchange == "ring")
    return out


def _exchange(plan: Plan, axis: str, kind: str) -> tuple[str, str]:
    """The axis and kind of an exchange by its operation's name, in which both may hold dashes."""
    text = f"{axis}-{kind}"
    for block in plan.blocks:
        for e in block.exchanges:
            if text == f"{e.axis}-{e.kind}":
                return e.axis, e.kind
    raise UsageError(f"{text!r} is no exchange of the plan")
