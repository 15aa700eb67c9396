"""Lanes of a step graph: which ranks of a layout form one pipeline, and which lanes meet in a collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.schemas.ranks import RankArray
from eroica.topology.layout import RankLayout

__all__ = ["Lanes"]


@dataclass(frozen=True)
class Lanes:
    """``ranks[s, l, k]``: rank number k of lane l in pipeline rank s. Without merging, a lane is one pipeline of single ranks."""

    layout: RankLayout
    ranks: RankArray

    @classmethod
    def of(cls, layout: RankLayout, merge: Sequence[str] = ()) -> Lanes:
        """Lanes of *layout*; ranks that differ only along the axes *merge* (say ``tp``) move as one.

        :raises TopologyError: if the pipeline ranks hold different numbers of ranks.
        """
        table = next(iter(layout.grids.values())).coordinates()
        stage = table.get("pp", np.zeros(layout.world, dtype=np.int64))
        stages = int(stage.max()) + 1
        lane_axes = [a for a in table if a != "pp" and a not in merge]
        inner = [a for a in table if a in merge and a != "pp"]
        counts = np.bincount(stage, minlength=stages)
        members = int(np.prod([int(table[a].max()) + 1 for a in inner], dtype=np.int64))
        if (counts != counts[0]).any() or counts[0] % members:
            raise TopologyError("the pipeline ranks hold different numbers of ranks", where=layout.framework)
        keys = [table[a] for a in (*lane_axes, *inner)]
        order = np.lexsort([*keys[::-1], stage])
        return cls(layout, order.reshape(stages, -1, members).astype(np.int64))

    @property
    def count(self) -> int:
        """Number of lanes."""
        return int(self.ranks.shape[1])

    @property
    def stages(self) -> int:
        """Number of pipeline ranks."""
        return int(self.ranks.shape[0])

    def partition(self, kind: str) -> RankArray:
        """Shape (lanes,): lanes of one label meet in the groups of *kind*.

        :raises TopologyError: if the groups differ between pipeline ranks, so that no one label holds for all.
        """
        group = self.layout.groups(kind).index(self.layout.world)
        labels = [self._joined(group[self.ranks[s]]) for s in range(self.stages)]
        if any((other != labels[0]).any() for other in labels[1:]):
            raise TopologyError(f"the {kind} groups differ between pipeline stages", where=self.layout.framework)
        return labels[0]

    def _joined(self, group: RankArray) -> RankArray:
        """Smallest lane that each lane is joined with, through any of its members' groups."""
        label = np.arange(self.count, dtype=np.int64)
        _, compact = np.unique(group, return_inverse=True)
        compact = compact.reshape(group.shape)
        while True:
            lowest = np.full(int(compact.max()) + 1, self.count, dtype=np.int64)
            np.minimum.at(lowest, compact, label[:, None])
            joined = np.minimum(label, lowest[compact].min(axis=1))
            if (joined == label).all():
                return label
            label = joined
