"""Pipelines told by who sends to whom.

Ranks that hold consecutive stages pass activations on, and gradients back; those that hold the same stage do not. So the sends of
a job show its pipelines where no process group does.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

__all__ = ["pipelines"]

MIN_RING = 3
MIN_PAIRS = 3
"""Two ranks that send both ways are two stages, or a ring of two peers. With so many pairs workers have peers in either case."""


def pipelines(sends: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Each pipeline's ranks by stage, ascending by first rank; empty if the sends are not those of pipelines.

    A pipeline is a chain, or, with several stages a rank, a ring in which neighbours send both ways (a ring of one way is that
    of ring attention, between peers). All have the same length, and their ranks rise with the stage.

    >>> pipelines([(0, 2), (2, 4), (4, 2), (1, 3), (3, 5)])
    [[0, 2, 4], [1, 3, 5]]
    >>> pipelines([(0, 1), (1, 2), (2, 0)])
    []

    :param sends: pairs of sender and receiver, repeated as often as one likes.
    """
    ways = {(a, b) for a, b in sends if a != b}
    near: dict[int, set[int]] = {}
    for a, b in ways:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    found: list[list[int]] = []
    left = set(near)
    while left:
        line = _line(min(left), near)
        if line is None or not _rises(line):
            return []
        closed = len(line) >= MIN_RING and line[0] in near[line[-1]]
        if closed and any((b, a) not in ways for a, b in ways if a in line):
            return []
        found.append(line)
        left -= set(line)
    if len({len(line) for line in found}) != 1:
        return []
    doubtful = len(found[0]) == 2 and len(found) < MIN_PAIRS and any((b, a) in ways for a, b in ways)
    return [] if doubtful else found


def _line(rank: int, near: dict[int, set[int]]) -> list[int] | None:
    """The chain or ring that holds *rank*, from its lowest end on; ``None`` where ranks have more than two neighbours."""
    line, seen = [rank], {rank}
    for at_end in (True, False):
        while ahead := sorted(near[line[-1 if at_end else 0]] - seen):
            seen.add(ahead[0])
            line.insert(len(line) if at_end else 0, ahead[0])
    if any(len(near[one]) > 2 for one in line):
        return None
    return line if line[0] < line[-1] else line[::-1]


def _rises(line: list[int]) -> bool:
    return all(a < b for a, b in pairwise(line))
