"""Who is compared with whom: only ranks in one role."""

from __future__ import annotations

import re

import numpy as np

from eroica.schemas.ranks import RankArray
from eroica.topology.sources import Placement

__all__ = ["comparison_classes"]


def comparison_classes(placement: Placement, devices: tuple[str, ...] = ()) -> dict[str, RankArray]:
    """Ranks by role: pipeline stage (``pp0``, ``pp1``, …; ``all`` without a pipeline), then device model where a stage
    has several.

    Ranks whose stage is unknown form the class ``unplaced``. Classes are disjoint and cover the world.
    """
    world = placement.world
    stage = placement.axes.get("pp")
    everyone = np.arange(world, dtype=np.int64)
    if stage is None or stage.max(initial=-1) < 1:
        classes = {"all": everyone}
    else:
        classes = {f"pp{s}": np.flatnonzero(stage == s) for s in np.unique(stage[stage >= 0]).tolist()}
        if (stage < 0).any():
            classes["unplaced"] = np.flatnonzero(stage < 0)
    if len({d for d in devices if d}) < 2:
        return classes
    models, code = np.unique(np.array(devices, dtype=object).astype(str), return_inverse=True)
    return {
        name: ranks
        for stage_name, members in classes.items()
        for name, ranks in _by_device(stage_name, members, models.tolist(), code)
    }


def _by_device(stage: str, ranks: RankArray, models: list[str], code: RankArray) -> list[tuple[str, RankArray]]:
    """Split a stage by device model; a rank whose device is unknown goes with the commonest."""
    counts = np.bincount(code[ranks], minlength=len(models))
    if "" in models:
        counts[models.index("")] = 0
    if np.count_nonzero(counts) < 2:
        return [(stage, ranks)]
    mine = code[ranks].copy()
    mine[counts[mine] == 0] = int(np.argmax(counts))
    return [(f"{stage}.{_slug(models[m])}", ranks[mine == m]) for m in np.unique(mine).tolist()]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:60]
