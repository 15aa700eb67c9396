"""What the causes of a timeline are called, for people."""

from __future__ import annotations

from dataclasses import dataclass

from eroica.schemas.ranks import RankArray, format_ranks, say_ranks
from eroica.schemas.wording import say_count
from eroica.topology.mended import MendedCause
from eroica.topology.slow_transfers import Worker
from eroica.topology.timeline import POINT_TO_POINT, SYNCHRONISED
from eroica.topology.timeline_ranks import Places

__all__ = ["Words"]

MAX_NAMED = 5


@dataclass(frozen=True)
class Words:
    """Names of workers, replicas and steps of one timeline."""

    who: Places
    steps: RankArray

    def ranks(self, workers: tuple[Worker, ...]) -> list[int]:
        """Global ranks of *workers*, as far as they are told."""
        first = [int(self.who.rank_of[d, s]) for d, s in workers]
        return sorted(r + i for r in first if r >= 0 for i in range(self.who.width))

    def lane(self, lane: int) -> int:
        """Data-parallel rank of a lane."""
        return int(self.who.lanes[lane])

    def place(self, cause: MendedCause) -> str:
        """Where *cause* is: workers, links, stage, replica; ``all`` if nowhere in particular."""
        where, dp = cause.where, "dp "
        out = []
        if cause.workers:
            out = [self._worker(w) for w in cause.workers[:MAX_NAMED]]
        out += [f"{self._worker(a)} to {self._worker(b)}" for a, b in where.pairs]
        if where.group:
            stages, lanes = {s for _, s in where.group}, {d for d, _ in where.group}
            out = [f"the replicas of stage {format_ranks(stages)}" if len(lanes) > 1 else dp + self._lanes(lanes)]
        elif where.stages:
            out = [self._between(where.stages)]
        elif cause.stage >= 0:
            out = [f"stage {cause.stage}"]
        elif cause.replicas:
            out = [dp + self._lanes(set(cause.replicas))]
        return ", ".join(out) + self._when(cause) if out else "all"

    def said(self, cause: MendedCause) -> str:
        """What is wrong, as a clause."""
        place, times = self.place(cause), f"{cause.ratio:.2f} times"
        who = f"{say_ranks(format_ranks(self.ranks(cause.workers)), 60)}, {place}," if cause.workers else place
        if cause.kind == "worker":
            one = len(cause.workers) == 1
            long = f"take{'s' if one else ''} long for {', '.join(cause.kinds)}"
            does = long if cause.kinds else f"compute{'s' if one else ''} slowly"
            return f"{who} {does} ({times} its peers)"
        if cause.kind == "pipeline_stage":
            return f"{place} has too much work in every replica ({times} its peers)"
        if cause.kind == "software_pause":
            if not cause.workers:
                return "garbage collection holds the step up"
            what = "a pause" if len(cause.steps) == len(cause.workers) == 1 else "pauses"
            return f"{who} computed {times} as long as usual, and not in other steps: {what}, no lasting fault"
        if cause.kind == "data_imbalance":
            return self._data(cause, times)
        return self._transfers(cause, who, times)

    def _data(self, cause: MendedCause, times: str) -> str:
        if not cause.replicas:
            return "micro-batches are of unequal length"
        if cause.steps:
            return f"micro-batches of {self.place(cause)} are longer than the others"
        stages, several = self.who.rank_of.shape[1], len(cause.replicas) > 1
        workers = say_count(stages * len(cause.replicas), "slow worker")
        return (
            f"{self.place(cause)} compute{'' if several else 's'} {times} as long as the other replicas in each of {stages} "
            f"stages: longer sequences, or a host that they share, are likelier than {workers}"
        )

    def _transfers(self, cause: MendedCause, who: str, times: str) -> str:
        where = cause.where
        much = f"({times} those that do the same)"
        if where.pairs:
            named = [f"{self._ranked(a)} to {self._ranked(b)}" for a, b in where.pairs] + [self._ranked(w) for w in cause.workers]
            links, are = ("link", "is") if len(named) == 1 else ("links", "are")
            return f"the {links} of {' and of '.join(named)} {are} slow{self._when(cause)} {much}"
        if cause.workers:
            return f"{who} {'sends and receives' if len(cause.workers) == 1 else 'send and receive'} slowly {much}"
        if where.group and len({s for _, s in where.group}) == 1:
            others = "those of other stages are not: a link of theirs, or more to move"
            return f"the collectives of {self.place(cause)} are slow {much}, {others}"
        if where.group:
            return f"all transfers of {self.place(cause)} are slow {much}, those of other replicas are not"
        if where.stages:
            return f"transfers {self._between(where.stages)} are slow in all replicas{self._when(cause)} {much}"
        which = {POINT_TO_POINT: " between stages", SYNCHRONISED: " among replicas"}.get(cause.kinds, "")
        return f"transfers{which} are slow{self._when(cause)}"

    def _ranked(self, worker: Worker) -> str:
        return f"{say_ranks(format_ranks(self.ranks((worker,))), 40)} {self._worker(worker)}"

    @staticmethod
    def _between(stages: tuple[int, ...]) -> str:
        return f"between stages {stages[0]} and {stages[1]}" if len(stages) == 2 else f"of stage {stages[0]}"

    def _worker(self, worker: Worker) -> str:
        return f"(dp {self.lane(worker[0])}, stage {worker[1]})"

    def _lanes(self, lanes: set[int]) -> str:
        return format_ranks(self.lane(d) for d in sorted(lanes))

    def _when(self, cause: MendedCause) -> str:
        if not cause.steps:
            return ""
        numbers = [int(self.steps[k]) for k in cause.steps]
        some = ", ".join(map(str, numbers[:MAX_NAMED])) + (", …" if len(numbers) > MAX_NAMED else "")
        return f" in step{'s' if len(numbers) > 1 else ''} {some}"
