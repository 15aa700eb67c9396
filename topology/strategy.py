"""A user's parallel strategy as a few directives over a plain chain of model blocks, and the step graph that follows.

plan = (
    Plan.of([embedding, *layers, head])
    .place(ranks=4)
    .split(micro_batches=8)
    .order("1f1b")
    .shard("dp", buckets=4)
)
step = build_step(plan, Lanes.of(layout), costs)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.topology.schedules import SCHEDULES, Schedule, make_schedule

__all__ = ["Block", "Costs", "Exchange", "LinkCosts", "Plan", "Sharing"]

ExchangeKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ring"]


class Costs(Protocol):
    """What a transfer takes, waiting apart, in the unit of the blocks' times."""

    def transfer(self, kind: str, size_bytes: float, members: int, axis: str) -> float:
        """Time of a collective of *size_bytes* a member over *members* along *axis*; ``kind`` may be ``send``."""
        ...


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Latency and bandwidth by axis, with the traffic factors of ring algorithms (nccl-tests, PERFORMANCE.md)."""

    latency: float = 0.0
    bytes_per_time: Mapping[str, float] = field(default_factory=dict)
    """Axis (``pp`` for sends) → bytes in one unit of time; an axis that is absent costs only latency."""

    def transfer(self, kind: str, size_bytes: float, members: int, axis: str) -> float:
        """See ``Costs``."""
        if kind != "send" and members < 2:
            return 0.0
        factor = {"send": 1.0, "all-reduce": 2 * (members - 1) / members}.get(kind, (members - 1) / max(members, 1))
        rate = self.bytes_per_time.get(axis, np.inf)
        return self.latency + factor * size_bytes / rate


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective inside a block, once forward and once backward.

    A ``ring`` (context parallel attention) runs beside the block's compute; the others stop it until they are done.
    """

    kind: ExchangeKind
    axis: str
    """Group kind of the layout without its grid, e.g. ``tp``, ``ep``, ``cp``."""
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the model: times for one micro-batch; backward defaults to twice the forward, half of it for weights."""

    name: str
    forward: float
    backward_input: float = -1.0
    backward_weight: float = -1.0
    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0
    """What is sent on to the next block."""
    exchanges: tuple[Exchange, ...] = ()

    def times(self) -> tuple[float, float, float]:
        """Forward, gradients of inputs, gradients of weights."""
        own = self.forward
        inputs, weights = self.backward_input, self.backward_weight
        return own, own if inputs < 0 else inputs, own if weights < 0 else weights


@dataclass(frozen=True, slots=True)
class Sharing:
    """How replicas share parameters along an axis."""

    axis: str
    level: Literal[0, 1, 2, 3]
    """0: each has all, gradients are all-reduced; 1, 2: gradients are reduce-scattered and parameters gathered once a step
    (ZeRO-1, -2); 3: parameters are gathered before each chunk's forward and again before its backward (ZeRO-3, FSDP)."""
    buckets: int = 1
    """Parts in which a chunk's gradients leave, overlapped with its last backward."""
    replicas: str = ""
    """Axis along which the reduced gradients are all-reduced once more: the replicas of a group that shards (HSDP)."""


@dataclass(frozen=True)
class Plan:
    """A chain of blocks under directives. Each directive returns a new plan."""

    blocks: tuple[Block, ...]
    ranks: int = 1
    chunks: int = 1
    cuts: tuple[int, ...] = ()
    micro_batches: int = 1
    schedule: str = "gpipe"
    sharing: Sharing | None = None
    optimizer: float = 0.0
    loading: float | None = None

    @classmethod
    def of(cls, blocks: Sequence[Block], optimizer: float = 0.0, loading: float | None = None) -> Plan:
        """The plain chain on one rank; *optimizer* is the time of its step on each rank, *loading* that of the work on the host
        before anything else of the step (``None``: there is no such operation).
        """
        if not blocks:
            raise TopologyError("a plan needs at least one block")
        return cls(tuple(blocks), optimizer=optimizer, loading=loading)

    def place(self, ranks: int, chunks: int = 1, cuts: Sequence[int] = ()) -> Plan:
        """Lay the chain over *ranks* pipeline ranks of *chunks* stages each; *cuts* are the first blocks of stages 1, 2, …

        Without cuts the stages get equal numbers of blocks, the first ones one more where it does not come out even.
        """
        return replace(self, ranks=ranks, chunks=chunks, cuts=tuple(cuts))

    def split(self, micro_batches: int) -> Plan:
        """Split the batch."""
        return replace(self, micro_batches=micro_batches)

    def order(self, schedule: str) -> Plan:
        """Run the stages in the order of a named schedule."""
        return replace(self, schedule=schedule)

    def replicate(self, axis: str = "dp", buckets: int = 1, replicas: str = "") -> Plan:
        """Replicate along *axis*, and *replicas* if given: gradients are all-reduced in *buckets*, along one after the other."""
        return replace(self, sharing=Sharing(axis, 0, buckets, replicas))

    def shard(self, axis: str = "dp", level: Literal[1, 2, 3] = 3, buckets: int = 1, replicas: str = "") -> Plan:
        """Shard optimizer (1), gradients (2) or parameters too (3) along *axis*.

        Along *replicas* what each rank then holds of the gradients is all-reduced (HSDP).
        """
        return replace(self, sharing=Sharing(axis, level, buckets, replicas))

    def make_schedule(self) -> Schedule:
        """The schedule of this plan.

        :raises TopologyError: for sizes that it cannot run.
        """
        description = SCHEDULES.get(self.schedule)
        chunks = self.chunks if description is None or description.chunks != 2 else 2
        return make_schedule(self.schedule, self.ranks, self.micro_batches, chunks)

    def stages(self) -> tuple[tuple[Block, ...], ...]:
        """The blocks of each stage.

        :raises TopologyError: if there are fewer blocks than stages, or the cuts do not ascend.
        """
        schedule = self.make_schedule()
        count, n = schedule.stages, len(self.blocks)
        cuts = list(self.cuts)
        if not cuts:
            sizes = [n // count + (s < n % count) for s in range(count)]
            cuts = np.cumsum(sizes)[:-1].tolist()
        edges = [0, *cuts, n]
        if len(edges) != count + 1 or any(b <= a for a, b in pairwise(edges)):
            raise TopologyError(f"{n} blocks cannot be placed on {count} stages with cuts {cuts}")
        return tuple(self.blocks[a:b] for a, b in pairwise(edges))
