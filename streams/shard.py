"""Hop 1 of detect: the iterations of one shard of a job's ranks, merged step by step.

Pure: no clock, no Kafka. State is a function of the messages of the shard's partition in their order, so a
redelivery, a replay and a process that takes over agree.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.schemas.errors import InvalidInput
from eroica.schemas.iterations import IterationBatch, StepPartial
from eroica.schemas.outputs import Output
from eroica.schemas.settings import DetectSettings
from eroica.schemas.topics import message_key
from eroica.streams.grid import StepGrid
from eroica.streams.liveness import NOBODY, Liveness

MAX_RANKS_PER_SHARD = 65_536
"""A larger shard is refused: its matrix would not fit beside others."""
MAX_SHARDS = 2_048
"""Shards (of all jobs and launches) one partition may hold; beyond, the one unheard for longest is forgotten."""
MAX_HELD_CELLS = 134_217_728
"""Cells (ranks × open steps) of all shards of a partition, 1 GiB; beyond, the shard unheard for longest is forgotten."""
MAX_DURATION_US = 2**53
"""Longest iteration accepted (285 years): what a double still counts exactly."""
LIFE_US = 2_000_000
"""A shard without a closed step says once per so much event time how long its ranks have been idle."""


@dataclass
class ShardCounters:
    """What did not count, for the log."""

    late: int = 0
    """Values for steps that were closed."""
    ahead: int = 0
    """Values too far ahead of the slowest rank to be held."""
    forgotten: int = 0
    """Shards dropped for lack of room."""


class ShardCore:
    """Merges :class:`IterationBatch` messages into :class:`StepPartial` messages.

    Guarantees: a step of a shard is emitted at most once and in ascending order. It closes when every rank has
    reported it, or when every rank that is neither absent nor ended has reported a step ``shard_grace_steps``
    further. One value per (rank, step) counts; repetition, and reordering within the grace, change nothing. A rank is
    absent when its host has said nothing for ``silence_ms`` while others of the shard spoke on: silence is measured
    in their event time, never by a clock. A shard of which nobody speaks decides nothing; hop 2 sees it by the other
    shards.
    """

    def __init__(self, settings: DetectSettings) -> None:
        self._settings = settings
        self._shards: OrderedDict[tuple[str, str, int], _Shard] = OrderedDict()
        self._held = 0
        self.counters = ShardCounters()

    def feed(self, batch: IterationBatch) -> list[Output]:
        """Take in a host's batch; returns the steps that it closed, or a sign of life when one is due.

        :raises InvalidInput: the batch contradicts itself or its shard (a rank outside of it, another world size,
            impossible numbers); nothing of it counts then.
        """
        key = (batch.job, batch.run_id, batch.shard)
        known = self._shards.get(key)
        shard = known or _Shard(batch, self._settings)
        blocks = shard.check(batch)
        before = shard.cells if known else 0
        if known:
            self._shards.move_to_end(key)
        else:
            self._shards[key] = shard
        late, ahead = shard.take(batch, blocks)
        self._held += shard.cells - before
        while len(self._shards) > MAX_SHARDS or (self._held > MAX_HELD_CELLS and len(self._shards) > 1):
            _, oldest = self._shards.popitem(last=False)
            self._held -= oldest.cells
            self.counters.forgotten += 1
        self.counters.late += late
        self.counters.ahead += ahead
        return [Output(key=message_key(batch.job), message=p, event_time_us=p.event_time_us) for p in shard.partials()]


_Block = tuple[int, int, npt.NDArray[np.int64]]
"""First row, first step, durations (ranks, steps): neighbouring ranks of a host that report the same steps, which is the rule."""


class _Shard:
    """One shard of one launch."""

    def __init__(self, batch: IterationBatch, settings: DetectSettings) -> None:
        where = _where(batch)
        size = min(batch.ranks_per_shard, batch.world_size - batch.shard * batch.ranks_per_shard)
        if batch.shard < 0 or batch.ranks_per_shard < 1 or size < 1:
            raise InvalidInput(
                f"shard {batch.shard} of {batch.ranks_per_shard} ranks lies outside of a world of {batch.world_size}", where=where
            )
        if size > MAX_RANKS_PER_SHARD:
            raise InvalidInput(
                f"a shard of {size} ranks is over the limit of {MAX_RANKS_PER_SHARD}",
                where=where,
                do="lower agent.ranks_per_shard",
            )
        self._shape = (batch.ranks_per_shard, batch.world_size)
        self._who = (batch.job, batch.run_id, batch.shard)
        self._first_rank = batch.shard * batch.ranks_per_shard
        self._size = size
        self._grace = settings.shard_grace_steps
        self._grid = StepGrid(size)
        self._live = Liveness(size, batch.sent_at_us, settings.silence_ms * 1_000)
        self._marks: set[int] = set()
        self._told_us = batch.sent_at_us
        self._told_ended = False

    @property
    def cells(self) -> int:
        """What it holds, in cells of 8 bytes."""
        return self._grid.cells

    def check(self, batch: IterationBatch) -> list[_Block]:
        """Refuse what could not be true before any of it is taken in; returns the durations in blocks."""
        if (batch.ranks_per_shard, batch.world_size) != self._shape:
            raise InvalidInput(
                f"world size {batch.world_size} in shards of {batch.ranks_per_shard} contradicts "
                f"{self._shape[1]} in shards of {self._shape[0]}",
                where=_where(batch),
                do="give all hosts of a launch one world size and one agent.ranks_per_shard, and each job its own name",
            )
        if not 0 <= batch.sent_at_us <= MAX_DURATION_US:
            raise InvalidInput(f"sent_at_us {batch.sent_at_us} is no time", where=_where(batch))
        return [self._block(batch, row, first_step, rows) for row, first_step, rows in self._neighbours(batch)]

    def _neighbours(self, batch: IterationBatch) -> list[tuple[int, int, list[list[int]]]]:
        """The durations of ranks that follow each other with the same steps, put together: ``(row, first step, rows)``."""
        low, high = self._first_rank, self._first_rank + self._size
        found: list[tuple[int, int, list[list[int]]]] = []
        following, first, length = -1, -1, -1
        for one in batch.ranks:
            rank, first_step, durations = one.rank, one.first_step, one.duration_us
            if not low <= rank < high:
                raise InvalidInput(f"rank {rank} is outside of the shard's {low}-{high - 1}", where=_where(batch))
            if not 0 <= first_step <= MAX_DURATION_US or not 0 <= one.idle_us <= MAX_DURATION_US:
                raise InvalidInput(f"rank {rank}: first_step or idle_us is not possible", where=_where(batch))
            if not durations:
                continue
            if rank == following and first_step == first and len(durations) == length:
                found[-1][2].append(durations)
            else:
                first, length = first_step, len(durations)
                found.append((rank - low, first, [durations]))
            following = rank + 1
        return found

    def _block(self, batch: IterationBatch, row: int, first_step: int, rows: list[list[int]]) -> _Block:
        try:
            values = np.array(rows, dtype=np.int64)
        except OverflowError as error:
            raise InvalidInput("a duration does not fit 64 bits", where=_where(batch)) from error
        # As unsigned numbers the negative ones are the largest: one look finds both.
        if np.maximum.reduce(values.view(np.uint64), axis=None) > MAX_DURATION_US:
            text = f"a duration of rank {row + self._first_rank} or a neighbour is negative or impossibly long"
            raise InvalidInput(text, where=_where(batch))
        return row, first_step, values

    def take(self, batch: IterationBatch, blocks: list[_Block]) -> tuple[int, int]:
        """Store what the batch says; returns the numbers of late values and of values too far ahead."""
        late = ahead = 0
        live = self._live
        fresh = live.hear(batch.host, batch.sent_at_us)
        for row, first_step, values in blocks:
            ranks, n = values.shape
            behind, beyond = self._grid.put(row, first_step, values)
            late += behind
            ahead += beyond
            live.reached(row, ranks, first_step + n - 1)
        if fresh:
            live.words(batch.ranks, self._first_rank, batch.sent_at_us)
        for one in batch.ranks:
            if one.marks:
                self._mark(one.marks)
        return late, ahead

    def _mark(self, marks: dict[str, int]) -> None:
        for step in marks.values():
            if step >= self._grid.head and len(self._marks) < 4 * self._size + 1_024:
                self._marks.add(step)

    def partials(self) -> list[StepPartial]:
        """Whatever can be closed now, in runs of consecutive steps; else a sign of life when one is due."""
        self._live.find_silent()
        grid = self._grid
        slowest = self._live.slowest()
        until = max(grid.full_until(), grid.end if slowest == NOBODY else slowest - self._grace + 1)
        found: list[StepPartial] = []
        if grid.head >= 0 and until > grid.head:
            found = self._columns(*grid.close(until))
            if self._marks:
                self._marks = {step for step in self._marks if step >= grid.head}
        if not found:
            # The time may also have been moved back, from a wrong clock's to the others'.
            due = abs(self._live.now_us - self._told_us) >= LIFE_US
            if due or self._live.all_ended != self._told_ended:
                found = [self._partial(max(grid.head, 0), [], [], [], [])]
        if found:
            self._told_us, self._told_ended = self._live.now_us, self._live.all_ended
        return found

    def _columns(self, first: int, count: np.ndarray, cells: np.ndarray) -> list[StepPartial]:
        row = cells.argmax(axis=0)
        highest = cells[row, np.arange(cells.shape[1])]
        # An unseen cell holds -1: adding one for each turns the column's sum into the sum of what was seen.
        total = cells.sum(axis=0) + (self._size - count)
        seen = np.flatnonzero(count)
        if seen.size == 0:
            return []
        found = []
        for run in np.split(seen, np.flatnonzero(np.diff(seen) != 1) + 1):
            a, b = int(run[0]), int(run[-1]) + 1
            mean = total[a:b] / count[a:b]
            found.append(
                self._partial(
                    first + a,
                    count[a:b].tolist(),
                    mean.tolist(),
                    highest[a:b].tolist(),
                    (row[a:b] + self._first_rank).tolist(),
                )
            )
        return found

    def _partial(self, first: int, count: list[int], mean: list[float], high: list[int], rank: list[int]) -> StepPartial:
        job, run_id, shard = self._who
        live = self._live
        row, idle_us, last_event = live.idle()
        last = first + len(count)
        return StepPartial(
            job=job,
            run_id=run_id,
            shard=shard,
            ranks_per_shard=self._shape[0],
            world_size=self._shape[1],
            first_step=first,
            count=count,
            mean_us=mean,
            max_us=high,
            max_rank=rank,
            event_time_us=live.now_us,
            min_idle_us=idle_us,
            idle_rank=row + self._first_rank if row >= 0 else -1,
            last_event=last_event,
            ended=live.all_ended,
            absent=live.absent_ranks(self._first_rank),
            marked=sorted(step for step in self._marks if first <= step < last) if self._marks else [],
        )


def _where(batch: IterationBatch) -> str:
    return f"job {batch.job}, run {batch.run_id}, host {batch.host}, shard {batch.shard}"
