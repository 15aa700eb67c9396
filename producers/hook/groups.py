"""The process groups that a process really is in, and the coordinates that follow from their names. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

MAX_GROUPS = 512
"""Most groups told; a rank of a large job is in about twenty."""
LIST_RANKS = 2048
"""Above so many members the ranks are written as ranges, ``"0-4095"``, to stay within a datagram."""

_MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "DATA_PARALLEL_GROUP": "dp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
}
"""Megatron-Core's descriptions of its groups. EXPERT_MODEL_PARALLEL_GROUP is expert parallel."""


def process_groups(world: Any) -> list[dict[str, Any]]:
    """Describe the groups of torch's registry ``torch.distributed.distributed_c10d._world``, sorted by name.

    A private object, so each part may be missing: then the group is told with less.
    """
    described = []
    names: Mapping[Any, str] = getattr(world, "pg_names", {})
    for group, members in list(getattr(world, "pg_group_ranks", {}).items())[:MAX_GROUPS]:
        ranks = sorted(int(rank) for rank in members)
        described.append(
            {
                "name": str(names.get(group, "")),
                "desc": _text(group, "group_desc"),
                "backend": _backend(world, group),
                "ranks": ranks if len(ranks) <= LIST_RANKS else ranges(ranks),
            }
        )
    return sorted(described, key=lambda group: (len(group["name"]), group["name"]))


def coordinates(groups: list[dict[str, Any]], rank: int, framework: str) -> dict[str, int]:
    """Coordinates that the groups' descriptions tell: the place of *rank* among the members of a group with a known meaning.

    Known are Megatron's descriptions and device meshes (``mesh_<dimension>``). Plain data parallelism has one group, of all.
    """
    found: dict[str, int] = {}
    for group in groups:
        ranks = group["ranks"]
        if not isinstance(ranks, list) or rank not in ranks:
            continue
        desc = group["desc"]
        dimension = desc.removeprefix("mesh_") if desc.startswith("mesh_") else _MEGATRON.get(desc, "")
        if dimension:
            found.setdefault(dimension, ranks.index(rank))
    if not found and framework in ("ddp", "fsdp") and len(groups) == 1:
        return {"dp": rank}
    return found


def ranges(ranks: list[int]) -> str:
    """Write ascending *ranks* as ranges, ``"0-3,8"``."""
    parts: list[str] = []
    start = previous = ranks[0]
    for rank in [*ranks[1:], -1]:
        if rank != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = rank
        previous = rank
    return ",".join(parts)


def _text(group: Any, name: str) -> str:
    value: object = ""
    with suppress(Exception):
        value = getattr(group, name, "")
    return value[:256] if isinstance(value, str) else ""


def _backend(world: Any, group: Any) -> str:
    entry = getattr(world, "pg_map", {}).get(group)
    return str(entry[0]) if isinstance(entry, tuple) and entry else ""
