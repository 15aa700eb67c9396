"""Topics ``iterations`` (agents → detect, key job/shard) and ``partials`` (detect → detect, key job)."""

from __future__ import annotations

import msgspec

from eroica.schemas.base import Int, Message, Record


class RankIterations(Record, frozen=True, kw_only=True):
    """Consecutive iterations of one rank: number ``first_step + i`` took ``duration_us[i]``.

    Invariant: the durations are of consecutive steps; a gap (lost datagrams) starts another record.
    """

    rank: Int
    first_step: Int = 0
    duration_us: list[Int] = msgspec.field(default_factory=list)
    ended_at_us: Int = 0
    """Event time at which the last of them ended, µs since the epoch by the host's clock; 0 without iterations."""
    idle_us: Int = 0
    """Age of the rank's last event of any kind when the batch was made, by the host's own clock: needs no clock agreement."""
    last_event: str = ""
    """What that event was (``loader_enter``, ``optimizer_exit``…): where a silent rank stopped."""
    ended: bool = False
    """The process said goodbye: its silence is no fault."""
    marks: dict[str, Int] = msgspec.field(default_factory=dict)
    """Self-announced innocent work, kind → step, e.g. ``{"checkpoint": 400}``."""


class IterationBatch(Message, frozen=True, kw_only=True, tag="iterations"):
    """What the ranks of one host did since the last batch; sent every interval even when nothing happened (a sign of life).

    Repetition and reordering are harmless: readers keep one value per (rank, step). ``seq`` grows by one per agent life.
    """

    job: str
    run_id: str
    host: str
    shard: Int
    """``rank // ranks_per_shard`` of the ranks inside: a batch never mixes shards."""
    ranks_per_shard: Int
    world_size: Int
    seq: Int
    sent_at_us: Int
    """Event time of the batch, µs since the epoch by the host's clock."""
    ranks: list[RankIterations]
    dropped: Int = 0
    """Datagrams and batches known to be lost on this host so far."""


class StepPartial(Message, frozen=True, kw_only=True, tag="partial"):
    """A shard's part of consecutive steps of a job, in columns (one entry per step). Internal to detect.

    A step appears once, when the shard has closed it: all its ranks reported, or later steps prove that nothing more comes, or
    silence was declared (then ``absent`` says whose).
    """

    job: str
    run_id: str
    shard: Int
    ranks_per_shard: Int
    world_size: Int
    first_step: Int
    count: list[Int]
    """Ranks that reported the step."""
    mean_us: list[float]
    max_us: list[Int]
    max_rank: list[Int]
    event_time_us: Int
    """Latest event time seen in the shard."""
    min_idle_us: Int = 0
    """Smallest age of a last event among the ranks that have not ended: if it is long, all stand still."""
    idle_rank: Int = -1
    """The rank that has been silent longest."""
    last_event: str = ""
    """Where that rank stopped."""
    ended: bool = False
    """All ranks of the shard have ended in an orderly way."""
    absent: str = ""
    """Ranks declared silent, as ranges."""
    marked: list[Int] = msgspec.field(default_factory=list)
    """Steps that announced themselves as innocent (checkpoint, evaluation)."""
