"""Folders of nodes, each of which numbers its ranks from 0: one job, if its size says so, and then numbered node by node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eroica.producers.trace.filenames import folder_of_place, step_of_place
from eroica.producers.trace.folder import Found
from eroica.producers.trace.listing import relative_to
from eroica.schemas.ranks import format_ranks

__all__ = ["JobSigns", "number_nodes"]

_NODE = re.compile(r"(?<![a-z])(?:node|host|machine|server|instance|pod|nid|ip)(?![a-z])[-_.]?", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")
MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class JobSigns:
    """What a trace tells of its job beside its rank."""

    world: int = 0
    """Ranks of the job, or of its largest communicator; 0 if neither is told."""
    host: str = ""
    groups: tuple[tuple[int, ...], ...] = ()
    """Members of the process groups that it is in."""


def number_nodes(found: Sequence[Found], told: Sequence[JobSigns], root: Path = Path()) -> tuple[list[Found], list[str]]:
    """Number the ranks of a job over its nodes' folders, where names count them from 0 in each; else leave them.

    That it is one job needs three things: every folder holds ranks 0 to L − 1, once each, by the names of files; the world that
    traces or communicators tell is as large as all of them together; and the folders are nodes by their names or by the hosts
    in the traces. Nodes follow each other by their names, as launchers number them; process groups that a rank must be in, and
    would not be, speak against it.

    :param told: of each of *found*.
    :returns: the same traces in the same order, and what was done; or what to do, where the folders may be nodes of one job.
    """
    found = list(found)
    folders: dict[str, list[int]] = {}
    for i, one in enumerate(found):
        place = relative_to(one.path, root)
        if one.source != "file_name" or one.places > 1 or step_of_place(place):
            return found, []
        folders.setdefault(folder_of_place(place), []).append(i)
    width = len(found) // max(len(folders), 1)
    if len(folders) < 2 or any(sorted(found[i].rank for i in mine) != list(range(width)) for mine in folders.values()):
        return found, []
    names = sorted(folders, key=_natural)
    by_name, by_host = all(_NODE.search(name) for name in names), _one_host_each(folders, told)
    if by_host is False:
        return found, []
    nodes = by_name or (by_host and _at_one_time(found, folders))
    number = {i: node * width + found[i].rank for node, name in enumerate(names) for i in folders[name]}
    worlds = {one.world for one in told if one.world > 0}
    fits = all(number[i] in group for i in number for group in told[i].groups)
    if not nodes and worlds != {len(found)}:
        return found, []
    if not nodes or worlds != {len(found)} or not fits:
        last = found[folders[names[1]][0]]
        return found, [
            f"{len(names)} folders each hold ranks 0-{width - 1}: if they are nodes of one job, say each trace's rank, e.g. "
            f"--rank {relative_to(last.path, root).as_posix()}={width + last.rank}"
        ]
    shown = ", ".join(f"{name} {format_ranks(sorted(number[i] for i in folders[name]))}" for name in names[:MAX_NAMED])
    more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    note = (
        f"each of {len(names)} folders counts its ranks from 0, and the job has {len(found)}: taken as its nodes, numbered one "
        f"after the other ({shown}{more})"
    )
    node = {i: name for name, mine in folders.items() for i in mine}
    return [replace(one, rank=number[i], node=node[i]) for i, one in enumerate(found)], [note]


def _one_host_each(folders: dict[str, list[int]], told: Sequence[JobSigns]) -> bool | None:
    """Whether each folder's traces name one host, and no other's does; None if not all name one."""
    hosts = [{told[i].host for i in mine} for mine in folders.values()]
    if any("" in some for some in hosts):
        return None
    return all(len(some) == 1 for some in hosts) and len(set().union(*hosts)) == len(hosts)


def _at_one_time(found: Sequence[Found], folders: dict[str, list[int]]) -> bool:
    """Whether the traces of all folders overlap."""
    begin = max(min(found[i].start_us for i in mine) for mine in folders.values())
    end = min(max(found[i].end_us for i in mine) for mine in folders.values())
    return begin <= end


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """By numbers where there are some: node2 before node10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBER.split(name[:500]) if part)
