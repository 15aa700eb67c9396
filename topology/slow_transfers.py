"""Which transfers of a recorded job are slow, and what they have in common: a link of two workers, one worker's, one group's.

Communicators that do the same are compared with each other: transfers between stages with those of other stages and replicas,
a stage's collectives with those of the other stages. The smallest place that all slow ones go through is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from eroica.topology.stepgraph import FloatArray, StepGraph
from eroica.topology.timeline import COMMUNICATION, POINT_TO_POINT, Meeting

__all__ = ["NOWHERE", "Communicators", "SlowPlace", "Worker", "place_of"]

Worker = tuple[int, int]
"""(lane, stage)"""
BoolArray = npt.NDArray[np.bool_]

FAR_LINK = 1.5
"""Transfers of a communicator against the others' from which it is slow."""
STEPS = 0.6
"""Share of the steps in which it must be."""
AT_ENDS = 5.0
"""First and last stages hold embeddings as well, so that their collectives may move more: that explains no more than this."""
MIN_ALIKE = 3
"""Fewer communicators that do the same do not tell which of them is slow."""
MOST_OF = 0.75
"""Share of a replica's, or a boundary's, links from which it is all of them."""
FEW = 3
"""At most so many places are named one by one …"""
FEW_SHARE = 0.25
"""… and only if no more than this share of the communicators is slow."""
AS_FAR = 0.5
"""Communicators count as slow beside the slowest from this share of the logarithm of its ratio on."""
EACH = 200
"""So many communicators are each held against the others alone; of more the median of all is as good."""


@dataclass(frozen=True)
class SlowPlace:
    """What slow communicators have in common. All of it empty: nothing narrower than the fabric."""

    workers: tuple[Worker, ...] = ()
    """Each one's own link."""
    pairs: tuple[tuple[Worker, Worker], ...] = ()
    """Links between two."""
    group: tuple[Worker, ...] = ()
    """Members of one communicator, or of one replica whose links are all slow."""
    stages: tuple[int, ...] = ()
    """The stage, or the two between which, the links of all replicas are slow."""

    @property
    def known(self) -> bool:
        """Whether it is narrower than the fabric."""
        return bool(self.workers or self.pairs or self.group or self.stages)


NOWHERE = SlowPlace()


@dataclass(frozen=True)
class _One:
    family: str
    members: frozenset[Worker]
    lane: int
    """−1 where it joins all lanes."""
    ops: list[int] = field(default_factory=list)


class Communicators:
    """All communicators of a step that are not alone of their kind, and how slow each is."""

    def __init__(self, graph: StepGraph, meetings: Sequence[Meeting], times: FloatArray) -> None:
        self.graph, self.stages = graph, int(graph.stage.max()) + 1
        every: dict[tuple[str, tuple[int, ...], int], _One] = {}
        alone = (Meeting((i,), across=False) for i, o in enumerate(graph.ops) if o.kind in COMMUNICATION and not graph.meets[i])
        for meeting in (*meetings, *alone):
            for one_key, one in self._of(meeting):
                every.setdefault(one_key, one).ops.extend(meeting.members)
        self.all = list(every.values())
        took = [self._took(one, times) for one in self.all]
        self.ratio = np.ones((len(self.all), times.shape[2]))
        """Shape (communicators, steps): mean transfer against that of those that do the same."""
        self.excess = np.zeros(len(self.all))
        """Shape (communicators,): what it takes longer than they, in a step at the mean."""
        for family in {one.family for one in self.all}:
            mine = [i for i, one in enumerate(self.all) if one.family == family]
            if len(mine) < MIN_ALIKE:
                continue
            each = np.stack([took[i] for i in mine])
            usual = _usual(each)
            self.ratio[mine] = np.divide(each, usual, out=np.ones_like(each), where=usual > 0)
            count = np.array([len(self.all[i].ops) for i in mine])
            self.excess[mine] = (each - usual).mean(axis=1) * count
        agree = (self.ratio >= FAR_LINK).mean(axis=1)
        self.middle: FloatArray = np.median(self.ratio, axis=1)
        ends = np.array([self._at_end(one) for one in self.all], dtype=bool)
        least = np.where(ends, AT_ENDS, FAR_LINK)
        slow = (self.middle >= least) & (agree >= STEPS) & (self.excess > 0)
        order = np.argsort(-self.excess, kind="stable")
        self.slow: list[int] = [int(i) for i in order if slow[i]]
        """Numbers of the slow ones, those that cost most first."""

    def agreement(self, some: Sequence[int]) -> float:
        """Share of the steps in which the least steady of *some* is slow."""
        return float((self.ratio[list(some)] >= FAR_LINK).mean(axis=1).min())

    def mask(self, some: Sequence[int]) -> BoolArray:
        """Operations of *some*, shape (ops, lanes, 1)."""
        out = np.zeros((len(self.graph.ops), self.graph.lanes, 1), dtype=bool)
        for i in some:
            one = self.all[i]
            out[one.ops, slice(None) if one.lane < 0 else one.lane] = True
        return out

    def at_fault(self, enough: Callable[[Sequence[int]], bool]) -> tuple[list[int], SlowPlace]:
        """The fewest slow ones that are *enough*, with those nearly as slow, and what they have in common.

        None, if all are not enough or have nothing in common.
        """
        if not self.slow or not enough(self.slow):
            return [], NOWHERE
        low, high = 1, len(self.slow)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(self.slow[:middle]) else (middle + 1, high)
        for some in (self.far(self.slow[:low]), self.slow[:low]):
            if (place := place_of(self, some)).known:
                return some, place
        return [], NOWHERE

    def far(self, worst: Sequence[int]) -> list[int]:
        """*worst*, and all that are nearly as slow as the slowest of them."""
        limit = AS_FAR * float(np.log(self.middle[list(worst)].max()))
        chosen = set(worst)
        return [i for i in self.slow if i in chosen or np.log(self.middle[i]) >= limit]

    def _of(self, meeting: Meeting) -> list[tuple[tuple[str, tuple[int, ...], int], _One]]:
        graph = self.graph
        kind = graph.kinds[graph.kind[meeting.members[0]]]
        stages = tuple(int(graph.stage[i]) for i in meeting.members)
        if meeting.across:
            members = frozenset((d, s) for d in range(graph.lanes) for s in stages)
            return [((kind, stages, -1), _One(kind, members, -1))] if len(members) > 1 else []
        sent = kind in POINT_TO_POINT
        if len(set(stages)) < 2 and sent:
            return []  # it was listed, but had nobody to go to
        family = "between stages" if sent else kind
        # A send stands first in its pair: from here to there is another link than back.
        out = []
        for d in range(graph.lanes):
            key = (kind if sent else family, stages, d)
            out.append((key, _One(family, frozenset((d, s) for s in stages), d)))
        return out

    def _took(self, one: _One, times: FloatArray) -> FloatArray:
        """Mean time of its transfers in each step: whatever its lanes and members show, all end together."""
        lanes = slice(None) if one.lane < 0 else slice(one.lane, one.lane + 1)
        return np.asarray(np.median(times[one.ops, lanes], axis=1).mean(axis=0))

    def _at_end(self, one: _One) -> bool:
        return one.lane < 0 and bool({s for _, s in one.members} & {0, self.stages - 1})


