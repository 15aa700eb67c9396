"""Faults by name: where they sit, what class of cause they are, and what they do at a given strength.

One row a fault; ``docs/simulator.md`` lists them. A strength is the relative growth of the time on what is broken, or a pause in
nominal steps. A dose (growth of the whole step) is turned into a strength by ``calibrate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eroica.schemas.verdicts import CauseClass
from eroica.simulator.effects import BoolArray, Effects, FloatArray, LinkSlowdown, Pauses, Reading
from eroica.simulator.functions import Resource
from eroica.simulator.problem import unknown_word
from eroica.simulator.workload import Workload

__all__ = ["FAULTS", "Context", "FaultKind", "fault_kind"]

TargetKind = Literal["rank", "few", "host", "pair", "hosts", "stage", "all"]
SM_CLOCK_MHZ = 1980.0
_STACK = "train.py:<module>;train.py:main"


@dataclass(frozen=True)
class Context:
    """Where a fault is made: the job, who is hit, how many steps, and the fault's own random numbers."""

    work: Workload
    ranks: BoolArray
    other: BoolArray
    """The second end of a pair."""
    steps: int
    nominal_us: float
    """Length of a step without faults."""
    seed: tuple[int, ...]

    def rng(self) -> np.random.Generator:
        """Fresh numbers, the same at every call, so that a fault of another strength strikes at the same places."""
        return np.random.default_rng(np.random.SeedSequence(self.seed))

    def none(self) -> Effects:
        """No effects yet."""
        return Effects(self.work.world, self.steps)

    def on(self, growth: FloatArray | float) -> FloatArray:
        """Factor ``1 + growth`` on the hit ranks, 1 on the others, shape (world, steps)."""
        return np.asarray(1.0 + self.ranks[:, None] * np.broadcast_to(growth, (self.work.world, self.steps)))


Maker = Callable[[Context, float], Effects]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault that can be asked for."""

    name: str
    cause: CauseClass
    target: TargetKind
    make: Maker
    about: str
    function: str = ""
    """The function that grows, where it is one."""
    default: float = 1.0
    """Strength if neither dose nor strength is given."""


def _slow(resource: Resource, *readings: tuple[str, float]) -> Maker:
    def make(context: Context, strength: float) -> Effects:
        out = context.none()
        out.slow(resource, context.on(strength))
        out.readings += [Reading(name, context.ranks, value) for name, value in readings]
        return out

    return make


def _gpu_clock(context: Context, strength: float) -> Effects:
    """Bursts: the clock falls further in some steps than in others."""
    burst = context.rng().uniform(0.6, 1.4, size=(1, context.steps))
    factor = context.on(strength * burst)
    out = context.none()
    out.slow("sm", factor)
    out.slow("expert", factor)
    out.clock = 1.0 / factor
    share = strength / (1.0 + strength)
    out.readings += [
        Reading("sm_clock", context.ranks, SM_CLOCK_MHZ / (1.0 + strength)),
        Reading("sm_throttle", context.ranks, share),
        Reading("gpu_temperature", context.ranks, 91.0),
    ]
    return out


def _leftover(context: Context, strength: float) -> Effects:
    out = context.none()
    for resource in ("sm", "expert", "hbm"):
        out.slow(resource, context.on(strength))
    out.readings += [Reading("gpu_foreign_processes", context.ranks, 1.0), Reading("cpu_foreign", context.ranks, 6.0)]
    return out


def _contention(context: Context, strength: float) -> Effects:
    out = context.none()
    out.slow("cpu", context.on(strength * context.rng().uniform(0.7, 1.3, size=(1, context.steps))))
    out.readings += [
        Reading("cpu_busy", context.ranks, 0.99),
        Reading("cpu_pressure", context.ranks, 0.6),
        Reading("cpu_foreign", context.ranks, 70.0),
        Reading("cpu_steal", context.ranks, 0.12),
    ]
    return out


def _stage(context: Context, strength: float) -> Effects:
    out = context.none()
    for resource in ("sm", "expert", "hbm"):
        out.slow(resource, context.on(strength))
    return out


def _lengths(context: Context, strength: float) -> Effects:
    """Each replica gets longer or shorter sequences in each step; a few are much longer."""
    replica = replicas(context.work)
    drawn = context.rng().gamma(1.0, 1.0, size=(int(replica.max()) + 1, context.steps))[replica]
    out = context.none()
    factor = 1.0 + strength * drawn
    for resource in ("sm", "expert", "hbm"):
        out.slow(resource, factor)
    return out


def replicas(work: Workload) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Number of the data replica of each rank: those that agree in all but pipeline, tensor and context coordinates."""
    grid = next(iter(work.layout.grids.values()))
    table = grid.coordinates()
    keys = [table[a] for a in table if a not in ("pp", "tp", "cp", "pipe", "model")]
    if not keys:
        return np.zeros(work.world, dtype=np.int64)
    _, number = np.unique(np.stack(keys), axis=1, return_inverse=True)
    return np.asarray(number.reshape(-1), dtype=np.int64)


