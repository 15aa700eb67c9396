"""What is really wrong in a run: the labels that a verdict is held against."""

from __future__ import annotations

from typing import Any

import numpy as np

from eroica.schemas.ranks import RankArray, format_ranks
from eroica.schemas.verdicts import CauseClass
from eroica.simulator.effects import BoolArray, Effects, FloatArray, LinkSlowdown
from eroica.simulator.engine import NO_NOISE, Engine
from eroica.simulator.simulation import PlacedFault, Simulation

__all__ = ["cause_class", "labels", "lookalikes", "waiters"]

WAITER_SHARE = 0.25
"""A rank waits because of a fault if its waiting grew by this share of what the step grew."""
HEAVY_STAGE = 1.10
"""A stage with this much of the stages' mean compute is out of balance (the tenth is the floor of published detectors)."""
PAIR = 2
UNEQUAL_DATA = 1.05
"""Lengths and experts' loads that stretch a step so much are out of balance."""


def labels(simulation: Simulation, request: str) -> dict[str, Any]:
    """The truth of a simulation, for JSON.

    ``waiters`` are the ranks that are slow only because they wait; ``lookalikes`` of a link those ranks whose link would show
    the same slow communicators; ``alternatives`` further classes that the same facts allow; ``imbalances`` classes of what
    is unequal in the job without a fault.
    """
    scenario = simulation.scenario
    broken_us = simulation.engine.mean_step_us(simulation.broken)
    out: dict[str, Any] = {
        "scenario": scenario.name,
        "seed": simulation.seed,
        "job": scenario.job.name,
        "run_id": simulation.run_id,
        "request": request,
        "world": simulation.work.world,
        "healthy": not scenario.faults,
        "step_ms": {
            "healthy": round(simulation.healthy_step_us / 1e3, 3),
            "broken": None if simulation.hang else round(broken_us / 1e3, 3),
        },
        "imbalances": imbalances(simulation),
        "causes": [_cause(simulation, placed) for placed in simulation.faults],
        "waiters": format_ranks(waiters(simulation)) if simulation.faults else "",
    }
    if simulation.hang:
        ranks = simulation.hang.ranks
        out["causes"] = [
            {
                "class": "hang",
                "fault": simulation.hang.name,
                "suspects": {"ranks": format_ranks(ranks), "hosts": _hosts(simulation, ranks), "links": [], "stages": []},
            }
        ]
        out["waiters"] = format_ranks(np.setdiff1d(np.arange(simulation.work.world), ranks))
    return out


def cause_class(simulation: Simulation, placed: PlacedFault) -> tuple[CauseClass, list[CauseClass]]:
    """The class of a placed fault, and further ones that the same facts allow.

    What hits whole hosts is a host's fault, what hits single ranks a worker's, and what hits all is nobody's.
    """
    work, kind, hit = simulation.work, placed.kind, placed.ranks
    others: list[CauseClass] = []
    if kind.cause in ("worker", "host"):
        if hit.all() and work.world > 1:
            loader = kind.name in ("slow_storage", "starved_loader", "pin_memory")
            return ("software_pause", ["whole_job"]) if loader else ("whole_job", [])
        touched = np.isin(work.hosts.host_of, np.unique(work.hosts.host_of[hit]))
        whole = bool((touched == hit).all())
        per_host = int(np.bincount(work.hosts.host_of).min())
        cause: CauseClass = "host" if whole and per_host > 1 else "worker"
        if whole and per_host == 1:
            others.append("host")
        stages = np.unique(work.stage_of[hit])
        if work.rank_of.shape[0] > 1 and bool((np.isin(work.stage_of, stages) == hit).all()):
            others.append("pipeline_stage")
        return cause, others
    if kind.cause == "pipeline_stage":
        touched = np.isin(work.hosts.host_of, np.unique(work.hosts.host_of[hit]))
        if bool((touched == hit).all()):
            others.append("host")
    if kind.cause == "fabric" and np.unique(work.hosts.host_of[hit]).size == PAIR:
        others.append("link")
    return kind.cause, others


def imbalances(simulation: Simulation) -> list[CauseClass]:
    """What the job itself has out of balance, though nothing is broken."""
    engine, work = simulation.engine, simulation.work
    out: list[CauseClass] = []
    load = np.zeros(work.rank_of.shape[0])
    np.add.at(load, work.step.graph.stage[engine.family >= 0], engine.nominal[engine.family >= 0])
    if load.size > 1 and load.max() >= HEAVY_STAGE * load.mean():
        out.append("pipeline_stage")
    if simulation.healthy_step_us >= UNEQUAL_DATA * engine.mean_step_us(Effects(work.world, simulation.steps)):
        out.append("data_imbalance")
    return out


