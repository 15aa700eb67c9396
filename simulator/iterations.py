"""Iterations as the hosts' agents batch them, before and after the fault sets in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.schemas.iterations import IterationBatch, RankIterations
from eroica.schemas.outputs import Output
from eroica.schemas.topics import message_key
from eroica.simulator.effects import FloatArray
from eroica.simulator.hangs import Hang
from eroica.simulator.workload import Workload

__all__ = ["Timeline", "batches"]

JITTER_US = 30.0
"""Between the ranks' own measures of one iteration."""
MIN_US = 1


@dataclass(frozen=True)
class Timeline:
    """When the iterations of the job end, µs from its first one; shape (iterations,)."""

    duration_us: FloatArray

    def end_us(self) -> FloatArray:
        """End of each iteration."""
        return np.cumsum(self.duration_us)

    def begin_us(self, step: int) -> float:
        """Begin of an iteration; those beyond the end follow at the last one's pace."""
        known = float(self.duration_us[:step].sum())
        beyond = step - self.duration_us.size
        return known + (beyond * float(self.duration_us[-1]) if beyond > 0 and self.duration_us.size else 0.0)


def batches(
    work: Workload,
    run_id: str,
    timeline: Timeline,
    *,
    start_us: int,
    clock_us: FloatArray,
    marks: dict[int, dict[str, int]],
    seed: int,
    stuck: Hang | None = None,
    silent_us: int = 0,
) -> Iterator[Output]:
    """Every host's batches, interval by interval.

    :param clock_us: offset of each rank's clock, shape (world,).
    :param marks: iteration → what announced itself in it.
    :param stuck: the hang in which the job ends.
    :param silent_us: how long agents report after the last iteration that nothing comes any more.
    """
    history, job = work.scenario.history, work.scenario.job.name
    interval = history.batch_ms * 1_000
    ends = timeline.end_us()
    if ends.size == 0:
        return
    shards = np.arange(work.world) // history.ranks_per_shard
    parts = _parts(work, shards)
    rng = np.random.default_rng([seed, 7])
    count = int(-(-ends[-1] // interval)) + -(-silent_us // interval)
    edges = np.searchsorted(ends, np.arange(count + 1) * interval, side="right")
    edges[-1] = ends.size
    for number in range(count):
        low, high = int(edges[number]), int(edges[number + 1])
        sent = (number + 1) * interval
        for ranks in parts:
            rank = int(ranks[0])
            offset = int(clock_us[rank])
            noise = rng.normal(0.0, JITTER_US, size=(ranks.size, high - low))
            rows = np.maximum(timeline.duration_us[low:high] + noise, MIN_US).astype(np.int64)
            host = work.host_name(rank)
            message = IterationBatch(
                job=job,
                run_id=run_id,
                host=host,
                shard=int(shards[rank]),
                ranks_per_shard=history.ranks_per_shard,
                world_size=work.world,
                seq=number,
                sent_at_us=start_us + sent + offset,
                ranks=[
                    _rank(int(r), low, row, start_us + offset, ends, sent, marks, _event(stuck, int(r), low == ends.size))
                    for r, row in zip(ranks, rows, strict=True)
                ],
            )
            yield Output(message_key(job, message.shard), message, start_us + sent)


def _event(stuck: Hang | None, rank: int, over: bool) -> str:
    """The last event of the training loop; once the job hangs, that of the place where the rank stands."""
    return stuck.last_event(rank) if stuck is not None and over else "optimizer_exit"


def _rank(
    rank: int,
    low: int,
    row: npt.NDArray[np.int64],
    start_us: int,
    ends: FloatArray,
    sent: int,
    marks: dict[int, dict[str, int]],
    last_event: str,
) -> RankIterations:
    high = low + row.size
    last = float(ends[high - 1]) if high else 0.0
    told = {kind: step for i in range(low, high) for kind, step in marks.get(i, {}).items()}
    return RankIterations(
        rank=rank,
        first_step=low,
        duration_us=row.tolist(),
        ended_at_us=start_us + int(last) if row.size else 0,
        idle_us=max(0, sent - int(last)),
        last_event=last_event,
        marks=told,
    )


def _parts(work: Workload, shards: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Ranks of each host and shard, ascending: a batch never mixes shards."""
    key = work.hosts.host_of * (int(shards.max()) + 1) + shards
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