def _gc(context: Context, strength: float) -> Effects:
    """Collections on other ranks in other steps: one in sixteen of the hit ranks each step, at least one."""
    rng = context.rng()
    who = np.flatnonzero(context.ranks)
    each = max(1, who.size // 16)
    us = np.zeros((context.work.world, context.steps))
    order = np.concatenate([rng.permutation(who) for _ in range(-(-each * context.steps // who.size))])
    for step in range(context.steps):
        us[order[step * each : (step + 1) * each], step] = strength * context.nominal_us * rng.uniform(0.8, 1.2, size=each)
    out = context.none()
    out.pauses.append(Pauses("gc", "gc.collect", f"{_STACK};train.py:train_step;gc.collect", us, "one"))
    return out


def _allocator(context: Context, strength: float) -> Effects:
    us = (
        context.ranks[:, None]
        * strength
        * context.nominal_us
        * context.rng().uniform(0.9, 1.1, (context.work.world, context.steps))
    )
    out = context.none()
    out.pauses.append(Pauses("alloc", "cudaFree", f"{_STACK};train.py:train_step;cudaFree", us, "spread", calls=40))
    return out


def _checkpoint(context: Context, strength: float) -> Effects:
    """All ranks save in one of the steps."""
    us = np.zeros((context.work.world, context.steps))
    step = int(context.rng().integers(1, context.steps)) if context.steps > 1 else 0
    us[:, step] = context.ranks * strength * context.nominal_us * context.steps
    out = context.none()
    out.pauses.append(
        Pauses("checkpoint", "write", f"{_STACK};checkpoint.py:save;torch/serialization.py:save;write", us, "optimizer")
    )
    return out


def _regression(context: Context, strength: float) -> Effects:
    out = context.none()
    out.functions["elementwise_backward_kernel"] = context.on(strength)
    return out


def _nvlink(context: Context, strength: float) -> Effects:
    out = context.none()
    out.links.append(LinkSlowdown("nvlink", context.ranks, np.full(context.steps, 1.0 + strength), culprit=context.ranks))
    out.readings += [
        Reading("nvlink_active", context.ranks, 0.0),
        Reading("pcie_rx", context.ranks, 9.0, relative=True),
        Reading("nvlink_tx", context.ranks, 0.05, relative=True),
    ]
    return out


def _nic(link_gbps: float) -> Maker:
    def make(context: Context, strength: float) -> Effects:
        out = context.none()
        out.links.append(LinkSlowdown("nic", context.ranks, np.full(context.steps, 1.0 + strength), culprit=context.ranks))
        out.readings.append(Reading("nic_link", context.ranks, link_gbps))
        return out

    return make


def _loss(context: Context, strength: float) -> Effects:
    """Retransmissions come in bursts."""
    factor = 1.0 + strength * context.rng().gamma(2.0, 0.5, size=context.steps)
    out = context.none()
    out.links.append(LinkSlowdown("nic", context.ranks, factor, pair=context.other))
    out.readings.append(Reading("nic_retransmits", context.ranks | context.other, 420.0))
    return out


def _ecmp(context: Context, strength: float) -> Effects:
    """Flows of several hosts hash onto one path; who collides changes, but not for long."""
    factor = 1.0 + strength * context.rng().uniform(0.7, 1.3, size=context.steps)
    out = context.none()
    out.links.append(LinkSlowdown("nic", context.ranks, factor))
    return out


_ROWS = (
    FaultKind(
        "slow_gpu_clock", "worker", "rank", _gpu_clock, "SM clock throttled in bursts", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n"
    ),
    FaultKind(
        "slow_hbm",
        "worker",
        "rank",
        _slow("hbm"),
        "degraded memory channel: memory-bound kernels grow",
        "multi_tensor_apply_kernel",
    ),
    FaultKind(
        "pcie_downgrade",
        "worker",
        "rank",
        _slow("pcie", ("pcie_width", 4.0)),
        "PCIe trained to fewer lanes",
        "Memcpy HtoD (Pinned -> Device)",
        30.0,
    ),
    FaultKind("nvlink_down", "link", "rank", _nvlink, "a GPU's NVLink is down, its traffic takes PCIe", "", 4.0),
    FaultKind("nic_down", "link", "rank", _nic(0.0), "a rank's NIC is down, its traffic takes a neighbour's", "", 3.0),
    FaultKind("nic_halved", "link", "rank", _nic(200.0), "a rank's NIC runs at half its rate", "", 1.0),
    FaultKind("link_loss", "link", "pair", _loss, "packets get lost between two hosts", "", 3.0),
    FaultKind("ecmp_collision", "fabric", "hosts", _ecmp, "flows of several hosts collide on a path", "", 2.0),
    FaultKind("slow_storage", "host", "host", _slow("storage"), "reads from the data's store are slow", "recv_into", 60.0),
    FaultKind("cpu_contention", "host", "host", _contention, "other work on the host's CPUs", "forward", 20.0),
    FaultKind("leftover_process", "host", "host", _leftover, "a former job's process computes on the host's GPUs", "", 0.4),
    FaultKind("starved_loader", "worker", "rank", _slow("queue"), "a rank's loader workers do not keep up", "get", 200.0),
    FaultKind("pin_memory", "worker", "few", _slow("pin"), "page locking is slow on a few ranks", "pin_memory", 300.0),
    FaultKind(
        "gc_unsynchronised", "software_pause", "all", _gc, "garbage collection on other ranks in other steps", "gc.collect", 0.3
    ),
    FaultKind(
        "allocator_churn",
        "software_pause",
        "all",
        _allocator,
        "the caching allocator frees and allocates in each step",
        "cudaFree",
        0.3,
    ),
    FaultKind("slow_checkpoint", "software_pause", "all", _checkpoint, "saving blocks a step", "write", 0.3),
    FaultKind("stage_imbalance", "pipeline_stage", "stage", _stage, "a pipeline stage has too much work", "", 0.4),
    FaultKind("length_imbalance", "data_imbalance", "all", _lengths, "replicas get sequences of unequal length", "", 0.3),
    FaultKind(
        "regression",
        "whole_job",
        "all",
        _regression,
        "a kernel got slower on all ranks alike",
        "elementwise_backward_kernel",
        3.0,
    ),
)

FAULTS: Mapping[str, FaultKind] = {row.name: row for row in _ROWS}


def fault_kind(name: str, at: str = "faults", others: tuple[str, ...] = ()) -> FaultKind:
    """The fault called *name*.

    :param at: the path of the name in the scenario.
    :param others: further names that exist elsewhere, for the error.
    :raises ScenarioError: there is none.
    """
    if name not in FAULTS:
        raise unknown_word(name, "fault", at, (*FAULTS, *others))
    return FAULTS[name]
