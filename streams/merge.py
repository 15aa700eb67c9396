"""The shards of one launch of a job, merged into whole steps in their order."""

from __future__ import annotations

from dataclasses import dataclass, field

from eroica.schemas.errors import InvalidInput
from eroica.schemas.iterations import StepPartial
from eroica.streams.eventclock import EventClock

MAX_PENDING = 8_192
"""Steps a shard may be ahead of another; beyond, the one behind no longer holds the job back."""
MAX_SHARDS_PER_JOB = 16_384
"""A job of more shards is refused."""
SHARD_SILENCE_FACTOR = 3
"""A silent shard is given this many times ``silence_ms``: its detect process may be moving to another machine."""


@dataclass(frozen=True, slots=True)
class JobStep:
    """A step of the whole job."""

    step: int
    mean_us: int
    """Mean over the ranks that reported it."""
    max_us: int
    max_rank: int
    ranks: int
    """Ranks that reported it."""
    event_time_us: int
    marked: bool


@dataclass(frozen=True, slots=True)
class Idleness:
    """Every rank that has not ended has done nothing for ``idle_us``, since ``since_us``."""

    idle_us: int
    since_us: int
    rank: int
    last_event: str


@dataclass(slots=True)
class _Shard:
    heard_us: int
    known: bool = False
    closed: int = -1
    event_time_us: int = 0
    idle_us: int = 0
    idle_rank: int = -1
    last_event: str = ""
    ended: bool = False
    absent: bool = False
    some_present: bool = True
    pending: dict[int, tuple[int, float, int, int, int]] = field(default_factory=dict)
    """Step → (ranks, mean, max, max rank, event time)."""
    marked: set[int] = field(default_factory=set)


