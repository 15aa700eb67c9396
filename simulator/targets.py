"""Where a fault sits: what the scenario names, and a draw for what it leaves open."""

from __future__ import annotations

import numpy as np

from eroica.schemas.wording import say_count
from eroica.simulator.effects import BoolArray
from eroica.simulator.faults import FaultKind
from eroica.simulator.places import numbers
from eroica.simulator.problem import ScenarioError
from eroica.simulator.scenario import Target
from eroica.simulator.workload import Workload

__all__ = ["locate"]

FEW_RANKS = 3


def locate(
    work: Workload, kind: FaultKind, target: Target, rng: np.random.Generator, at: str = "at"
) -> tuple[BoolArray, BoolArray]:
    """The ranks that *kind* hits and, for a pair, those of its second end; shapes (world,).

    :param at: path of *target*.
    :raises ScenarioError: a rank, host, rack or stage that the job does not have, or a place that the fault cannot have.
    """
    hosts = len(work.hosts.names)
    nobody = np.zeros(work.world, dtype=bool)
    if kind.target == "pair":
        pair = numbers(target.hosts, hosts, "host", f"{at}.hosts")
        if pair.size == 0 and hosts > 1:
            pair = np.sort(rng.choice(hosts, 2, replace=False))
        if pair.size != 2:
            do = "give two of them, e.g. {hosts: '0,1'}" if hosts > 1 else "give the job more ranks, or the cluster fewer a host"
            raise ScenarioError(f"{kind.name} is a fault between two hosts", f"{at}.hosts", "job.world", do=do)
        return work.hosts.host_of == pair[0], work.hosts.host_of == pair[1]
    named = _named(work, target, at)
    if named is not None:
        if kind.target == "rank" and target.ranks != "" and "nic" in kind.name and named.sum() > 1:
            raise ScenarioError("it is one rank's NIC", f"{at}.ranks", do="write one fault for each rank")
        return named, nobody
    return _drawn(work, kind, rng, hosts), nobody


def _named(work: Workload, target: Target, at: str) -> BoolArray | None:
    """The union of all that *target* names; ``None`` if it names nothing."""
    hosts = len(work.hosts.names)
    racks = int(work.rack_of.max()) + 1
    stages = work.rank_of.shape[0]
    out = np.zeros(work.world, dtype=bool)
    out[numbers(target.ranks, work.world, "rank", f"{at}.ranks")] = True
    out |= np.isin(work.hosts.host_of, numbers(target.hosts, hosts, "host", f"{at}.hosts"))
    out |= np.isin(work.rack_of, numbers(target.racks, racks, "rack", f"{at}.racks"))
    for stage in target.stages:
        if not -stages <= stage < stages:
            have = f"the job has {say_count(stages, 'stage')}, numbered from 0"
            raise ScenarioError(f"there is no stage {stage}", f"{at}.stages", "job.sizes", do=have)
    out |= np.isin(work.stage_of, [stage % stages for stage in target.stages])
    return out if out.any() else None


def _drawn(work: Workload, kind: FaultKind, rng: np.random.Generator, hosts: int) -> BoolArray:
    everyone = np.ones(work.world, dtype=bool)
    if kind.target == "all":
        return everyone
    if kind.target == "stage":
        return np.asarray(work.stage_of == work.rank_of.shape[0] - 1)
    if kind.target == "host":
        return np.asarray(work.hosts.host_of == rng.integers(hosts))
    if kind.target == "hosts":
        count = max(2, min(work.scenario.cluster.hosts_per_rack, hosts // 2))
        first = int(rng.integers(max(1, hosts - count + 1)))
        return np.asarray((work.hosts.host_of >= first) & (work.hosts.host_of < first + count))
    chosen = rng.choice(work.world, min(work.world, 1 if kind.target == "rank" else FEW_RANKS), replace=False)
    out = np.zeros(work.world, dtype=bool)
    out[chosen] = True
    return out
