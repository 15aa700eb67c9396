"""Where a fault sits: what the scenario names, and a draw for what it leaves open."""

from __future__ import annotations

import numpy as np

from eroica.schemas.errors import InvalidInput, SchemaError
from eroica.schemas.ranks import RankArray, parse_ranks
from eroica.simulator.effects import BoolArray
from eroica.simulator.faults import FaultKind
from eroica.simulator.scenario import Target
from eroica.simulator.workload import Workload

__all__ = ["locate"]

FEW_RANKS = 3


def locate(work: Workload, kind: FaultKind, target: Target, rng: np.random.Generator) -> tuple[BoolArray, BoolArray]:
    """The ranks that *kind* hits and, for a pair, those of its second end; shapes (world,).

    :raises InvalidInput: a rank, host, rack or stage that the job does not have, or a place that the fault cannot have.
    """
    hosts = len(work.hosts.names)
    nobody = np.zeros(work.world, dtype=bool)
    if kind.target == "pair":
        pair = _numbers(target.hosts, hosts, "hosts")
        if pair.size == 0 and hosts > 1:
            pair = np.sort(rng.choice(hosts, 2, replace=False))
        if pair.size != 2:
            raise InvalidInput("it needs two hosts", where=kind.name, do="give at: {hosts: '0,1'} and a job on several hosts")
        return work.hosts.host_of == pair[0], work.hosts.host_of == pair[1]
    named = _named(work, target)
    if named is not None:
        if kind.target == "rank" and target.ranks != "" and "nic" in kind.name and named.sum() > 1:
            raise InvalidInput("it is one rank's NIC", where=kind.name, do="write one fault for each rank")
        return named, nobody
    return _drawn(work, kind, rng, hosts), nobody


def _named(work: Workload, target: Target) -> BoolArray | None:
    """The union of all that *target* names; ``None`` if it names nothing."""
    hosts = len(work.hosts.names)
    racks = int(work.rack_of.max()) + 1
    stages = work.rank_of.shape[0]
    out = np.zeros(work.world, dtype=bool)
    out[_numbers(target.ranks, work.world, "ranks")] = True
    out |= np.isin(work.hosts.host_of, _numbers(target.hosts, hosts, "hosts"))
    out |= np.isin(work.rack_of, _numbers(target.racks, racks, "racks"))
    for stage in target.stages:
        if not -stages <= stage < stages:
            raise InvalidInput(f"there is no stage {stage}", where="at.stages", do=f"the pipeline has {stages}")
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


def _numbers(text: str | int, count: int, what: str) -> RankArray:
    try:
        found = parse_ranks(str(text))
    except SchemaError as error:
        raise InvalidInput(str(error), where=f"at.{what}") from error
    if found.size and found.max() >= count:
        raise InvalidInput(f"there is no {what[:-1]} {int(found.max())}", where=f"at.{what}", do=f"the job has {count} {what}")
    return found
