"""Topic ``jobs``: the shape of a job, announced by each host's agent.

Key ``job/host``, compacted: the last word of each host stays. (One key a job would keep only the host that spoke last.)
"""

from __future__ import annotations

import msgspec

from eroica.schemas.base import Int, Message, Record


class RankInfo(Record, frozen=True, kw_only=True):
    """One worker process as its host sees it."""

    rank: Int
    local_rank: Int = -1
    pid: Int = 0
    device: str = ""
    """Device model, e.g. ``"cpu"`` or ``"NVIDIA H200"``."""
    coords: dict[str, Int] = msgspec.field(default_factory=dict)
    """Coordinates in the parallel layout where the worker knows them, e.g. ``{"pp": 0, "dp": 3, "tp": 1}``."""


class ProcessGroup(Record, frozen=True, kw_only=True):
    """A process group that really exists in the job."""

    name: str
    kind: str = ""
    """Its description, e.g. ``"default_pg"``, ``"mesh_dp"``, ``"TENSOR_MODEL_PARALLEL_GROUP"``."""
    backend: str = ""
    ranks: str
    """Members as ranges, ``"0-3,8"``."""


class Layout(Record, frozen=True, kw_only=True):
    """A framework preset with its sizes, where the job tells one."""

    framework: str
    sizes: dict[str, Int] = msgspec.field(default_factory=dict)
    order: str = ""


class JobAnnouncement(Message, frozen=True, kw_only=True, tag="job"):
    """A host's part of a job.

    Written by agents only: when their first worker says hello, on every change, and every ``announce_interval_ms`` as a sign of
    life. Any number of repetitions means the same as one. All hosts of one launch carry the same ``run_id``.
    """

    job: str
    run_id: str
    host: str
    world_size: Int
    ranks: list[RankInfo]
    process_groups: list[ProcessGroup] = msgspec.field(default_factory=list)
    layout: Layout | None = None
    framework: str = ""
    launcher: str = ""
    started_at_us: Int = 0
    """When the first worker said hello, µs since the epoch by the host; the newest launch of a job's name wins by it."""
    announced_at_us: Int = 0
    ended: bool = False
    """All workers of this host have ended: in an orderly way, or they were killed and have been gone for a minute."""
