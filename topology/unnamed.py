"""Process groups without a name, told by their shape.

DeepSpeed creates its groups without a description (``undefined`` in ``pg_config``). Its pipeline grid numbers the ranks pipe,
data, model, the last fastest, so that the groups of an axis are evenly spaced ranks. Where three such families, and no others,
together span the world, they can be nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from eroica.schemas.errors import EroicaError
from eroica.schemas.jobs import ProcessGroup
from eroica.schemas.ranks import parse_ranks

__all__ = ["named_by_shape"]

GRID = ("model", "data", "pipe")
"""Axes, the fastest first."""
NAMELESS = ("", "undefined")


def named_by_shape(groups: Sequence[ProcessGroup], framework: str, world: int) -> Sequence[ProcessGroup]:
    """*groups* with the names that their shape gives; as they are if it tells nothing.

    Only for DeepSpeed, and only if no group but that of the world has a name: what was named tells more than a shape.
    """
    if "deepspeed" not in framework.lower():
        return groups
    shapes: dict[tuple[int, int], dict[int, int]] = {}
    for number, group in enumerate(groups):
        if group.kind == "default_pg":
            continue
        if group.kind not in NAMELESS:
            return groups
        spaced = _spaced(group.ranks, world)
        if spaced is not None:
            first, stride, size = spaced
            shapes.setdefault((stride, size), {})[number] = first
    families = sorted(shape for shape, found in shapes.items() if len(set(found.values())) * shape[1] == world)
    if len(families) != len(GRID) or not _spans(families, world):
        return groups
    out = list(groups)
    for axis, shape in zip(GRID, families, strict=True):
        for number in shapes[shape]:
            out[number] = msgspec.structs.replace(groups[number], kind=axis)
    return out


def _spaced(text: str, world: int) -> tuple[int, int, int] | None:
    """First rank, stride and size of evenly spaced ranks, several but not all; ``None`` for others."""
    try:
        ranks = parse_ranks(text)
    except EroicaError:
        return None
    steps = np.diff(ranks)
    if not 1 < ranks.size < world or (steps != steps[0]).any():
        return None
    return int(ranks[0]), int(steps[0]), int(ranks.size)


def _spans(families: list[tuple[int, int]], world: int) -> bool:
    """Whether each family strides over all before it, and the last ends with the world."""
    reach = 1
    for stride, size in families:
        if stride != reach:
            return False
        reach *= size
    return reach == world
