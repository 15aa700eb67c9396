"""Ranks on a grid: coordinates ↔ ranks and the groups along any axes, vectorised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.schemas.ranks import RankArray

__all__ = ["Grid", "Groups"]


@dataclass(frozen=True, slots=True)
class Groups:
    """Disjoint groups of ranks in compressed rows: group ``i`` is ``members[offsets[i]:offsets[i + 1]]``, in its own
    order.
    """

    members: RankArray
    offsets: RankArray

    @classmethod
    def uniform(cls, table: RankArray) -> Groups:
        """Groups of one size from a table of shape (groups, size)."""
        count, size = table.shape
        return cls(np.ascontiguousarray(table).reshape(-1), np.arange(count + 1, dtype=np.int64) * size)

    @classmethod
    def of(cls, groups: Sequence[RankArray]) -> Groups:
        """Groups of any sizes, in the order given."""
        sizes = np.fromiter((g.size for g in groups), dtype=np.int64, count=len(groups))
        members = np.concatenate(groups) if groups else np.empty(0, dtype=np.int64)
        return cls(members, np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))

    def __len__(self) -> int:
        return int(self.offsets.size - 1)

    def __iter__(self) -> Iterator[RankArray]:
        for i in range(len(self)):
            yield self.members[self.offsets[i] : self.offsets[i + 1]]

    def tolist(self) -> list[list[int]]:
        """As plain lists, for JSON."""
        flat, cuts = self.members.tolist(), self.offsets.tolist()
        return [flat[a:b] for a, b in pairwise(cuts)]

    def reordered(self, order: RankArray) -> Groups:
        """The groups number ``order[0]``, ``order[1]``, …"""
        sizes = np.diff(self.offsets)[order]
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        picks = np.repeat(self.offsets[:-1][order] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return Groups(self.members[picks], offsets)

    def largest(self) -> int:
        """Size of the largest group; 0 if there is none."""
        return int(np.diff(self.offsets).max(initial=0))

    def index(self, world: int) -> RankArray:
        """Shape (world,): the group each rank is in, -1 for a rank that is in none."""
        out = np.full(world, -1, dtype=np.int64)
        out[self.members] = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        return out

    def position(self, world: int) -> RankArray:
        """Shape (world,): each rank's place within its group, -1 for a rank that is in none."""
        out = np.full(world, -1, dtype=np.int64)
        out[self.members] = np.arange(self.members.size) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return out

    def leaders(self, world: int) -> RankArray:
        """Shape (world,): smallest member of each rank's group, -1 for a rank that is in none.

        Two families of groups are the same partition exactly if their leaders are equal, whatever the order within.
        """
        out = np.full(world, -1, dtype=np.int64)
        if self.members.size:
            sizes = np.diff(self.offsets)
            full = sizes > 0
            out[self.members] = np.repeat(np.minimum.reduceat(self.members, self.offsets[:-1][full]), sizes[full])
        return out

    def containing(self, rank: int) -> RankArray:
        """The group of *rank*; empty if it is in none."""
        at = np.flatnonzero(self.members == rank)
        if at.size == 0:
            return np.empty(0, dtype=np.int64)
        i = int(np.searchsorted(self.offsets, at[0], side="right")) - 1
        return self.members[self.offsets[i] : self.offsets[i + 1]]


@dataclass(frozen=True, slots=True)
class Grid:
    """A mixed-radix numbering of ranks.

    ``axes`` are in the order in which groups are listed, the last varying fastest; ``strides`` say how far apart two
    ranks are that differ by one along an axis. Invariant: every rank of ``0..world-1`` has exactly one coordinate
    tuple.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def nested(cls, sizes: Mapping[str, int], *, listed: Sequence[str] = ()) -> Grid:
        """A grid whose last axis of *sizes* varies fastest with the rank.

        :param listed: order of the axes in which groups are listed, where a framework lists them in another than that
        of the ranks.
        :raises TopologyError: for a size below one.
        """
        for axis, size in sizes.items():
            if size < 1:
                raise TopologyError(f"size {size} of axis {axis!r} is below one", do="give every axis a size of at least 1")
        strides: dict[str, int] = {}
        stride = 1
        for axis in reversed(list(sizes)):
            strides[axis] = stride
            stride *= sizes[axis]
        order = tuple(listed) or tuple(sizes)
        return cls(order, tuple(sizes[a] for a in order), tuple(strides[a] for a in order))

    @property
    def world(self) -> int:
        """Number of ranks."""
        return int(np.prod(self.sizes, dtype=np.int64))

    def coordinates(self, ranks: RankArray | None = None) -> dict[str, RankArray]:
        """Coordinates of *ranks* (all by default): axis → int64 array of the same shape."""
        r = np.arange(self.world, dtype=np.int64) if ranks is None else np.asarray(ranks, dtype=np.int64)
        return {a: (r // stride) % size for a, size, stride in zip(self.axes, self.sizes, self.strides, strict=True)}

    def ranks(self, coordinates: Mapping[str, RankArray | int]) -> RankArray:
        """Ranks at *coordinates* (arrays of one shape, or numbers; a missing axis counts as 0).

        :raises TopologyError: for an axis that the grid lacks or a coordinate outside of its axis.
        """
        total = np.zeros((), dtype=np.int64)
        for axis, value in coordinates.items():
            if axis not in self.axes:
                raise TopologyError(f"there is no axis {axis!r}", do=f"the axes are {', '.join(self.axes)}")
            i = self.axes.index(axis)
            array = np.asarray(value, dtype=np.int64)
            if array.size and (array.min() < 0 or array.max() >= self.sizes[i]):
                raise TopologyError(f"a coordinate along {axis!r} is outside of 0..{self.sizes[i] - 1}")
            total = total + array * self.strides[i]
        return np.asarray(total, dtype=np.int64)

    def groups(self, along: Sequence[str]) -> Groups:
        """The groups of ranks that differ only along the axes *along*; members and groups in the order of ``axes``."""
        inside = [i for i, a in enumerate(self.axes) if a in along]
        outside = [i for i in range(len(self.axes)) if i not in inside]
        first = self._walk(outside)
        table = first[:, None] + self._walk(inside)[None, :]
        return Groups.uniform(table)

    def _walk(self, which: Sequence[int]) -> RankArray:
        """Rank offsets of all coordinate tuples of the axes *which*, the last fastest."""
        out = np.zeros(1, dtype=np.int64)
        for i in which:
            out = (out[:, None] + np.arange(self.sizes[i], dtype=np.int64)[None, :] * self.strides[i]).reshape(-1)
        return out
