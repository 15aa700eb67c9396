"""The cases of the accuracy bench: layouts × faults × doses × seeds, healthy jobs, unequal ranks, pairs, bad delivery."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from eroica.simulator.faults import FAULTS
from eroica.simulator.scenario import Scenario
from eroica.simulator.source import parse_scenario

DOSES = {"loud": 1.3, "quiet": 1.15, "masked": 1.05}
_MEGATRON = "framework: megatron, schedule: 1f1b, sharding: 1"
_TITAN = "framework: torchtitan"
_EXPERTS = "{experts: true, expert_spread: 0.05}"
_FOUR = "\ncluster: {gpus_per_host: 4}"
LAYOUTS: dict[str, str] = {
    "ddp-16": "job: {world: 16, framework: ddp, model: {layers_per_stage: 8}}" + _FOUR,
    "fsdp-32": "job: {world: 32, framework: fsdp, sharding: 3, model: {layers_per_stage: 8}}",
    "tp-pp-64": f"job: {{world: 64, {_MEGATRON}, sizes: {{tp: 2, pp: 4}}, micro_batches: 8}}",
    "moe-32": f"job: {{world: 32, {_MEGATRON}, sizes: {{tp: 2, pp: 2, ep: 4}}, micro_batches: 4, model: {_EXPERTS}}}" + _FOUR,
    "cp-32": f"job: {{world: 32, {_TITAN}, sharding: 3, sizes: {{cp: 2, tp: 2}}, micro_batches: 2}}" + _FOUR,
    "zbv-32": f"job: {{world: 32, {_TITAN}, sharding: 1, schedule: zbv, sizes: {{pp: 4, tp: 2}}, micro_batches: 8}}" + _FOUR,
    "hsdp-32": "job: {world: 32, framework: hsdp, sharding: 3, sizes: {dp_replicate: 2}, model: {layers_per_stage: 8}}" + _FOUR,
    "deepspeed-32": "job: {world: 32, framework: deepspeed, sharding: 1, sizes: {pp: 2, tp: 2}, micro_batches: 6}" + _FOUR,
}
QUICK_LAYOUTS = ("ddp-16", "fsdp-32", "tp-pp-64", "moe-32")
HEALTHY: dict[str, str] = {
    "plain": "",
    "unequal stages": "job.model.stage_scale=[1.0, 1.25, 0.9, 1.4]",
    "two device models": "cluster.other_speed={A100: 0.6}",
    "unequal lengths": "job.model.length_spread=0.03",
    "unequal experts": "job.model.expert_spread=0.15",
    "heavy last stage": "job.model.head_layers=1.0",
}
"""What differs between healthy ranks, by assignment; those that do not fit a layout are left out."""
NOISES = ("quiet", "production", "noisy")
PAIRS = (("slow_gpu_clock", "slow_hbm"), ("slow_gpu_clock", "leftover_process"), ("starved_loader", "pcie_downgrade"))
NUISANCE = ("nuisance.missing=0.02", "nuisance.duplicate=0.02", "nuisance.late=0.1", "nuisance.clock_offset_s=30")
UNEVEN_FAULTS = ("slow_gpu_clock", "cpu_contention", "nic_halved")
"""Faults that are tried in each job of unequal ranks too."""
_BASE = ("history.before=0", "history.after=0")
PAST = ("history.baseline=true", "history.before=20")
"""A healthy profile of the same job, as detect asks for once a job runs steadily. Cases of kind ``blind`` lack it."""
OWN_PAST = frozenset({"regression", "allocator_churn"})
"""Faults of all ranks alike, which nothing but the job's past can tell: they are not tried without it."""


@dataclass(frozen=True)
class Case:
    """One run of the simulator."""

    kind: str
    """``fault``, ``healthy``, ``uneven`` (a fault in a job of unequal ranks), ``blind`` (the ``fault`` case without the job's
    past), ``pair``, or ``nuisance`` (a bad delivery of the ``fault`` case that is like it in all else, the seed too)."""
    layout: str
    what: str
    level: str
    """Dose or noise by name."""
    number: int
    assignments: tuple[str, ...]
    seed: int

    def scenario(self) -> Scenario:
        """The scenario to run."""
        return parse_scenario(LAYOUTS[self.layout], (*_BASE, *self.assignments, f"seed={self.seed}"))

    @property
    def name(self) -> str:
        """What a person calls it."""
        return f"{self.kind}/{self.layout}/{self.what}/{self.level}/{self.number}"


def cases(layouts: tuple[str, ...], seeds: int, healthy_seeds: int, base_seed: int) -> Iterator[Case]:
    """All cases, in a fixed order; seeds follow from *base_seed* and the case."""
    for layout in layouts:
        row = tuple(LAYOUTS).index(layout)
        for column, fault in enumerate(FAULTS):
            for level, dose in DOSES.items():
                for n in range(seeds):
                    # Half of the runs have finely sampled utilisation, as [P] has, half have what a trace alone gives.
                    sampling = f"profile.sampling={'true' if (row + column + n) % 2 == 0 else 'false'}"
                    broken = f"faults=[{{fault: {fault}, dose: {dose}}}]"
                    yield _case("fault", layout, fault, level, n, (broken, sampling, *PAST), base_seed)
                    if level != "masked" and n == 0:
                        yield _case("nuisance", layout, fault, level, n, (broken, sampling, *PAST, *NUISANCE), base_seed)
                        if fault not in OWN_PAST:
                            yield _case("blind", layout, fault, level, n, (broken, sampling), base_seed)
        for one, two in PAIRS:
            for n in range(seeds):
                broken = f"faults=[{{fault: {one}, dose: 1.25}}, {{fault: {two}, dose: 1.25}}]"
                yield _case("pair", layout, f"{one}+{two}", "loud", n, (broken, *PAST), base_seed)
        for what, assignment in HEALTHY.items():
            if not _fits(layout, what):
                continue
            for noise in NOISES:
                for n in range(healthy_seeds):
                    # Every second healthy run has no past: neither may lead to an accusation.
                    past = PAST if n % 2 else ()
                    given = (*_variant(what, assignment), f"noise={noise}", *past)
                    yield _case("healthy", layout, what, noise, n, given, base_seed)
            for fault in UNEVEN_FAULTS if assignment else ():
                for level in ("loud", "quiet"):
                    for n in range(seeds):
                        given = (*_variant(what, assignment), f"faults=[{{fault: {fault}, dose: {DOSES[level]}}}]", *PAST)
                        yield _case("uneven", layout, f"{what}, {fault}", level, n, given, base_seed)


def _variant(what: str, assignment: str) -> tuple[str, ...]:
    if what == "two device models":
        return assignment, "cluster.other_devices={'0': A100}"
    return (assignment,) if assignment else ()


def _fits(layout: str, what: str) -> bool:
    if what == "unequal stages":
        return "pp: 4" in LAYOUTS[layout] and "zbv" not in layout
    if what == "unequal experts":
        return "experts" in LAYOUTS[layout]
    if what == "heavy last stage":
        return "pp:" in LAYOUTS[layout]
    return True


def _case(kind: str, layout: str, what: str, level: str, n: int, assignments: tuple[str, ...], base_seed: int) -> Case:
    seed = (
        zlib.crc32(f"{base_seed}/{'fault' if kind in ('nuisance', 'blind') else kind}/{layout}/{what}/{level}/{n}".encode())
        % 1_000_000_007
    )
    return Case(kind, layout, what, level, n, assignments, seed)
