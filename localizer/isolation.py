"""The smallest group of workers that can be taken out as a whole and holds all suspects (ByteRobust)."""

from __future__ import annotations

import numpy as np

from eroica.localizer.frame import Frame, Ints
from eroica.schemas.ranks import RankRanges, format_ranks
from eroica.schemas.verdicts import IsolationGroup

MAX_KIND = 100


def isolation_group(frame: Frame, ranks: Ints, hosts: list[str] | None = None) -> IsolationGroup:
    """A host, a communicator or a comparison class that holds *ranks* (without any: the workers of *hosts*), else the job.

    Of several the one with fewest members; linear in the size of the job.
    """
    wanted = np.unique(ranks)
    if wanted.size == 0 and hosts:
        named = set(hosts)
        wanted = np.array(sorted(r for r, host in frame.host_of_rank.items() if host in named), dtype=np.int64)
    if wanted.size == 0:
        return IsolationGroup(kind="world", ranks=format_ranks(frame.expected))
    candidates: list[tuple[int, str, str]] = []
    host = frame.host_of_rank.get(int(wanted[0]))
    if host is not None and all(frame.host_of_rank.get(r) == host for r in wanted.tolist()):
        members = [rank for rank, name in frame.host_of_rank.items() if name == host]
        candidates.append((len(members), "host", format_ranks(members)))
    groups = [(c.kind or c.name, c.ranks) for c in frame.communicators if c.ranks]
    groups += [(f"class {name}", text) for name, text in sorted(frame.request.classes.items())]
    for kind, text in groups:
        size = _size_if_holds(text, wanted)
        if size:
            candidates.append((size, kind, text))
    if not candidates:
        return IsolationGroup(kind="world", ranks=format_ranks(frame.expected))
    _, kind, text = min(candidates)
    return IsolationGroup(kind=kind[:MAX_KIND], ranks=text)


def _size_if_holds(text: str, wanted: Ints) -> int:
    """Members of the group *text*, 0 if it lacks one of *wanted* (ascending)."""
    group = RankRanges.parse(text)
    if len(group) < wanted.size or int(wanted[0]) not in group or int(wanted[-1]) not in group:
        return 0
    at = np.searchsorted(np.array(group.firsts), wanted, side="right") - 1
    inside = (at >= 0) & (wanted <= np.array(group.lasts)[np.maximum(at, 0)])
    return len(group) if bool(inside.all()) else 0
