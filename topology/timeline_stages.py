"""Whether later pipeline stages are missing from a timeline: the last stage that it holds still exchanges with the one after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eroica.schemas.errors import InvalidInput
from eroica.topology.timeline import COMPUTE, Row

__all__ = ["LaterStages", "later_stages", "stages_by_chunks"]


@dataclass(frozen=True, slots=True)
class LaterStages:
    """Stages after those in the timeline."""

    first: int
    """The first of them."""
    count: int
    """How many; at least so many unless ``sure``."""
    sure: bool
    """Whether the order of computations, or the places of chunks, tells how many there are."""
    why: str
    """What tells it, as a clause."""


def later_stages(rows: Sequence[Row]) -> LaterStages | None:
    """What the template replica's first step tells of stages after its last; ``None`` if that is the job's last.

    A last stage has nobody to send forward to nor to receive backward from. With several chunks a stage it has, but their
    places in the model tell how many stages lie between them. Nothing is told by a recorder that lists transfers without a
    peer for the first stage, too. In 1F1B a stage of S starts min(S − stage, micro-batches) forwards before its first backward,
    which tells S.
    """
    last = max(r.stage for r in rows)
    if any(r.chunk > 0 for r in rows):
        more = stages_by_chunks(rows) - last - 1
        why = f"the chunks of a stage lie {last + 1 + more} apart in the model"
        return LaterStages(last + 1, more, sure=True, why=why) if more > 0 else None
    for direction, way in (("forward", "send"), ("backward", "recv")):
        computes = sum(r.kind == f"{direction}-compute" and r.stage == last for r in rows)
        moved = [r for r in rows if r.kind == f"{direction}-{way}" and r.stage == last]
        if len(moved) < max(1, computes - 1) or not any(r.end > r.start for r in moved):
            return None
    if any(r.stage == 0 and r.kind in ("forward-recv", "backward-send") for r in rows):
        return None
    stages = _stages_of_1f1b(rows, last)
    why = f"stage {last} sends forward and receives backward, so it is not the last"
    return LaterStages(last + 1, max(stages - last - 1, 1), stages > last + 1, why)


def stages_by_chunks(rows: Sequence[Row]) -> int:
    """The job's stages by the places of its chunks: chunk c of stage s of S is the model's c·S + s.

    Those that have rows, if there is one chunk a stage or the places contradict each other.

    :raises InvalidInput: if chunks come back to the first stage from the last one (a V, as in ZBV and DualPipeV).
    """
    here = max(r.stage for r in rows) + 1
    at = {(r.stage, r.chunk): r.global_chunk for r in rows if r.kind in COMPUTE}
    told = {(place - stage) / chunk for (stage, chunk), place in at.items() if chunk > 0}
    if len(told) == 1 and (stages := told.pop()) >= here and stages == int(stages):
        return int(stages)
    if len({place + at[stage, 0] for (stage, chunk), place in at.items() if chunk == 1 and (stage, 0) in at}) == 1 and here > 1:
        raise InvalidInput(
            "the second chunks of the stages come in the opposite order (a V, as in ZBV or DualPipeV)",
            do="only chunks that begin anew at the first stage are read",
        )
    return here


def _stages_of_1f1b(rows: Sequence[Row], last: int) -> int:
    """The job's stages by the forwards ahead of each stage's first backward; 0 if the order is another or does not tell."""
    order: list[list[str]] = [[] for _ in range(last + 1)]
    for r in sorted(rows, key=lambda r: r.start):
        if r.kind in COMPUTE:
            order[r.stage].append(r.kind)
    ahead, total = [], []
    for kinds in order:
        if "backward-compute" not in kinds:
            return 0
        ahead.append(kinds.index("backward-compute"))
        total.append(kinds.count("forward-compute"))
    stages = last + ahead[last]
    told = ahead[last] < total[last] and all(a == min(n, stages - s) for s, (a, n) in enumerate(zip(ahead, total, strict=True)))
    return stages if told else 0
