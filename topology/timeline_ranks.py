"""Whose rows a recorded timeline holds: replicas that are missing, tensor-parallel width, columns that contradict each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.schemas.ranks import RankArray, format_ranks, say_ranks

__all__ = ["Places", "contradictions", "places", "without_stages"]

Columns = dict[str, npt.NDArray[Any]]
MAX_LANES = 1_000_000
"""Beyond it the replicas that are missing are not listed, nor the ranks of stages."""


@dataclass(frozen=True)
class Places:
    """Who the rows are of. Ranks that were not seen are told by those that were."""

    lanes: RankArray
    """Shape (lanes,): data-parallel ranks that have rows."""
    rank_of: RankArray
    """Shape (lanes, stages): global rank of each worker, −1 where nothing tells it."""
    width: int = 1
    """Ranks that a row stands for: tensor-parallel ones, numbered from the worker's."""
    missing: tuple[int, ...] = ()
    """Ranks of replicas and stages without rows, as far as their numbers are told."""
    absent: int = 0
    """Replicas without rows, whether or not their ranks are told."""
    later: int = 0
    """Stages without rows after those that have some: at least so many."""
    ambiguous: bool = False
    """Whether the ranks fit several layouts, so that how many the rows stand for is not told."""
    contradict: bool = False
    """Whether *rank* says something else than *dp_rank* and *stage*, so that the slow one may have another name."""
    notes: tuple[str, ...] = ()
    form: _Form | None = None
    """How ranks are numbered; ``None`` if nothing tells it."""


def places(lane: RankArray, stage: RankArray, rank: RankArray | None) -> Places:
    """The workers of rows; all arrays of shape (rows,), nothing negative in *lane* and *stage*.

    :param rank: ``None`` if the table does not tell it: ranks are then plain, stage · replicas + replica.
    """
    lanes, at = np.unique(lane, return_inverse=True)
    stages, most = int(stage.max()) + 1, int(lanes[-1]) + 1
    if rank is None:
        form: _Form | None = _Form(most, 1, most, 1)
        table, strange = np.arange(stages)[None, :] * most + lanes[:, None], 0
    else:
        table, strange = _table(at, stage, rank, (lanes.size, stages))
        form = _form(lanes, table)
    notes = [f"{strange} rows name another rank than most of their replica and stage: most count"] if strange else []
    if form is None:
        known = table[table >= 0]
        why = "several workers have one rank" if np.unique(known).size < known.size else "no layout numbers ranks so"
        notes.append(
            f"column 'rank' contradicts 'dp_rank' and 'stage' ({why}): ranks are named by the one, peers found by the others"
        )
    missing: list[int] = []
    ambiguous = form is not None and rank is not None and lanes.size == 1 and lanes[0] == 0 and form.width == form.by_stage > 1
    if form and ambiguous:
        apart = form.width
        notes.append(
            f"with one replica nothing tells whether the {apart} ranks of a stage are tensor-parallel or replicas that are "
            "missing: of each stage only the first is counted as seen"
        )
        form = replace(form, width=1, lanes=apart, by_lane=1)
        missing = [r for r in range(apart * stages) if r % apart] if apart * stages <= MAX_LANES else []
        return Places(lanes, table, missing=tuple(missing), ambiguous=True, contradict=strange > 0, notes=tuple(notes), form=form)
    many = form.lanes if form else most
    absent = sorted(set(range(many)) - set(lanes.tolist())) if many <= MAX_LANES else []
    if absent:
        if form:
            missing = sorted(
                form.by_stage * s + form.by_lane * d + i for s in range(stages) for d in absent for i in range(form.width)
            )
        who = f": {say_ranks(format_ranks(missing), 80)} were not seen" if missing else ""
        notes.append(f"dp {format_ranks(absent)} of {many} {'is' if len(absent) == 1 else 'are'} not in the timeline{who}")
    width = form.width if form else _width(table)
    return Places(
        lanes,
        table,
        width,
        missing=tuple(missing),
        absent=len(absent),
        contradict=form is None or strange > 0,
        notes=tuple(notes),
        form=form,
    )


