"""Whether later pipeline stages are missing from a timeline: the last stage that it holds still exchanges with the one after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eroica.topology.timeline import COMPUTE, Row

__all__ = ["LaterStages", "later_stages"]


@dataclass(frozen=True, slots=True)
class LaterStages:
    """Stages after those in the timeline."""

    first: int
    """The first of them."""
    count: int
    """How many; at least so many unless ``sure``."""
    sure: bool
    """Whether the order of computations tells how many there are."""


def later_stages(rows: Sequence[Row]) -> LaterStages | None:
    """What the template replica's first step tells of stages after its last; ``None`` if that is the job's last.

    A last stage has nobody to send forward to nor to receive backward from. With several chunks a stage it has, and nothing is
    told; nor is it by a recorder that lists transfers without a peer for the first stage, too. In 1F1B a stage of S starts
    min(S − stage, micro-batches) forwards before its first backward, which tells S.
    """
    last = max(r.stage for r in rows)
    if any(r.chunk > 0 for r in rows):
        return None
    for direction, way in (("forward", "send"), ("backward", "recv")):
        computes = sum(r.kind == f"{direction}-compute" and r.stage == last for r in rows)
        moved = [r for r in rows if r.kind == f"{direction}-{way}" and r.stage == last]
        if len(moved) < max(1, computes - 1) or not any(r.end > r.start for r in moved):
            return None
    if any(r.stage == 0 and r.kind in ("forward-recv", "backward-send") for r in rows):
        return None
    stages = _stages_of_1f1b(rows, last)
    return LaterStages(last + 1, max(stages - last - 1, 1), stages > last + 1)


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
