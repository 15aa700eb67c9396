"""Hosts and rails: which ranks share a machine, and which share a network plane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.schemas.errors import TopologyError
from eroica.schemas.ranks import RankArray
from eroica.topology.grid import Groups

__all__ = ["Hosts"]


@dataclass(frozen=True)
class Hosts:
    """Where ranks run. ``host_of`` and ``rail_of`` have shape (world,), -1 where unknown; ``names[host_of[r]]`` is the
    host of rank r.

    A rail is the set of ranks with one local rank: in rail-optimised fabrics they share a leaf switch.
    """

    names: tuple[str, ...]
    host_of: RankArray
    rail_of: RankArray

    @classmethod
    def consecutive(cls, world: int, ranks_per_host: int, name: str = "host{}") -> Hosts:
        """Ranks filled host by host, as torchrun and Slurm's block distribution do.

        :raises TopologyError: for a host of less than one rank.
        """
        if ranks_per_host < 1:
            raise TopologyError(f"{ranks_per_host} ranks a host is impossible", do="give at least 1")
        ranks = np.arange(world, dtype=np.int64)
        count = -(-world // ranks_per_host)
        return cls(tuple(name.format(i) for i in range(count)), ranks // ranks_per_host, ranks % ranks_per_host)

    def by_host(self) -> Groups:
        """Ranks of each host, in the order of the hosts that have any."""
        return _split(self.host_of)

    def crosses(self, groups: Groups) -> npt.NDArray[np.bool_]:
        """Shape (groups,): whether a group's members sit on more than one host, so that its traffic takes the
        network.
        """
        hosts = self.host_of[groups.members]
        starts = groups.offsets[:-1]
        return np.asarray(np.minimum.reduceat(hosts, starts) != np.maximum.reduceat(hosts, starts))


def _split(label: RankArray) -> Groups:
    known = np.flatnonzero(label >= 0)
    order = known[np.argsort(label[known], kind="stable")]
    cuts = np.flatnonzero(np.diff(label[order]) != 0) + 1
    ends = [order.size] if order.size else []
    return Groups(order, np.concatenate(([0], cuts, ends)).astype(np.int64))
