"""Phases of each step: every moment of a step belongs to exactly one, so the phases of a step sum up to its duration.

First comes ``comm_wait``: a collective runs and no compute or memory operation hides it. The rest, with a device: busy time
goes to the phase of the host code that launched the work; moments at which the device has nothing to do are ``data`` while
the host loads data, else ``idle``. Without a device: the host's own phase, ``other`` between phases, ``idle`` where the
training thread records nothing.
"""

from __future__ import annotations

import numpy as np

from eroica.producers.trace.columns import KERNEL, MEMCPY, MEMSET, Floats, Trace
from eroica.producers.trace.critical_path import CriticalPath, HostThread
from eroica.producers.trace.host_names import PHASES, phase_of
from eroica.producers.trace.intervals import Intervals, union
from eroica.producers.trace.steps import Steps

ORDER = ("data", "forward", "backward", "optimizer", "comm_wait", "idle", "other")


def step_phases(trace: Trace, steps: Steps, path: CriticalPath, host: dict[str, Intervals]) -> list[dict[str, float]]:
    """Phases of every step, µs; keys as in :data:`ORDER`, absent where 0.

    :param host: from :func:`host_phases`.
    """
    partition = _of_host(path, host) if path.cpu_only else _of_device(trace, path, host)
    start, end = steps.start_us, steps.end_us
    measured = {phase: intervals.overlap(start, end) for phase, intervals in partition.items()}
    spent: Floats = sum(measured.values(), np.zeros(start.size))
    measured["idle"] = np.maximum(end - start - spent, 0.0)
    return [
        {p: round(float(measured[p][i]), 1) for p in ORDER if p in measured and measured[p][i] >= 0.05} for i in range(start.size)
    ]


def host_phases(trace: Trace, path: CriticalPath) -> dict[str, Intervals]:
    """When the host is in each phase, disjoint; inner phases win over outer ones (a loader inside a forward is data)."""
    phases = {phase: union(*times) for phase, times in _of_phases(trace, path.main).items()}
    if path.backward is not None:
        of_autograd = _of_phases(trace, path.backward)["backward"]
        threads = [of_autograd, (phases["backward"].start, phases["backward"].end)]
        phases["backward"] = union(np.concatenate([t[0] for t in threads]), np.concatenate([t[1] for t in threads]))
    taken: Intervals | None = None
    disjoint = {}
    for phase in PHASES:
        mine = phases[phase] if taken is None else phases[phase].minus(taken)
        disjoint[phase] = mine
        taken = mine if taken is None else join(taken, mine)
    return disjoint


def join(*sets: Intervals) -> Intervals:
    """Union of sets."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def _of_phases(trace: Trace, thread: HostThread) -> dict[str, tuple[Floats, Floats]]:
    """Starts and ends of a thread's events that open each phase."""
    kind = trace.kinds(thread.rows, phase_of, PHASES)
    masks = {phase: kind == number for number, phase in enumerate(PHASES)}
    return {phase: (thread.tree.start[mask], thread.tree.end[mask]) for phase, mask in masks.items()}


def _of_host(path: CriticalPath, host: dict[str, Intervals]) -> dict[str, Intervals]:
    waiting = path.collective.minus(join(path.compute, path.memory))
    partition = {phase: mine.minus(waiting) for phase, mine in host.items()}
    tree = path.main.tree
    active = union(tree.segment_start, tree.segment_end)
    partition["comm_wait"] = waiting
    partition["other"] = active.minus(join(waiting, *host.values()))
    return partition


def _of_device(trace: Trace, path: CriticalPath, host: dict[str, Intervals]) -> dict[str, Intervals]:
    rows = trace.rows(KERNEL, MEMCPY, MEMSET)
    rows = rows[~path.is_collective[rows]]
    launch = trace.launch[rows]
    issued = np.where(launch >= 0, trace.ts_us[np.maximum(launch, 0)], -1.0)
    busy = join(path.compute, path.memory)
    partition: dict[str, Intervals] = {}
    taken: list[Intervals] = []
    for phase in PHASES:
        mine = rows[(launch >= 0) & host[phase].contains(issued)]
        work = union(trace.ts_us[mine], trace.end_us[mine]).both(busy)
        partition[phase] = work.minus(join(*taken)) if taken else work
        taken.append(partition[phase])
    partition["other"] = busy.minus(join(*taken))
    partition["comm_wait"] = path.collective.minus(busy)
    working = join(busy, path.collective)
    partition["data"] = join(partition["data"], host["data"].minus(working))
    return partition