class ShardMerge:
    """Turns partials of any interleaving of shards into one ascending sequence of steps.

    A step is passed on once every shard that counts has closed it, so what follows does not depend on how partitions
    interleave. A shard stops counting when it has ended, or when it is silent for ``SHARD_SILENCE_FACTOR ×
    silence_ms`` of the others' event time.
    """

    def __init__(self, first: StepPartial, silence_us: int) -> None:
        self.now_us = first.event_time_us
        self._silence_us = silence_us * SHARD_SILENCE_FACTOR
        count = -(-first.world_size // first.ranks_per_shard)
        self._clock = EventClock(self.now_us, self._silence_us // 2, count)
        self._shards = [_Shard(heard_us=self.now_us) for _ in range(count)]
        self._next = -1
        self.held = count
        """Shards, and their steps that wait for other shards: what memory goes by."""

    def feed(self, partial: StepPartial) -> list[JobStep]:
        """Take in a partial of a valid shard; returns the steps that are whole now, ascending."""
        at_us = self._hear(partial)
        shard = self._shards[partial.shard]
        pending = shard.pending
        for i, (count, mean) in enumerate(zip(partial.count, partial.mean_us, strict=True)):
            step = partial.first_step + i
            if step >= self._next and step not in pending and len(pending) < MAX_PENDING:
                pending[step] = (count, mean, partial.max_us[i], partial.max_rank[i], at_us)
                self.held += 1
        if partial.count:
            shard.closed = max(shard.closed, partial.first_step + len(partial.count) - 1)
        shard.marked.update(step for step in partial.marked if step >= self._next)
        return self._whole_steps()

    def idleness(self) -> Idleness | None:
        """How long the whole job has stood still; ``None`` if it has ended, a shard has not been heard of, or nobody is
        left to ask.
        """
        waiting = [s for s in self._shards if not s.ended]
        if not waiting or not all(s.known for s in waiting) or not any(s.some_present and not s.absent for s in waiting):
            return None
        # An absent shard stood still at least since it was last heard.
        ages = [s.idle_us + (self.now_us - s.heard_us if s.absent else 0) for s in waiting]
        oldest = max(range(len(waiting)), key=lambda i: (ages[i], -i))
        return Idleness(
            idle_us=min(ages),
            since_us=max(s.event_time_us - s.idle_us for s in waiting),
            rank=waiting[oldest].idle_rank,
            last_event=waiting[oldest].last_event,
        )

    def _hear(self, partial: StepPartial) -> int:
        """Take in who speaks and how idle it is; returns the partial's time in the job's frame."""
        heard = self._clock.hear(partial.shard, partial.event_time_us)
        leap = heard.leap_us
        if leap:
            for other in self._shards:
                other.heard_us += leap
                other.event_time_us += leap
        self.now_us = self._clock.now_us
        shard = self._shards[partial.shard]
        shard.known, shard.absent = True, False
        shard.heard_us = self.now_us
        if heard.order >= 0:
            shard.event_time_us = heard.at_us
            shard.idle_us, shard.idle_rank, shard.last_event = partial.min_idle_us, partial.idle_rank, partial.last_event
            shard.ended = partial.ended
            shard.some_present = not partial.absent or not _covers(partial)
        for other in self._shards:
            if self.now_us - other.heard_us >= self._silence_us:
                other.absent = True
        return heard.at_us

    def _whole_steps(self) -> list[JobStep]:
        counting = [s for s in self._shards if not s.ended and not s.absent]
        if counting:
            frontier = min(s.closed for s in counting)
            longest = max(s.closed for s in counting)
            if longest - frontier > MAX_PENDING:
                frontier = longest - MAX_PENDING
        else:
            frontier = max(s.closed for s in self._shards)
        if self._next < 0:
            starts = [min(s.pending) for s in self._shards if s.pending]
            if not starts or frontier < min(starts):
                return []
            self._next = min(starts)
        steps = [whole for step in self._upto(frontier) if (whole := self._whole(step)) is not None]
        self._next = max(self._next, frontier + 1)
        return steps

    def _upto(self, frontier: int) -> list[int]:
        """The steps from the next one to *frontier* that any shard holds, ascending."""
        if frontier - self._next < MAX_PENDING:
            return list(range(self._next, frontier + 1))
        return sorted({step for s in self._shards for step in s.pending if step <= frontier})

    def _whole(self, step: int) -> JobStep | None:
        ranks, total, longest, slowest, time_us, marked = 0, 0.0, -1, -1, 0, False
        for shard in self._shards:
            marked |= step in shard.marked
            if marked:
                shard.marked.discard(step)
            part = shard.pending.pop(step, None)
            if part is None:
                continue
            self.held -= 1
            count, mean, high, rank, at_us = part
            ranks += count
            total += count * mean
            time_us = max(time_us, at_us)
            if high > longest:
                longest, slowest = high, rank
        if not ranks:
            return None
        return JobStep(step, round(total / ranks), longest, slowest, ranks, time_us, marked)


def _covers(partial: StepPartial) -> bool:
    """Whether every rank of the shard is absent."""
    low = partial.shard * partial.ranks_per_shard
    high = min(low + partial.ranks_per_shard, partial.world_size) - 1
    return partial.absent == (f"{low}-{high}" if high > low else f"{low}")


def check_partial(partial: StepPartial, known: tuple[int, int] | None) -> None:
    """Check *partial* before it is merged.

    :param known: ranks per shard and world size of the launch so far, if any.
    :raises InvalidInput: it contradicts itself or its launch.
    """
    where = f"job {partial.job}, run {partial.run_id}, shard {partial.shard}"
    shape = (partial.ranks_per_shard, partial.world_size)
    if known is not None and known != shape:
        raise InvalidInput(f"world size and shards {shape[::-1]} contradict {known[::-1]} of the same launch", where=where)
    if partial.ranks_per_shard < 1 or partial.world_size < 1:
        raise InvalidInput(f"a world of {partial.world_size} in shards of {partial.ranks_per_shard} cannot be", where=where)
    shards = -(-partial.world_size // partial.ranks_per_shard)
    if not 0 <= partial.shard < shards or shards > MAX_SHARDS_PER_JOB:
        raise InvalidInput(f"shard {partial.shard} of {shards} is not possible", where=where)
    if not len(partial.count) == len(partial.mean_us) == len(partial.max_us) == len(partial.max_rank):
        raise InvalidInput("the columns of the partial differ in length", where=where)
