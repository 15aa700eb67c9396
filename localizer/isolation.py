"""The smallest group of workers that can be taken out as a whole and holds all suspects (ByteRobust)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from eroica.localizer.frame import Frame, Ints
from eroica.schemas.ranks import RankRanges, format_ranks
from eroica.schemas.verdicts import IsolationGroup

MAX_KIND = 100


class Groups:
    """The groups of a job's workers; reads their members once for all causes of a verdict."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    @cached_property
    def _known(self) -> list[tuple[str, str, RankRanges]]:
        """Communicators and comparison classes: kind, members as ranges, members."""
        groups = [(c.kind or c.name, c.ranks) for c in self._frame.communicators if c.ranks]
        groups += [(f"class {name}", text) for name, text in sorted(self._frame.request.classes.items())]
        return [(kind, text, RankRanges.parse(text)) for kind, text in groups]

    def smallest(self, ranks: Ints, hosts: Iterable[str] = ()) -> IsolationGroup:
        """A host, a communicator or a comparison class that holds *ranks* (without any: the workers of *hosts*), else the job.

        Of several the one with fewest members; linear in the size of the job.
        """
        frame, wanted, named = self._frame, np.unique(ranks), set(hosts)
        if wanted.size == 0 and named:
            wanted = np.array(sorted(r for r, host in frame.host_of_rank.items() if host in named), dtype=np.int64)
        candidates: list[tuple[int, str, str]] = []
        if wanted.size:
            host = frame.host_of_rank.get(int(wanted[0]))
            if host is not None and all(frame.host_of_rank.get(r) == host for r in wanted.tolist()):
                members = [rank for rank, name in frame.host_of_rank.items() if name == host]
                candidates.append((len(members), "host", format_ranks(members)))
            candidates += [(len(group), kind, text) for kind, text, group in self._known if _holds(group, wanted)]
        if not candidates:
            return IsolationGroup(kind="world", ranks=format_ranks(frame.expected))
        _, kind, text = min(candidates)
        return IsolationGroup(kind=kind[:MAX_KIND], ranks=text)


def _holds(group: RankRanges, wanted: Ints) -> bool:
    """Whether all of *wanted* (ascending) are in *group*."""
    if len(group) < wanted.size or int(wanted[0]) not in group or int(wanted[-1]) not in group:
        return False
    at = np.searchsorted(np.array(group.firsts), wanted, side="right") - 1
    return bool(((at >= 0) & (wanted <= np.array(group.lasts)[np.maximum(at, 0)])).all())
