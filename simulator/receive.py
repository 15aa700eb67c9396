"""What expert-parallel kernels count while they receive: how long each rank waited for each source."""

from __future__ import annotations

import numpy as np

from eroica.schemas.ranks import RankArray, format_ranks
from eroica.schemas.summaries import MAX_SOURCES, ReceiveWaits
from eroica.simulator.effects import Effects, FloatArray
from eroica.simulator.engine import Engine, Run

__all__ = ["ReceiveMaker"]

AXIS = "ep"


class ReceiveMaker:
    """Makes the receive waits of the ranks of one run.

    A source's data are there a transfer after it came; who comes later than that waits for nothing. Members of an exchange end
    together, so how much later one came than another is how much shorter its execution is.
    """

    def __init__(self, engine: Engine, run: Run, effects: Effects) -> None:
        self._work, self._run, self._effects = engine.work, run, effects
        work, cluster = engine.work, engine.work.scenario.cluster
        graph = work.step.graph
        stages = range(work.rank_of.shape[0])
        ops = [op for op, traffic in work.traffic.items() if traffic.axis == AXIS]
        self._ops = [np.array([op for op in ops if graph.ops[op].stage == stage], dtype=np.int64) for stage in stages]
        self._near = min(1.0, cluster.nic_gbytes / cluster.nvlink_gbytes)
        self._hits = [link.hits(work, AXIS) for link in effects.links] if AXIS in work.groups else []

    def waits(self, rank: int, ks: RankArray) -> list[ReceiveWaits]:
        """Those of *rank* in steps *ks*, reported once a step; none without an exchange."""
        work = self._work
        ops = self._ops[int(work.stage_of[rank])]
        group = int(work.group_of[AXIS][rank]) if AXIS in work.groups else -1
        if ops.size == 0 or group < 0:
            return []
        groups = work.groups[AXIS]
        members = np.sort(groups.members[groups.offsets[group] : groups.offsets[group + 1]])
        if not 2 <= members.size <= MAX_SOURCES:
            return []
        index = np.ix_(ops, work.lane_of[members], ks)
        lasted, moved = self._run.duration[index].astype(np.float64), self._run.own[index].astype(np.float64)
        me = int(np.searchsorted(members, rank))
        later = lasted[:, me, None, :] - lasted
        wait = np.maximum(later + self._transfer(moved[:, me, None, :], rank, members, ks), 0.0).sum(axis=0)
        wait[me] = 0.0
        return [
            ReceiveWaits(
                group=AXIS,
                sources=format_ranks(members),
                count=int(ks.size),
                total_us=wait.sum(axis=1).round(1).tolist(),
                max_us=wait.max(axis=1).round(1).tolist(),
            )
        ]

    def _transfer(self, moved: FloatArray, rank: int, members: RankArray, ks: RankArray) -> FloatArray:
        """How long each source's data take to *rank*, shape (ops, members, steps): what all took, less what slows down others."""
        work = self._work
        host_of = work.hosts.host_of
        near = bool(work.crossing[AXIS][rank]) & (host_of[members] == host_of[rank])
        out: FloatArray = moved * np.where(near, self._near, 1.0)[None, :, None]
        for link, hit in zip(self._effects.links, self._hits, strict=True):
            if not hit[rank]:
                continue
            struck = link.hits_pair(work, np.full(members.size, rank), members)
            out = out * np.where(struck[:, None], 1.0, 1.0 / link.factor[None, ks])[None]
        return out