def _usual(each: FloatArray) -> FloatArray:
    """What the others take, shape of *each*: (communicators, steps)."""
    if each.shape[0] > EACH:
        return np.broadcast_to(np.median(each, axis=0), each.shape)
    return np.stack([np.median(np.delete(each, i, axis=0), axis=0) for i in range(each.shape[0])])


def place_of(communicators: Communicators, slow: Sequence[int]) -> SlowPlace:
    """The smallest place that all of *slow* go through."""
    members = [communicators.all[i].members for i in slow]
    common = frozenset.intersection(*members)
    if len(common) == 1:
        return SlowPlace(workers=tuple(common))
    if len(common) == 2:
        return SlowPlace(pairs=(_pair(common),))
    if common:
        return SlowPlace(group=tuple(sorted(common)))
    if all(communicators.all[i].lane >= 0 for i in slow) and (place := _line_of(communicators, slow)) is not None:
        return place
    if len(slow) <= FEW_SHARE * len(communicators.all):
        return _covering(members)
    return SlowPlace()


def _line_of(communicators: Communicators, slow: Sequence[int]) -> SlowPlace | None:
    """All links of one replica, or all links between two stages."""
    of = communicators.all
    linking = [one for one in of if one.family == "between stages"]
    lanes = {of[i].lane for i in slow}
    if len(lanes) == 1 and communicators.graph.lanes > 1:
        lane = lanes.pop()
        if len(slow) >= MOST_OF * sum(one.lane == lane for one in linking):
            return SlowPlace(group=tuple((lane, s) for s in range(communicators.stages)))
    shared = set.intersection(*({s for _, s in of[i].members} for i in slow))
    if shared and len(lanes) >= MOST_OF * communicators.graph.lanes:
        return SlowPlace(stages=tuple(sorted(shared)))
    return None


def _covering(members: list[frozenset[Worker]]) -> SlowPlace:
    """A few workers and pairs through which all slow communicators go; nothing if it takes many."""
    left, workers, pairs = list(members), list[Worker](), set[tuple[Worker, Worker]]()
    while left:
        count: dict[Worker, int] = {}
        for one in left:
            for w in one:
                count[w] = count.get(w, 0) + 1
        best = max(sorted(count), key=lambda w: count[w])
        if count[best] > 1:
            through = [one for one in left if best in one]
            both = frozenset.intersection(*through)
            if len(both) == 2:
                pairs.add(_pair(both))
            else:
                workers.append(best)
            left = [one for one in left if best not in one]
        elif len(left[0]) == 2:
            pairs.add(_pair(left.pop(0)))
        else:
            return SlowPlace()
    if len(workers) + len(pairs) > FEW:
        return SlowPlace()
    return SlowPlace(workers=tuple(sorted(workers)), pairs=tuple(sorted(pairs)))


def _pair(workers: frozenset[Worker]) -> tuple[Worker, Worker]:
    one, two = sorted(workers)
    return one, two
