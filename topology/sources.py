"""What is known of a job's layout, from sources of falling trust, each checked against the others.

In order: coordinates that workers send, process groups that were really created, a framework's preset with its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.schemas.ranks import RankArray
from eroica.topology.grid import Groups
from eroica.topology.layout import RankLayout
from eroica.topology.presets import EXPERT_AXES, custom
from eroica.topology.recognise import WORLD, Axes, brief, kind_name

__all__ = [
    "Evidence",
    "Placement",
    "Source",
    "from_coordinates",
    "from_layout",
    "from_process_groups",
    "from_world_group",
    "reconcile",
]

Source = Literal["coordinates", "process_groups", "layout", "none"]

_AXIS_SYNONYMS: Mapping[str, str] = {"pipe": "pp", "data": "dp", "model": "tp"}
_WORDS: Mapping[str, str] = {
    "coordinates": "its coordinates",
    "process_groups": "its process groups",
    "layout": "the layout preset",
}


@dataclass(frozen=True)
class Evidence:
    """One source: coordinates by axis (shape (world,), -1 where unknown), and the groups of a kind where it can tell
    them.
    """

    source: Source
    axes: Mapping[str, RankArray]
    kinds: tuple[Axes, ...]
    family: Callable[[Axes], Groups | None]


@dataclass(frozen=True)
class Placement:
    """The reconciled answer. ``source`` is the most trusted one that says anything; ``agreeing`` are the others that
    agree with it.
    """

    world: int
    source: Source
    axes: Mapping[str, RankArray] = field(default_factory=dict)
    groups: Mapping[str, Groups] = field(default_factory=dict)
    """Kind name (``"tp"``, ``"dp-cp"``) → its groups, as far as known."""
    agreeing: tuple[Source, ...] = ()


def from_coordinates(table: Mapping[str, RankArray]) -> Evidence | None:
    """Evidence from what workers say of themselves; ``None`` if they say nothing."""
    axes = {_AXIS_SYNONYMS.get(a, a): v for a, v in table.items() if (v >= 0).any()}
    if not axes:
        return None
    known = {a: v for a, v in axes.items() if (v >= 0).all()}
    for part in (known, {a: v for a, v in known.items() if a not in EXPERT_AXES}):
        layout = _layout_of(part)
        if layout is not None:
            return Evidence("coordinates", axes, _kinds_of(layout), _family_of(layout))
    return Evidence("coordinates", axes, (), lambda kind: None)


def _layout_of(axes: Mapping[str, RankArray]) -> RankLayout | None:
    """The layout of complete coordinates; ``None`` where they give roles only: a worker may tell fewer axes than place
    it.
    """
    try:
        return custom(axes)
    except TopologyError:
        return None


def from_process_groups(families: Mapping[Axes, Groups], world: int) -> Evidence | None:
    """Evidence from process groups as ``recognise`` found them; ``None`` if none says anything of a role."""
    telling = {axes: groups for axes, groups in families.items() if axes != WORLD}
    if not telling:
        return None
    axes = {next(iter(kind)): groups.position(world) for kind, groups in telling.items() if len(kind) == 1}
    return Evidence("process_groups", axes, tuple(telling), telling.get)


def from_world_group(world: int) -> Evidence:
    """Evidence of a job whose only process group holds all ranks: plainly data parallel. Only for want of any other."""
    everyone = Groups.uniform(np.arange(world, dtype=np.int64)[None, :])
    kind: Axes = frozenset({"dp"})
    return Evidence("process_groups", {"dp": everyone.position(world)}, (kind,), {kind: everyone}.get)


def from_layout(layout: RankLayout) -> Evidence:
    """Evidence from a framework preset and its sizes."""
    return Evidence("layout", layout.coordinates(), _kinds_of(layout), _family_of(layout))


def reconcile(world: int, evidence: Sequence[Evidence]) -> Placement:
    """One placement from all *evidence*, most trusted first; an axis that a better source lacks is taken from the next.

    :raises TopologyError: if two sources contradict each other, naming the first rank that differs.
    """
    for i, better in enumerate(evidence):
        for worse in evidence[i + 1 :]:
            _compare(better, worse, world)
    if not evidence:
        return Placement(world, "none")
    axes: dict[str, RankArray] = {}
    groups: dict[str, Groups] = {}
    for source in evidence:
        for axis, values in source.axes.items():
            known = axes.get(axis)
            axes[axis] = values if known is None else np.where(known >= 0, known, values)
        for kind in source.kinds:
            family = source.family(kind)
            name = kind_name(kind)
            if family is not None and groups.get(name, family).members.size <= family.members.size:
                groups[name] = family
    return Placement(world, evidence[0].source, axes, groups, tuple(e.source for e in evidence[1:]))


def _kinds_of(layout: RankLayout) -> tuple[Axes, ...]:
    return tuple(dict.fromkeys(frozenset(k.axes) for k in layout.kinds.values()))


def _family_of(layout: RankLayout) -> Callable[[Axes], Groups | None]:
    def family(kind: Axes) -> Groups | None:
        for grid in layout.grids.values():
            wanted = set(kind)
            if "dp" in wanted and "dp" not in grid.axes and "dp_shard" in grid.axes:
                wanted = (wanted - {"dp"}) | {"dp_replicate", "dp_shard"}
            if "dp_shard" in wanted and "dp_shard" not in grid.axes and "dp" in grid.axes:
                wanted = (wanted - {"dp_shard"}) | {"dp"}
            if wanted - {"cp"} <= set(grid.axes) and wanted & set(grid.axes):
                return grid.groups(tuple(wanted))
        return None

    return family


def _compare(better: Evidence, worse: Evidence, world: int) -> None:
    for axis in sorted(set(better.axes) & set(worse.axes)):
        a, b = better.axes[axis], worse.axes[axis]
        differs = np.flatnonzero((a != b) & (a >= 0) & (b >= 0))
        if differs.size:
            r = int(differs[0])
            raise TopologyError(
                f"rank {r} is {axis} {int(a[r])} by {_WORDS[better.source]}, but {axis} {int(b[r])} by {_WORDS[worse.source]}",
                do="correct the parallel sizes or their order",
            )
    for kind in sorted({*better.kinds, *worse.kinds}, key=kind_name):
        first, second = better.family(kind), worse.family(kind)
        if first is None or second is None:
            continue
        a, b = first.leaders(world), second.leaders(world)
        differs = np.flatnonzero((a != b) & (a >= 0) & (b >= 0))
        sizes = _sizes(first, world), _sizes(second, world)
        differs = np.union1d(differs, np.flatnonzero((sizes[0] != sizes[1]) & (sizes[0] > 0) & (sizes[1] > 0)))
        if differs.size:
            r = int(differs[0])
            mine, other = brief(first.containing(r)), brief(second.containing(r))
            raise TopologyError(
                f"the {kind_name(kind)} group of rank {r} is {mine} by {_WORDS[better.source]}, "
                f"but {other} by {_WORDS[worse.source]}",
                do="correct the parallel sizes or their order",
            )


def _sizes(groups: Groups, world: int) -> RankArray:
    out = np.zeros(world, dtype=np.int64)
    out[groups.members] = np.repeat(np.diff(groups.offsets), np.diff(groups.offsets))
    return out