def waiters(simulation: Simulation) -> RankArray:
    """Ranks that are no suspects and wait longer because of the faults, ascending; without noise."""
    if not simulation.faults:
        return np.empty(0, dtype=np.int64)
    before = _waiting(simulation.engine, simulation.healthy)
    after = _waiting(simulation.engine, simulation.broken)
    grown = simulation.engine.mean_step_us(simulation.broken) - simulation.healthy_step_us
    out = after - before > WAITER_SHARE * max(grown, 0.0)
    for placed in simulation.faults:
        if placed.kind.target != "all":
            out &= ~placed.ranks
    return np.flatnonzero(out)


def lookalikes(simulation: Simulation, link: LinkSlowdown) -> BoolArray:
    """Shape (world,): ranks that are in every slow communicator of the medium, and in none that is not slow."""
    work = simulation.work
    out = np.ones(work.world, dtype=bool)
    for axis in work.groups:
        if work.groups[axis].largest() < 2 or not any(t.axis == axis for t in work.traffic.values()):
            continue
        hit = link.hits(work, axis)
        mine = work.group_of[axis]
        struck = np.unique(mine[hit])
        if struck.size == 1:
            out &= mine == struck[0]
        elif struck.size > 1:
            out &= False
        across = work.crossing[axis]
        uses = (across if link.medium == "nic" else ~across) & (mine >= 0)
        out &= ~uses | hit
    for op, traffic in work.traffic.items():
        if traffic.axis != "pp":
            continue
        one, other = work.rank_of[work.step.graph.ops[op].stage], work.rank_of[traffic.peer_stage]
        hit = link.hits_pair(work, one, other)
        within = work.hosts.host_of[one] == work.hosts.host_of[other]
        free = one[~hit & (within if link.medium == "nvlink" else ~within)]
        out[free] = False
        if hit.any():
            inside = np.zeros(work.world, dtype=bool)
            inside[one[hit]] = inside[other[hit]] = True
            out &= inside
    return out


def _waiting(engine: Engine, effects: Effects) -> FloatArray:
    """Mean waiting of each rank in a step, µs: the longest of its kinds of traffic, which may overlap."""
    if effects.steady():
        effects = effects.one_step()
    run = engine.run(effects, NO_NOISE, 0)
    out = np.zeros(engine.work.world)
    axes = {t.axis for t in engine.work.traffic.values()}
    for axis in axes:
        total = np.zeros(engine.work.world)
        for op, traffic in engine.work.traffic.items():
            if traffic.axis == axis:
                waited = np.clip(run.duration[op].astype(np.float64) - run.own[op], 0.0, None).mean(axis=1)
                np.add.at(total, engine.rank_of_op[op], waited)
        out += total
    return out


def _cause(simulation: Simulation, placed: PlacedFault) -> dict[str, Any]:
    work, kind = simulation.work, placed.kind
    ranks = np.flatnonzero(placed.ranks)
    cause, others = cause_class(simulation, placed)
    hosts, links, stages, suspects = _hosts(simulation, ranks), [], [], format_ranks(ranks)
    out: dict[str, Any] = {"class": cause, "alternatives": others, "fault": kind.name}
    if kind.target == "pair":
        second = _hosts(simulation, np.flatnonzero(placed.other))
        hosts, links, suspects = [*hosts, *second], [f"{hosts[0]}|{second[0]}"], ""
    elif cause in ("fabric",):
        suspects = ""
    elif cause in ("data_imbalance", "whole_job", "software_pause"):
        paused = np.flatnonzero(sum((p.us.sum(axis=1) for p in placed.effects.pauses), np.zeros(work.world)))
        suspects, hosts = format_ranks(paused), []
    elif cause == "pipeline_stage":
        stages = np.unique(work.stage_of[ranks]).tolist()
        hosts = hosts if "host" in others else []
    elif "pipeline_stage" in others:
        stages = np.unique(work.stage_of[ranks]).tolist()
    if kind.cause == "link" and kind.target == "rank":
        same = lookalikes(simulation, placed.effects.links[0])
        links, out["lookalikes"] = [f"rank {int(ranks[0])}"], format_ranks(np.flatnonzero(same))
    alone = simulation.engine.mean_step_us(simulation.healthy.merged(placed.effects))
    return {
        **out,
        "suspects": {"ranks": suspects, "hosts": hosts, "links": links, "stages": stages},
        "functions": [kind.function] if kind.function else [],
        "dose": placed.dose,
        "strength": round(placed.strength, 6),
        "step_growth": round(alone / simulation.healthy_step_us, 5),
    }


def _hosts(simulation: Simulation, ranks: RankArray) -> list[str]:
    work = simulation.work
    return [work.hosts.names[h] for h in np.unique(work.hosts.host_of[ranks]).tolist()]
