"""What the process groups of a running job say about its layout.

Descriptions are those that frameworks give to ``new_group`` and that PyTorch repeats in ``pg_config``: Megatron's
``…_PARALLEL_GROUP``, a device mesh's ``mesh_<dim>``, DeepSpeed's ``pipe``/``data``/``model`` and ``ep_size_<n>`` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.schemas.jobs import ProcessGroup
from eroica.schemas.ranks import RankArray, format_ranks, parse_ranks
from eroica.topology.grid import Groups

__all__ = ["AXIS_ORDER", "WORLD", "Axes", "brief", "kind_axes", "kind_name", "recognise"]

Axes = frozenset[str]
"""A kind of group as the set of axes along which its members differ."""

WORLD: Axes = frozenset({"world"})
"""The default process group of all ranks."""

AXIS_ORDER = ("world", "tp", "etp", "dp", "dp_replicate", "dp_shard", "cp", "ep", "edp", "efsdp", "pp")
"""Order in which axes are named."""

MAX_OVERLAP = 64
"""Groups of one kind may nest (hierarchical parallelism); more members than this many worlds are an attack on our
memory.
"""

_DESCRIPTIONS: Mapping[str, str] = {
    "default_pg": "world",
    "tensor_model_parallel": "tp",
    "context_parallel": "cp",
    "data_parallel": "dp",
    "data_parallel_with_cp": "dp cp",
    "pipeline_model_parallel": "pp",
    "model_parallel": "tp pp",
    "tensor_and_data_parallel": "tp dp",
    "tensor_and_data_parallel_with_cp": "tp dp cp",
    "tensor_and_context_parallel": "tp cp",
    "expert_model_parallel": "ep",
    "expert_parallel": "ep",
    "expert_tensor_parallel": "etp",
    "expert_tensor_and_model_parallel": "etp ep",
    "expert_tensor_model_pipeline_parallel": "etp ep pp",
    "expert_data_parallel": "edp",
    "mesh_pp": "pp",
    "mesh_tp": "tp",
    "mesh_cp": "cp",
    "mesh_ep": "ep",
    "mesh_etp": "etp",
    "mesh_dp": "dp",
    "mesh_batch": "dp",
    "mesh_dp_cp": "dp cp",
    "mesh_loss": "dp cp",
    "mesh_dp_replicate": "dp_replicate",
    "mesh_replicate": "dp_replicate",
    "mesh_dp_shard": "dp_shard",
    "mesh_shard": "dp_shard",
    "mesh_dp_shard_cp": "dp_shard cp",
    "mesh_fsdp": "dp_shard cp",
    "mesh_efsdp": "efsdp",
    "mesh_dp_shard_mod_ep": "efsdp",
    "pipe": "pp",
    "pipe_parallel": "pp",
    "pipeline_parallel": "pp",
    "data": "dp",
    "model": "tp",
    "slice": "tp",
    "slice_parallel": "tp",
    "tensor_parallel": "tp",
}
_VARIANT = re.compile(r"_groups?(?=_|$)|(_gloo|_ag|_ranks)+$")
_RANK_SETS = re.compile(r"[0-9]{1,8}(?:-[0-9]{1,8})?(?:,[0-9]{1,8}(?:-[0-9]{1,8})?)*")
_EXPERT_SIZE = re.compile(r"^ep_size_\d{1,8}$")


def kind_axes(description: str, name: str = "") -> Axes | None:
    """The axes that a group of this description (or, without one, of this name) runs along; ``None`` for a group of
    another purpose.
    """
    for text in (description, name):
        if not text or text == "undefined":
            continue
        key = _VARIANT.sub("", text.strip().lower())
        if _EXPERT_SIZE.match(key):
            return frozenset({"ep"})
        found = _DESCRIPTIONS.get(key)
        return None if found is None else frozenset(found.split())
    return None


def kind_name(axes: Axes) -> str:
    """One name for a kind: its axes joined, e.g. ``"dp-cp"``."""
    return "-".join(sorted(axes, key=lambda a: (AXIS_ORDER.index(a) if a in AXIS_ORDER else len(AXIS_ORDER), a)))


def recognise(groups: Iterable[ProcessGroup], world: int) -> dict[Axes, Groups]:
    """Families of disjoint groups by kind, from whatever part of the job's process groups is known.

    Frameworks give one description to a group and to its parts (hierarchical context parallelism); the whole counts.
    Groups of several ranks that carry no known description are left out.

    :raises TopologyError: if a group names a rank that the world does not have, or two groups of one kind overlap.
    """
    found: dict[Axes, set[str]] = {}
    for group in groups:
        axes = kind_axes(group.kind, group.name)
        if axes is not None:
            found.setdefault(axes, set()).add(group.ranks)
    return {axes: _disjoint(kind_name(axes), sorted(found[axes]), world) for axes in sorted(found, key=kind_name)}


def _disjoint(kind: str, texts: list[str], world: int) -> Groups:
    groups = _parse_all(kind, texts, world)
    if np.bincount(groups.members, minlength=world).max(initial=0) > 1:
        groups = _widest(kind, list(groups), world)
    return groups.reordered(np.argsort(groups.members[groups.offsets[:-1]]))


def _parse_all(kind: str, texts: list[str], world: int) -> Groups:
    """All sets of ranks at once: a large job has tens of thousands of groups."""
    texts = [t for t in texts if t]
    joined = ",".join(texts)
    if not joined:
        return Groups.of([])
    if not _RANK_SETS.fullmatch(joined):
        for text in texts:
            parse_ranks(text)
    tokens = joined.split(",")
    ranged = np.fromiter(("-" in t for t in tokens), dtype=bool, count=len(tokens))
    numbers = np.array(joined.replace("-", ",").split(","), dtype=np.int64)
    at = np.concatenate(([0], np.cumsum(1 + ranged[:-1])))
    low, high = numbers[at], numbers[at + ranged]
    if high.max() >= world:
        raise TopologyError(
            f"a {kind} process group names rank {int(high.max())}, but the world has {world} ranks",
            do="check that all hosts run the same job with one world size",
        )
    lengths = high - low + 1
    if lengths.min() < 1 or lengths.sum() > MAX_OVERLAP * world:
        raise TopologyError(f"the {kind} process groups are not sets of ranks that could exist together")
    members = np.repeat(low - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    token_ends = np.cumsum(np.fromiter((t.count(",") + 1 for t in texts), dtype=np.int64, count=len(texts)))
    offsets = np.concatenate(([0], np.cumsum(lengths)[token_ends - 1])).astype(np.int64)
    return Groups(members, offsets)


def _widest(kind: str, groups: list[RankArray], world: int) -> Groups:
    """The largest groups, leaving out those that are parts of another."""
    owner = np.full(world, -1, dtype=np.int64)
    kept: list[RankArray] = []
    for ranks in sorted((np.unique(g) for g in groups), key=lambda r: (-r.size, int(r[0]))):
        owners = np.unique(owner[ranks])
        if owners.size == 1 and owners[0] >= 0:
            continue
        if owners[-1] >= 0:
            rank = int(ranks[np.flatnonzero(owner[ranks] >= 0)[0]])
            raise TopologyError(
                f"rank {rank} is in two different {kind} process groups, {brief(kept[int(owner[rank])])} and {brief(ranks)}",
                do="check that all hosts run the same job",
            )
        owner[ranks] = len(kept)
        kept.append(ranks)
    return Groups.of(kept)


def brief(ranks: RankArray) -> str:
    """The ranks as ranges, cut to what a message can hold."""
    text = format_ranks(ranks)
    return text if len(text) <= 60 else text[:57] + "..."
