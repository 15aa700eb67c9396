"""What is known of a running job, merged from its hosts' announcements.

Pure and order-independent: the same set of announcements gives the same view in whatever order and however often they
came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from eroica.schemas.errors import EroicaError, TopologyError
from eroica.schemas.jobs import JobAnnouncement, ProcessGroup
from eroica.schemas.ranks import RankArray
from eroica.topology.announcements import distinct_groups, place, ranks_of, world_size_of
from eroica.topology.grid import Groups
from eroica.topology.hosts import Hosts
from eroica.topology.roles import comparison_classes
from eroica.topology.sources import Placement

__all__ = ["JobView", "JobViewBuilder", "comparison_classes", "merge_announcements"]

OVERLAP_GRACE_US = 60_000_000
"""A former launch may go on announcing itself for this long after the next began (clocks differ, agents end late);
longer means that two jobs share a name."""
MAX_RUNS = 8
"""Launches of one name that are remembered: a job that restarts for months takes no more memory for it."""


@dataclass(frozen=True)
class JobView:
    """One launch of a job.

    Invariants: ``classes`` are disjoint and cover ``0..world_size-1``; ``missing`` are the ranks that no host
    announced; ``complete`` iff none is missing.
    """

    job: str
    run_id: str
    world_size: int
    hosts: Hosts
    process_groups: tuple[ProcessGroup, ...]
    """Distinct groups of all hosts, by kind, name and ranks."""
    placement: Placement
    classes: Mapping[str, RankArray]
    """Comparison class → its ranks, ascending."""
    devices: tuple[str, ...]
    """Device model by rank, empty where unknown."""
    missing: RankArray
    started_at_us: int
    framework: str = ""
    launcher: str = ""
    ended: bool = False
    """Every host that announced itself has ended."""

    @property
    def complete(self) -> bool:
        """Whether every rank has been announced."""
        return self.missing.size == 0

    @property
    def topology_source(self) -> str:
        """Where the classes come from: ``coordinates``, ``process_groups``, ``layout`` or ``none``."""
        return self.placement.source

    @property
    def groups(self) -> Mapping[str, Groups]:
        """Kind of group (``"tp"``, ``"dp-cp"``) → its groups, as far as known."""
        return self.placement.groups

    def host_of(self, rank: int) -> str:
        """The host of *rank*; empty while unknown."""
        index = int(self.hosts.host_of[rank])
        return self.hosts.names[index] if index >= 0 else ""

    def class_of(self, rank: int) -> str:
        """The comparison class of *rank*.

        :raises TopologyError: for a rank outside of the world.
        """
        for name, ranks in self.classes.items():
            at = int(np.searchsorted(ranks, rank))
            if at < ranks.size and ranks[at] == rank:
                return name
        raise TopologyError(f"rank {rank} is outside of 0..{self.world_size - 1}", where=f"job {self.job}")


def merge_announcements(announcements: Iterable[JobAnnouncement]) -> JobView:
    """The view of the newest launch among *announcements*, which are of one job.

    :raises TopologyError: for none, or if they contradict each other: world sizes, a rank on two hosts, a process group
        outside of the world, sources of the layout, or two launches of one name alive at once.
    """
    builder = JobViewBuilder()
    for announcement in announcements:
        builder.feed(announcement)
    return builder.view()


class JobViewBuilder:
    """Keeps the last word of each host of a job, and the view that follows from them.

    ``feed`` is cheap; ``view`` is computed again only after an announcement that changed something.
    """

    def __init__(self, *, overlap_grace_us: int = OVERLAP_GRACE_US) -> None:
        self._grace_us = overlap_grace_us
        self._last: dict[tuple[str, str], JobAnnouncement] = {}
        self._alive_at: dict[str, int] = {}
        self._job = ""
        self._view: JobView | None = None

    def feed(self, announcement: JobAnnouncement) -> bool:
        """Take in an announcement; true if the view may differ now.

        :raises TopologyError: if it is of another job than those before.
        """
        if self._job and announcement.job != self._job:
            raise TopologyError(f"an announcement of job {announcement.job!r} came among those of {self._job!r}")
        self._job = announcement.job
        key = (announcement.run_id, announcement.host)
        if not announcement.ended:
            alive = max(self._alive_at.get(announcement.run_id, 0), announcement.announced_at_us)
            self._alive_at[announcement.run_id] = alive
        former = self._last.get(key)
        if former is not None and not _is_newer(announcement, former):
            return False
        self._last[key] = announcement
        if former is not None and len(self._alive_at) == 1 and _content(former) == _content(announcement):
            return False
        self._view = None
        return True

    def view(self) -> JobView:
        """The view of the newest launch.

        :raises TopologyError: as ``merge_announcements``.
        """
        if self._view is None:
            self._view = _build(self._newest())
        return self._view

    def _newest(self) -> list[JobAnnouncement]:
        runs: dict[str, list[JobAnnouncement]] = {}
        for (run_id, _), announcement in self._last.items():
            runs.setdefault(run_id, []).append(announcement)
        if not runs:
            raise TopologyError("no host has announced itself yet", do="check that an agent runs on the job's hosts")
        began = {run_id: min(a.started_at_us for a in hosts) for run_id, hosts in runs.items()}
        by_age = sorted(runs, key=lambda run_id: (began[run_id], run_id))
        self._forget(by_age[:-MAX_RUNS])
        newest = by_age[-1]
        for run_id in sorted(runs):
            if run_id == newest or all(a.ended for a in runs[run_id]):
                continue
            if self._alive_at.get(run_id, 0) > began[newest] + self._grace_us:
                raise TopologyError(
                    f"two launches are alive under one name: {run_id} and {newest}",
                    where=f"job {self._job}",
                    do="give each job a name of its own",
                )
        return sorted(runs[newest], key=lambda a: a.host)

    def _forget(self, run_ids: list[str]) -> None:
        for run_id in run_ids:
            self._alive_at.pop(run_id, None)
        self._last = {key: a for key, a in self._last.items() if key[0] not in run_ids}


def _is_newer(one: JobAnnouncement, other: JobAnnouncement) -> bool:
    """Orders the words of one host; the content breaks ties, so that the order of arrival never decides."""
    a, b = (one.announced_at_us, one.ended), (other.announced_at_us, other.ended)
    return a > b or (a == b and msgspec.json.encode(one) > msgspec.json.encode(other))


def _content(a: JobAnnouncement) -> JobAnnouncement:
    return msgspec.structs.replace(a, announced_at_us=0)


def _build(hosts: list[JobAnnouncement]) -> JobView:
    first = hosts[0]
    where = f"job {first.job}, run {first.run_id}"
    try:
        world = world_size_of(hosts)
        by_rank = ranks_of(hosts, world)
        groups = distinct_groups(hosts)
        placement = place(hosts, by_rank, groups, world)
    except EroicaError as error:
        raise TopologyError(error.what, where=error.where or where, do=error.do) from error
    devices = tuple(by_rank.devices)
    return JobView(
        job=first.job,
        run_id=first.run_id,
        world_size=world,
        hosts=Hosts(tuple(a.host for a in hosts), by_rank.host_of, by_rank.local),
        process_groups=groups,
        placement=placement,
        classes=comparison_classes(placement, devices),
        devices=devices,
        missing=np.flatnonzero(by_rank.host_of < 0),
        started_at_us=min(a.started_at_us for a in hosts),
        framework=next((a.framework for a in hosts if a.framework), ""),
        launcher=next((a.launcher for a in hosts if a.launcher), ""),
        ended=all(a.ended for a in hosts),
    )