def without_stages(who: Places, first: int, count: int, sure: bool, why: str) -> Places:
    """*who*, where *count* stages from *first* on have no rows, as *why* says; *count* is the least unless *sure*."""
    stages = f"stage{'s' if count > 1 else ''} {format_ranks(range(first, first + count))}"
    missing: list[int] = []
    if who.form and count * who.form.lanes * who.form.width <= MAX_LANES:
        form = who.form
        by_stage = form.by_stage or form.lanes * form.by_lane
        missing = sorted(
            by_stage * s + form.by_lane * d + i
            for s in range(first, first + count)
            for d in range(form.lanes)
            for i in range(form.width)
        )
    many = f"{'is' if count == 1 else 'are'} not in the timeline{'' if sure else ', perhaps more'}"
    ranks = f": {say_ranks(format_ranks(missing), 80)} were not seen" if missing else ""
    note = f"{stages} {many}{ranks}; {why}, and what the others wait for may be what is missing"
    gone = tuple(sorted({*who.missing, *missing}))
    return replace(who, missing=gone, later=count, notes=(*who.notes, note))


def contradictions(columns: Columns) -> list[str]:
    """What else of a worker's rows cannot be true together: sequence numbers against starts, chunks against their place."""
    notes = []
    _, kind = np.unique(columns["optype"], return_inverse=True)
    keys = (columns["step"], columns["dp_rank"], columns["stage"], kind)
    order = np.lexsort((columns["seq_id"], *keys))
    same = np.all([np.diff(k[order]) == 0 for k in keys], axis=0)
    back = int((same & (np.diff(columns["start_ts"][order]) < 0)).sum())
    if back:
        notes.append(f"columns 'seq_id' and 'start_ts' contradict each other: {back} operations start before the one they follow")
    computes = np.char.endswith(columns["optype"], "-compute")
    chunk = np.unique(np.stack([columns[c][computes] for c in ("stage", "mc", "gmc")]), axis=1)
    if np.unique(chunk[:2], axis=1).shape[1] < chunk.shape[1] or np.unique(chunk[2]).size < chunk.shape[1]:
        notes.append("columns 'stage', 'mc' and 'gmc' contradict each other: a chunk has two places, or two have one")
    return notes


@dataclass(frozen=True, slots=True)
class _Form:
    """rank = by_stage · stage + by_lane · replica, each row for *width* ranks."""

    by_stage: int
    by_lane: int
    lanes: int
    """Replicas that the job has."""
    width: int


def _table(at: RankArray, stage: RankArray, rank: RankArray, shape: tuple[int, int]) -> tuple[RankArray, int]:
    """The rank that most rows of a worker name, shape (lanes, stages), −1 without rows; and how many rows name another."""
    pairs, count = np.unique(np.stack([at * shape[1] + stage, rank]), axis=1, return_counts=True)
    order = np.argsort(count, kind="stable")
    table, best = np.full(shape[0] * shape[1], -1, dtype=np.int64), np.zeros(shape[0] * shape[1], dtype=np.int64)
    table[pairs[0, order]], best[pairs[0, order]] = pairs[1, order], count[order]
    return table.reshape(shape), int(rank.size - best.sum())


def _width(table: RankArray) -> int:
    """How far apart all ranks lie, where no number is left out; else 1."""
    ranks = np.sort(table, axis=None)
    width = int(ranks[1] - ranks[0]) if ranks.size > 1 else 1
    return width if width > 1 and np.array_equal(ranks, width * np.arange(ranks.size)) else 1


def _form(lanes: RankArray, table: RankArray) -> _Form | None:
    """How ranks follow from replica and stage: replicas within a stage, or stages within a replica; ``None`` if neither."""
    first, stages = int(lanes[0]), table.shape[1]
    by_stage = int(table[0, 1] - table[0, 0]) if stages > 1 else 0
    if lanes.size > 1:
        by_lane = int(table[1, 0] - table[0, 0]) // int(lanes[1] - first)
    else:
        by_lane = int(table[0, 0]) // first if first else by_stage or 1
    ranks = by_stage * np.arange(stages)[None, :] + by_lane * lanes[:, None]
    if by_lane < 1 or by_stage < (stages > 1) or not np.array_equal(ranks, table):
        return None
    most = int(lanes[-1]) + 1
    if stages == 1:
        return _Form(by_stage, by_lane, most, by_lane)
    if by_stage % by_lane == 0 and by_stage >= most * by_lane:
        return _Form(by_stage, by_lane, by_stage // by_lane, by_lane)
    return _Form(by_stage, by_lane, most, by_stage) if by_lane == by_stage * stages else None
