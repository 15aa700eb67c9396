"""What faults do to a job, in a form that adds up: slower resources, slower transfers, pauses, readings of counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from eroica.schemas.ranks import RankArray
from eroica.simulator.functions import Resource
from eroica.simulator.workload import Workload

__all__ = ["Effects", "LinkSlowdown", "Pauses", "Reading"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pauses:
    """Pauses of a rank's host, µs, shape (world, steps)."""

    what: str
    """As ``schemas.summaries.Pause``; empty for time that no pause is recorded of."""
    function: str
    """What the profiler shows: the leaf, and its stack."""
    stack: str
    us: FloatArray
    where: Literal["loading", "one", "spread", "optimizer"]
    """Before the step's work, in the middle of one computation, spread over all, or in the optimizer."""
    calls: int = 1
    """Calls in a step in which it happens."""


@dataclass(frozen=True)
class LinkSlowdown:
    """Transfers over some links take longer.

    A transfer is hit if it uses the ``medium`` and its group holds one of ``ranks`` (with ``pair``: one of ``ranks`` and one
    of ``pair``). A ring is as fast as its slowest link, so all members' transfers take ``factor`` (shape (steps,)) times as long.
    """

    medium: Literal["nvlink", "nic"]
    ranks: BoolArray
    factor: FloatArray
    pair: BoolArray | None = None
    culprit: BoolArray | None = None
    """Ranks whose own link is slow and steady, where it is one rank's; the others see bursts and gaps."""

    def hits(self, work: Workload, axis: str) -> BoolArray:
        """Shape (world,): whose group along *axis* (not ``pp``) is hit."""
        groups, group_of = work.groups[axis], work.group_of[axis]
        known = group_of >= 0
        held = np.zeros(len(groups), dtype=bool)
        held[group_of[known & self.ranks]] = True
        if self.pair is not None:
            other = np.zeros(len(groups), dtype=bool)
            other[group_of[known & self.pair]] = True
            held &= other
        hit = np.where(known, held[group_of], False)
        across = work.crossing[axis]
        return np.asarray(hit & (across if self.medium == "nic" else ~across), dtype=bool)

    def hits_pair(self, work: Workload, one: RankArray, other: RankArray) -> BoolArray:
        """Which of the transfers between ranks *one* and *other* (arrays of one shape) are hit."""
        if self.pair is None:
            held = self.ranks[one] | self.ranks[other]
        else:
            held = (self.ranks[one] & self.pair[other]) | (self.ranks[other] & self.pair[one])
        across = work.hosts.host_of[one] != work.hosts.host_of[other]
        return np.asarray(held & (across if self.medium == "nic" else ~across), dtype=bool)


@dataclass(frozen=True)
class Reading:
    """A counter that a fault moves on some ranks."""

    name: str
    ranks: BoolArray
    value: float
    relative: bool = False
    """``value`` is a factor, not the reading itself."""


@dataclass
class Effects:
    """All that is broken in a run."""

    world: int
    steps: int
    resources: dict[Resource, FloatArray] = field(default_factory=dict)
    """Resource → factor on the time of what is bound to it, shape (world, steps)."""
    clock: FloatArray | None = None
    """SM clock against the nominal one, shape (world, steps): what a sampler sees."""
    links: list[LinkSlowdown] = field(default_factory=list)
    pauses: list[Pauses] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    functions: dict[str, FloatArray] = field(default_factory=dict)
    """Function name → factor on its time alone, shape (world, steps)."""

    def slow(self, resource: Resource, factor: FloatArray) -> None:
        """Multiply the time of all that is bound to *resource*."""
        known = self.resources.get(resource)
        self.resources[resource] = factor if known is None else known * factor

    def steady(self) -> bool:
        """Whether every step is like the first."""
        varying = [*self.resources.values(), *self.functions.values(), *(p.us for p in self.pauses)]
        return all((a == a[:, :1]).all() for a in varying) and all((link.factor == link.factor[0]).all() for link in self.links)

    def one_step(self) -> Effects:
        """The first step alone."""
        return Effects(
            self.world,
            1,
            {r: a[:, :1] for r, a in self.resources.items()},
            None if self.clock is None else self.clock[:, :1],
            [replace(link, factor=link.factor[:1]) for link in self.links],
            [replace(pause, us=pause.us[:, :1]) for pause in self.pauses],
            list(self.readings),
            {name: a[:, :1] for name, a in self.functions.items()},
        )

    def merged(self, other: Effects) -> Effects:
        """Both at once."""
        out = Effects(
            self.world,
            self.steps,
            dict(self.resources),
            _product(self.clock, other.clock),
            [*self.links, *other.links],
            [*self.pauses, *other.pauses],
            [*self.readings, *other.readings],
            _products(self.functions, other.functions),
        )
        for resource, factor in other.resources.items():
            out.slow(resource, factor)
        return out


def _product(one: FloatArray | None, other: FloatArray | None) -> FloatArray | None:
    if one is None or other is None:
        return other if one is None else one
    return one * other


def _products(one: Mapping[str, FloatArray], other: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    out = dict(one)
    for name, factor in other.items():
        out[name] = out[name] * factor if name in out else factor
    return out
