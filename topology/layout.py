"""The layout of a job: which rank sits where in every parallel dimension, and all groups that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.schemas.ranks import RankArray
from eroica.topology.grid import Grid, Groups

__all__ = ["CoordinateTable", "Kind", "RankLayout"]


MAX_STAGES_PER_RANK = 1_024
"""More than the layers of any model."""


@dataclass(frozen=True, slots=True)
class CoordinateTable:
    """Ranks at explicit coordinates, for layouts that no grid describes. Axis → int64 array of shape (world,)."""

    table: Mapping[str, RankArray]

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes in the order given."""
        return tuple(self.table)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return int(next(iter(self.table.values())).size) if self.table else 0

    def coordinates(self, ranks: RankArray | None = None) -> dict[str, RankArray]:
        """Coordinates of *ranks* (all by default)."""
        return {a: c if ranks is None else c[ranks] for a, c in self.table.items()}

    def groups(self, along: Sequence[str]) -> Groups:
        """The groups of ranks that agree in all axes but *along*; members by their coordinates, groups by theirs."""
        outside = [a for a in self.table if a not in along]
        inside = [a for a in self.table if a in along]
        keys = [self.table[a] for a in (*outside, *inside)]
        order = np.lexsort(keys[::-1]) if keys else np.arange(self.world)
        change = np.zeros(max(self.world - 1, 0), dtype=bool)
        for a in outside:
            change |= np.diff(self.table[a][order]) != 0
        cuts = np.flatnonzero(change) + 1
        offsets = np.concatenate(([0], cuts, [self.world])).astype(np.int64)
        return Groups(order.astype(np.int64), offsets)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of group: the ranks that differ only along ``axes`` of ``grid``."""

    grid: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class RankLayout:
    """Where every rank of a job sits.

    A job may be numbered by more than one grid at once (Megatron: dense layers and expert layers), so a rank has
    coordinates in each. ``stages_per_rank`` > 1 means that a pipeline rank holds several model chunks (virtual stages),
    placed by ``placement``: ``loop`` (rank p holds p, p+PP, …) or ``v`` (rank p holds p and 2·PP−1−p).
    """

    framework: str
    grids: Mapping[str, Grid | CoordinateTable]
    kinds: Mapping[str, Kind]
    sizes: Mapping[str, int] = field(default_factory=dict)
    order: str = ""
    stages_per_rank: int = 1
    placement: str = "loop"

    def __post_init__(self) -> None:
        worlds = {name: grid.world for name, grid in self.grids.items()}
        if len(set(worlds.values())) > 1:
            raise TopologyError(f"the grids number different worlds: {worlds}", where=self.framework)
        if not 1 <= self.stages_per_rank <= MAX_STAGES_PER_RANK:
            raise TopologyError(
                f"{self.stages_per_rank} stages a rank are impossible", where=self.framework, do=f"use 1 to {MAX_STAGES_PER_RANK}"
            )
        if self.placement not in ("loop", "v"):
            raise TopologyError(f"{self.placement!r} is not a placement of stages", do="use 'loop' or 'v'")
        if self.placement == "v" and self.stages_per_rank != 2:
            raise TopologyError("a V placement holds exactly two stages a rank", where=self.framework)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return next(iter(self.grids.values())).world

    def groups(self, kind: str) -> Groups:
        """All groups of *kind*.

        :raises TopologyError: if the layout has no such kind.
        """
        if kind not in self.kinds:
            raise TopologyError(f"there is no group kind {kind!r}", do=f"the kinds are {', '.join(self.kinds)}")
        k = self.kinds[kind]
        return self.grids[k.grid].groups(k.axes)

    def coordinates(self, ranks: RankArray | None = None) -> dict[str, RankArray]:
        """Coordinates of *ranks* (all by default) in all grids: axis → int64 array; an axis of two grids comes from the
        first.

        :raises TopologyError: for a rank outside of the world.
        """
        if ranks is not None and ranks.size and (ranks.min() < 0 or ranks.max() >= self.world):
            raise TopologyError(f"a rank is outside of 0..{self.world - 1}", where=self.framework)
        out: dict[str, RankArray] = {}
        for grid in self.grids.values():
            for axis, values in grid.coordinates(ranks).items():
                out.setdefault(axis, values)
        return out

    def peers(self, rank: int, same: Sequence[str] = ("pp",)) -> RankArray:
        """Ranks in the role of *rank*: equal in the axes *same* (those that the layout has), *rank* itself included,
        ascending.
        """
        table = self.coordinates()
        mine = np.ones(self.world, dtype=bool)
        self.coordinates(np.array([rank]))
        for axis in same:
            if axis in table:
                mine &= table[axis] == table[axis][rank]
        return np.flatnonzero(mine)

    def stages(self, ranks: RankArray) -> RankArray:
        """Global pipeline stages held by *ranks*: shape (n, stages_per_rank), in the order in which a micro-batch
        visits them.
        """
        table = self.coordinates(ranks)
        p = table.get("pp", np.zeros_like(ranks))
        pp = self.pipeline_size
        if self.placement == "v":
            return np.stack([p, 2 * pp - 1 - p], axis=1)
        return p[:, None] + pp * np.arange(self.stages_per_rank, dtype=np.int64)[None, :]

    @property
    def pipeline_size(self) -> int:
        """Number of pipeline ranks; 1 without a pipeline."""
        pipe = self.coordinates().get("pp")
        return int(pipe.max()) + 1 if pipe is not None and pipe.size else 1
