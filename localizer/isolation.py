"""The smallest group of workers that can be taken out as a whole and holds all suspects (ByteRobust)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
        self._read: dict[int, tuple[int, Ints, Ints]] = {}

    @cached_property
    def _known(self) -> tuple[list[tuple[str, str]], Ints, Ints]:
        """Communicators and comparison classes: kind, members as ranges; and the least and greatest member of each."""
        groups = [(c.kind or c.name, c.ranks) for c in self._frame.communicators if c.ranks]
        groups += [(f"class {name}", text) for name, text in sorted(self._frame.request.classes.items())]
        ends = np.array([_ends(text) for _, text in groups], dtype=np.int64).reshape(-1, 2)
        return groups, ends[:, 0], ends[:, 1]

    def _holding(self, wanted: Ints) -> Iterator[tuple[int, str, str]]:
        """Size, kind and members of the groups that hold all of *wanted*, ascending; only those that may are read whole."""
        groups, least, greatest = self._known
        for at in np.flatnonzero((least <= wanted[0]) & (wanted[-1] <= greatest)).tolist():
            kind, text = groups[at]
            if at not in self._read:
                group = RankRanges.parse(text)
                self._read[at] = len(group), np.array(group.firsts), np.array(group.lasts)
            size, firsts, lasts = self._read[at]
            if size >= wanted.size and _holds(firsts, lasts, wanted):
                yield size, kind, text

    def smallest(self, ranks: Ints, hosts: Iterable[str] = ()) -> IsolationGroup:
        """A host, a communicator or a comparison class that holds *ranks* (without any: the workers of *hosts*), else the job.

        Of several the one with fewest members; linear in the size of the job.
        """
        frame, wanted, named = self._frame, np.unique(ranks), set(hosts)
        if wanted.size == 0 and named:
            wanted = frame.ranks_on(named)
        candidates: list[tuple[int, str, str]] = []
        if wanted.size:
            host = frame.host_at(int(wanted[0]))
            members = frame.ranks_on({host}) if host is not None else wanted[:0]
            if np.isin(wanted, members).all():
                candidates.append((len(members), "host", format_ranks(members)))
            candidates += self._holding(wanted)
        if not candidates:
            return IsolationGroup(kind="world", ranks=format_ranks(frame.expected))
        _, kind, text = min(candidates)
        return IsolationGroup(kind=kind[:MAX_KIND], ranks=text)


def _ends(text: str) -> tuple[int, int]:
    """Least and greatest rank of ranges in any order; of what are no ranges, none that leave anything out."""
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal():
        return int(first), int(last)
    try:
        numbers = [int(number) for number in text.replace("-", ",").split(",")]
    except ValueError:
        return 0, 2**62
    return min(numbers), max(numbers)


def _holds(firsts: Ints, lasts: Ints, wanted: Ints) -> bool:
    """Whether all of *wanted* (ascending) are in ranges with these ends."""
    at = np.searchsorted(firsts, wanted, side="right") - 1
    return bool(((at >= 0) & (wanted <= lasts[np.maximum(at, 0)])).all())
