"""The communicators of a job and the places (slots) that its traffic has in them, as their members see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eroica.schemas.jobs import ProcessGroup
from eroica.schemas.ranks import RankArray, format_ranks
from eroica.simulator.workload import Workload
from eroica.topology import Groups

__all__ = ["Channel", "Channels", "Place"]

MAX_LISTED = 30
"""Profilers cut a group's list of ranks here, so a summary does not know the members of a larger one."""
_DESCRIPTIONS = {
    "megatron": {
        "tp": "TENSOR_MODEL_PARALLEL_GROUP",
        "cp": "CONTEXT_PARALLEL_GROUP",
        "dp": "DATA_PARALLEL_GROUP",
        "dp-cp": "DATA_PARALLEL_GROUP_WITH_CP",
        "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
        "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    },
    "deepspeed": {"data": "data", "model": "model", "pipe": "pipe", "ep": "ep_size_"},
}


@dataclass(frozen=True, slots=True)
class Place:
    """A slot: an operation's place among its communicator's in the step."""

    op: int
    """Number in the step graph."""
    name: str
    index: int
    bytes: int
    kept: bool = True
    """Whether a summary holds its executions; else they count in the channel's totals only."""


@dataclass(frozen=True)
class Channel:
    """The traffic of one pipeline rank in one kind of communicator; one communicator a lane or group of lanes."""

    axis: str
    peer: int
    """The other pipeline rank of a ``pp`` channel, else -1."""
    places: tuple[Place, ...]


class Channels:
    """All communicators of a workload."""

    def __init__(self, work: Workload, steps: int, max_values: int) -> None:
        self._work = work
        self._first: dict[str, int] = {}
        number = 1
        self.pipeline = _pipeline(work)
        if self.pipeline is not None:
            self._first["pp"] = number
            number += len(self.pipeline)
        for axis, groups in work.groups.items():
            if axis == "world" or groups.largest() == work.world:
                continue
            self._first[axis] = number
            number += len(groups)
        self._pp_of = None if self.pipeline is None else self.pipeline.index(work.world)
        self._cache: dict[tuple[str, int], tuple[str, str, str, int]] = {}
        self.by_stage = [self._channels(stage, steps, max_values) for stage in range(work.rank_of.shape[0])]

    def identity(self, channel: Channel, stage: int, lane: int) -> tuple[str, str, str, int]:
        """Name, kind, ranks (empty if a profiler would cut them) and size of a member's communicator."""
        rank = int(self._work.rank_of[stage, lane])
        if channel.axis == "pp":
            other = int(self._work.rank_of[channel.peer, lane])
            pair = (rank, other) if rank < other else (other, rank)
            group = 0 if self._pp_of is None else int(self._pp_of[rank])
            name = f"{self._first['pp'] + group}:{pair[0]}:{pair[1]}"
            return name, self.kind("pp"), f"{pair[0]}-{pair[1]}" if pair[1] == pair[0] + 1 else f"{pair[0]},{pair[1]}", 2
        if channel.axis not in self._first:
            world = self._work.world
            return "0", "default_pg", "" if world > MAX_LISTED else format_ranks(range(world)), world
        group = int(self._work.group_of[channel.axis][rank])
        key = channel.axis, group
        known = self._cache.get(key)
        if known is None:
            members = _members(self._work.groups[channel.axis], group)
            ranks = _listed(members)
            name = str(self._first[channel.axis] + group)
            known = self._cache[key] = (name, self.kind(channel.axis), ranks, int(members.size))
        return known

    def kind(self, axis: str) -> str:
        """Description of the process groups along *axis*, as the framework gives it."""
        framework = self._work.layout.framework
        told = _DESCRIPTIONS.get(framework, {})
        if framework == "deepspeed" and axis == "pp":
            return told["pipe"]
        if axis == "ep" and framework == "deepspeed":
            return f"ep_size_{self._work.groups['ep'].largest()}"
        return told.get(axis, f"mesh_{axis}")

    def process_groups(self) -> Iterator[tuple[int, ProcessGroup]]:
        """Every group with its smallest member, in the order of their names."""
        world = self._work.world
        yield 0, ProcessGroup(name="0", kind="default_pg", backend="nccl", ranks="0" if world == 1 else f"0-{world - 1}")
        for axis, first in self._first.items():
            groups = self.pipeline if axis == "pp" else self._work.groups[axis]
            if groups is None:
                continue
            for number, members in enumerate(groups):
                name, ranks = str(first + number), format_ranks(members)
                yield int(members.min()), ProcessGroup(name=name, kind=self.kind(axis), backend="nccl", ranks=ranks)

    def _channels(self, stage: int, steps: int, max_values: int) -> list[Channel]:
        work = self._work
        ops = [op for op in work.traffic if work.step.graph.ops[op].stage == stage]
        lists: dict[tuple[str, int], list[int]] = {}
        for op in ops:
            if work.traffic[op].axis != "pp" and work.groups[work.traffic[op].axis].largest() < 2:
                continue
            lists.setdefault((work.traffic[op].axis, work.traffic[op].peer_stage), []).append(op)
        merged: dict[tuple[str, int], list[int]] = {}
        for (axis, peer), found in lists.items():
            # What runs over the default process group is one communicator, whatever the axis.
            merged.setdefault((axis if axis == "pp" or axis in self._first else "world", peer), []).extend(found)
        return [self._channel(axis, peer, found, steps, max_values) for (axis, peer), found in sorted(merged.items())]

    def _channel(self, axis: str, peer: int, ops: list[int], steps: int, max_values: int) -> Channel:
        traffic = self._work.traffic
        every = -(-len(ops) * steps // max_values) if len(ops) * steps > max_values else 1
        places: list[Place] = []
        for way in ("send", "recv") if axis == "pp" else ("",):
            # Between two ranks each direction is numbered by itself, by its sends, which stand before their receives.
            mine = sorted((op for op in ops if way in ("", traffic[op].op)), key=lambda op: op - (traffic[op].op == "recv"))
            last = len(mine) - 1
            places += [
                Place(op, traffic[op].op, i, traffic[op].bytes, kept=i % every == 0 or i == last) for i, op in enumerate(mine)
            ]
        return Channel(axis, peer, tuple(places))


def _listed(members: RankArray) -> str:
    """Members as a summary lists them."""
    if members.size > MAX_LISTED:
        return ""
    low, high = int(members.min()), int(members.max())
    return f"{low}-{high}" if high - low + 1 == members.size > 1 else format_ranks(members)


def _pipeline(work: Workload) -> Groups | None:
    names = [k for k in work.layout.kinds if k.split(".")[-1] in ("pp", "pipe")]
    if not names or work.rank_of.shape[0] < 2:
        return None
    return work.layout.groups(names[0])


def _members(groups: Groups, number: int) -> RankArray:
    return groups.members[groups.offsets[number] : groups.offsets[number + 1]]
