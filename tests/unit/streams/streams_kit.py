"""Builders of small, valid messages for the tests of the cores."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.schemas.iterations import IterationBatch, RankIterations, StepPartial

T0 = 1_700_000_000_000_000
"""Event time at which the tests' jobs begin, µs."""
SECOND = 1_000_000


def batch(
    ranks: Sequence[RankIterations],
    *,
    host: str = "a",
    shard: int = 0,
    per_shard: int = 4,
    world: int = 4,
    seq: int = 0,
    at: int = T0,
    job: str = "j",
    run: str = "r",
) -> IterationBatch:
    return IterationBatch(
        job=job,
        run_id=run,
        host=host,
        shard=shard,
        ranks_per_shard=per_shard,
        world_size=world,
        seq=seq,
        sent_at_us=at,
        ranks=list(ranks),
    )


def iterations(rank: int, first: int, durations: Sequence[int], **more: object) -> RankIterations:
    return RankIterations(rank=rank, first_step=first, duration_us=list(durations), **more)  # type: ignore[arg-type]


def partial(
    first: int,
    means: Sequence[float],
    *,
    shard: int = 0,
    per_shard: int = 4,
    world: int = 4,
    at: int = T0,
    job: str = "j",
    run: str = "r",
    **more: object,
) -> StepPartial:
    size = min(per_shard, world - shard * per_shard)
    n = len(means)
    return StepPartial(
        job=job,
        run_id=run,
        shard=shard,
        ranks_per_shard=per_shard,
        world_size=world,
        first_step=first,
        count=[size] * n,
        mean_us=[float(m) for m in means],
        max_us=[int(m) + 5 for m in means],
        max_rank=[shard * per_shard] * n,
        event_time_us=at,
        **more,  # type: ignore[arg-type]
    )
