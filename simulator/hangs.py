"""Jobs that stand still: who is stuck where, as py-spy sees it from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eroica.schemas.ranks import RankArray
from eroica.schemas.summaries import Identity, StackEvidence
from eroica.simulator.places import numbers
from eroica.simulator.problem import ScenarioError
from eroica.simulator.scenario import Fault
from eroica.simulator.workload import Workload

__all__ = ["HANGS", "Hang", "place_hang", "stack_evidence"]

_MAIN = "<module> (train.py:212);main (train.py:188);train_step (train.py:143)"
_WAITING = f"{_MAIN};step (torch/optim/optimizer.py:484);clip_grad_norm_ (torch/nn/utils/clip_grad.py:41);item"
_REDUCE = f"{_MAIN};backward (torch/_tensor.py:581);_engine_run_backward (torch/autograd/graph.py:824)"
_LOADER = (
    f"{_MAIN};__next__ (torch/utils/data/dataloader.py:708);_try_get_data (torch/utils/data/dataloader.py:1131);"
    "get (queue.py:180);wait (threading.py:331)"
)
_PUT = (
    "_bootstrap (threading.py:1002);run (threading.py:982);_worker_loop (torch/utils/data/_utils/worker.py:317);"
    "put (multiprocessing/queues.py:94);acquire"
)


WAITING_EVENT = "loader_exit"
"""Those that wait stand in a collective of their step."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Stacks of the culprits and of those that wait for them."""

    culprit: str
    last_event: str
    about: str


HANGS: Mapping[str, _Shape] = {
    "hang_before": _Shape(
        f"{_MAIN};load_batch (train.py:97);lock_acquire (threading.py:115)",
        "loader_exit",
        "stuck in host code before it enters a collective",
    ),
    "hang_inside": _Shape(
        f"{_REDUCE};ncclAllReduce (libnccl.so.2)", "loader_exit", "its GPU never finishes a collective that all have entered"
    ),
    "hang_after": _Shape(
        f"{_MAIN};save (checkpoint.py:61);write (posixpath.py:0);fsync",
        "optimizer_exit",
        "stuck in host code after the step's last collective",
    ),
    "hang_loader": _Shape(_LOADER, "loader_enter", "its data loader gives no more data"),
    "hang_deadlock": _Shape(
        f"{_MAIN};exchange (parallel.py:77);all_gather (torch/distributed/distributed_c10d.py:3210)",
        "loader_exit",
        "two groups wait for each other in crossed order",
    ),
}
"""Name → what is seen."""


@dataclass(frozen=True)
class Hang:
    """A placed hang."""

    name: str
    ranks: RankArray
    """Culprits, ascending; of a deadlock all members of the two groups that entered in the other order."""

    def last_event(self, rank: int) -> str:
        """The last event of *rank*'s training loop."""
        return HANGS[self.name].last_event if rank in set(self.ranks.tolist()) else WAITING_EVENT


def place_hang(work: Workload, fault: Fault, rng: np.random.Generator) -> Hang:
    """Who is stuck.

    :raises ScenarioError: a rank that the job does not have, or a dose, which a hang has not.
    """
    if fault.dose is not None or fault.strength is not None:
        raise ScenarioError("a hang has neither dose nor strength", "faults.0.dose", "faults.0.strength")
    if fault.at.hosts != "" or fault.at.racks != "" or fault.at.stages:
        raise ScenarioError("a hang is placed by ranks", "faults.0.at", do="give at: {ranks: '3'}")
    ranks = numbers(fault.at.ranks, work.world, "rank", "faults.0.at.ranks")
    if ranks.size == 0:
        count = min(work.world, 2 if fault.fault == "hang_deadlock" else 1)
        ranks = np.sort(rng.choice(work.world, count, replace=False))
    return Hang(fault.fault, ranks)


def stack_evidence(hang: Hang, who: Identity, last_step: int, ended_at_us: int, idle_us: int) -> StackEvidence:
    """What a dump of *who* shows."""
    shape = HANGS[hang.name]
    guilty = bool(np.isin(who.rank, hang.ranks))
    main = shape.culprit if guilty else (_WAITING if hang.name == "hang_after" else _REDUCE)
    threads = [f"{who.pid}/MainThread/{'active' if guilty else 'idle'}: {main}"]
    if guilty and hang.name == "hang_loader":
        threads.append(f"{who.pid + 400}/loader worker 0/idle: {_PUT}")
    threads.append(f"{who.pid}/pt_autograd_0/idle: ")
    return StackEvidence(
        who=who,
        ended_at_us=ended_at_us,
        last_step=last_step,
        idle_us=idle_us,
        last_event=hang.last_event(who.rank),
        threads=threads,
    )
