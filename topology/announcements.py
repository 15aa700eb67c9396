"""Merging the announcements of one launch's hosts, refusing those that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from eroica.schemas.errors import TopologyError
from eroica.schemas.jobs import JobAnnouncement, ProcessGroup
from eroica.schemas.jobs import Layout as LayoutRecord
from eroica.schemas.ranks import MAX_RANK, RankArray, parse_ranks
from eroica.topology.presets import FRAMEWORKS, build_layout
from eroica.topology.recognise import WORLD, kind_axes, recognise
from eroica.topology.sources import (
    Evidence,
    Placement,
    from_coordinates,
    from_layout,
    from_process_groups,
    from_world_group,
    reconcile,
)
from eroica.topology.unnamed import named_by_shape

__all__ = ["Ranks", "distinct_groups", "place", "ranks_of", "world_size_of"]

MAX_COORDINATE_AXES = 16
"""Axes of worker coordinates that are read; more are a mistake or an attack."""


def world_size_of(hosts: Sequence[JobAnnouncement]) -> int:
    """The world size that all *hosts* agree on.

    :raises TopologyError: if they do not.
    """
    first = hosts[0]
    if not 1 <= first.world_size <= MAX_RANK + 1:
        raise TopologyError(f"host {first.host} announces a world of {first.world_size} ranks", do=f"use 1..{MAX_RANK + 1}")
    for other in hosts:
        if other.world_size != first.world_size:
            raise TopologyError(
                f"host {first.host} announces a world of {first.world_size} ranks, host {other.host} one of {other.world_size}",
                do="give each job a name of its own, or restart the host that is left from another launch",
            )
    return first.world_size


@dataclass(slots=True)
class Ranks:
    """What the hosts say of each rank, in columns of shape (world,); -1 and empty where unknown."""

    host_of: RankArray
    local: RankArray
    devices: list[str]
    coords: dict[str, RankArray] = field(default_factory=dict)


def ranks_of(hosts: Sequence[JobAnnouncement], world: int) -> Ranks:
    """Where each rank runs. A host that ended gives way to one that took its ranks over.

    :raises TopologyError: for a rank outside of the world, one on two hosts that are alive, or an impossible
    coordinate.
    """
    out = Ranks(np.full(world, -1, dtype=np.int64), np.full(world, -1, dtype=np.int64), [""] * world)
    for index, announcement in sorted(enumerate(hosts), key=lambda item: (item[1].ended, item[0])):
        for info in announcement.ranks:
            r = info.rank
            if not 0 <= r < world:
                raise TopologyError(
                    f"host {announcement.host} announces rank {r}, but the world has {world} ranks",
                    do="check that all hosts run the same job with one world size",
                )
            holder = int(out.host_of[r])
            if holder >= 0:
                if holder == index or announcement.ended:
                    continue
                raise TopologyError(
                    f"rank {r} is announced by two hosts, {hosts[holder].host} and {announcement.host}",
                    do="give each job a name of its own, and each host a distinct host name",
                )
            out.host_of[r] = index
            out.local[r] = info.local_rank
            out.devices[r] = info.device
            for axis, value in info.coords.items():
                if axis not in out.coords:
                    if len(out.coords) == MAX_COORDINATE_AXES:
                        raise TopologyError(f"rank {r} has a coordinate {axis[:40]!r} beyond {MAX_COORDINATE_AXES} axes")
                    out.coords[axis] = np.full(world, -1, dtype=np.int64)
                if not 0 <= value < world:
                    raise TopologyError(f"rank {r} says that it is {axis[:40]} {value} of a world of {world} ranks")
                out.coords[axis][r] = value
    return out


def distinct_groups(hosts: Sequence[JobAnnouncement]) -> tuple[ProcessGroup, ...]:
    """The process groups of all hosts, each once, by kind, name and ranks."""
    distinct = {(g.kind, g.name, g.ranks): g for a in hosts for g in a.process_groups}
    return tuple(distinct[key] for key in sorted(distinct))


def place(hosts: Sequence[JobAnnouncement], ranks: Ranks, groups: tuple[ProcessGroup, ...], world: int) -> Placement:
    """The layout from all that the hosts tell, most trusted first.

    :raises TopologyError: if the sources contradict each other or the world size.
    """
    framework = next((a.framework for a in hosts if a.framework), "")
    groups = tuple(named_by_shape(groups, framework, world))
    families = recognise(groups, world)
    if WORLD in families and (size := families[WORLD].largest()) != world:
        raise TopologyError(
            f"the announced world size is {world}, but the default process group has {size} ranks",
            do="check WORLD_SIZE on the hosts",
        )
    evidence: list[Evidence | None] = [
        from_coordinates(ranks.coords),
        from_process_groups(families, world),
        _preset(hosts, world),
    ]
    known = [e for e in evidence if e is not None]
    if not known and WORLD in families and not _others(groups, world):
        known = [from_world_group(world)]
    return reconcile(world, known)


def _others(groups: tuple[ProcessGroup, ...], world: int) -> bool:
    """Whether there are groups of several but not all ranks whose purpose nobody told: then the job is not plainly data
    parallel.
    """
    return any(kind_axes(g.kind, g.name) is None and 1 < parse_ranks(g.ranks).size < world for g in groups)


def _preset(hosts: Sequence[JobAnnouncement], world: int) -> Evidence | None:
    told: dict[bytes, tuple[LayoutRecord, str]] = {}
    for a in hosts:
        if a.layout is not None:
            told.setdefault(msgspec.json.encode(a.layout, order="deterministic"), (a.layout, a.host))
    if len(told) > 1:
        one, two = sorted(host for _, host in told.values())[:2]
        raise TopologyError(
            f"hosts {one} and {two} announce different layouts", do="start all hosts with the same parallel sizes"
        )
    for layout, _ in told.values():
        if layout.framework in FRAMEWORKS:
            options: dict[str, int | str | bool] = {n: v for n, v in layout.sizes.items() if n != "order"}
            if layout.order:
                options["order"] = layout.order
            return from_layout(build_layout(layout.framework, world, options))
    return None
