"""Sets of ranks as strings of ranges, ``"0-31,40"``: a verdict stays small at 100,000 ranks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from eroica.schemas.errors import SchemaError

MAX_RANK = 1_048_575
"""Largest rank accepted from the wire, ten times the largest jobs: bounds the memory that a hostile ``"0-999999999"`` could ask
for."""

RankArray = npt.NDArray[np.int64]


def format_ranks(ranks: Iterable[int] | RankArray) -> str:
    """Write *ranks* (any order, duplicates allowed) as ascending ranges.

    Postcondition: ``parse_ranks(format_ranks(r))`` equals ``sorted(set(r))``.

    >>> format_ranks([3, 1, 2, 7])
    '1-3,7'
    """
    array = np.sort(ranks if isinstance(ranks, np.ndarray) else np.fromiter((int(r) for r in ranks), dtype=np.int64))
    if array.size == 0:
        return ""
    array = array[np.concatenate(([True], array[1:] != array[:-1]))]  # np.unique loads numpy.ma, 15 ms and 2 MB, once
    breaks = np.flatnonzero(np.diff(array) != 1)
    starts = array[np.concatenate(([0], breaks + 1))]
    ends = array[np.concatenate((breaks, [array.size - 1]))]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts.tolist(), ends.tolist(), strict=True))


def say_ranks(text: str, most: int = 0) -> str:
    """Ranges of ranks with their noun, as people read them; every text for people goes through here.

    :param most: characters of the ranges that are kept, if not 0; those that are not are counted.

    >>> say_ranks("3"), say_ranks("0-2,5"), say_ranks(""), say_ranks("0,2,4-9", 4)
    ('rank 3', 'ranks 0-2,5', 'no ranks', 'ranks 0,2 … and 6 more')
    """
    if not text:
        return "no ranks"
    return f"rank {text}" if text.isdecimal() else f"ranks {cut_ranks(text, most)}"


def cut_ranks(text: str, most: int) -> str:
    """Ranges of ranks cut between two of them, with the number of ranks left out; whole if *most* is 0.

    :param most: characters of the ranges that are kept; the first range is kept whatever its length, up to that of two ranks.

    >>> cut_ranks("0,2,4-9", 4), cut_ranks("0,2,4-9", 7)
    ('0,2 … and 6 more', '0,2,4-9')
    """
    if not most or len(text) <= most:
        return text
    end = text.rfind(",", 0, most + 1)
    end = text.find(",") if end < 0 else end
    kept, rest = (text[:end], text[end + 1 :]) if end >= 0 else (text, "")
    try:
        left = len(RankRanges.parse(rest))
        RankRanges.parse(kept)
    except SchemaError:  # a verdict's text need not be ranges
        return f"{text[: most - 1]}…"
    return f"{kept} … and {left} more" if left else kept


def parse_ranks(text: str) -> RankArray:
    """Read ranges back into a sorted int64 array, shape (n,).

    :raises SchemaError: as :meth:`RankRanges.parse`.
    """
    return RankRanges.parse(text).array()


class RankRanges:
    """A set of ranks as its ranges, read but not spelled out: a few bytes whatever the set's size."""

    __slots__ = ("firsts", "lasts")

    def __init__(self, firsts: list[int], lasts: list[int]) -> None:
        """Ascending ranges that neither overlap nor touch, ends included."""
        self.firsts = firsts
        self.lasts = lasts

    @classmethod
    def parse(cls, text: str) -> RankRanges:
        """Read ranges, in any order and overlapping as they may.

        :raises SchemaError: for anything but ascending or repeated ranges of ranks in ``0..MAX_RANK``.
        """
        found: list[tuple[int, int]] = []
        total = 0
        for part in text.split(",") if text else ():
            low, dash, high = part.partition("-")
            if not _is_rank(low) or (dash and not _is_rank(high)):
                raise SchemaError(f"{part[:40]!r} is not a rank or a range of ranks", do="write ranks as '0-31,40'")
            first, last = int(low), int(high or low)
            if last < first or last > MAX_RANK:
                raise SchemaError(f"{part[:40]!r} is not an ascending range within 0..{MAX_RANK}")
            total += last - first + 1
            if total > MAX_RANK + 1:
                raise SchemaError("the set names more ranks than a job can have")
            found.append((first, last))
        found.sort()
        firsts: list[int] = []
        lasts: list[int] = []
        for first, last in found:
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        return cls(firsts, lasts)

    def __contains__(self, rank: int) -> bool:
        """Whether *rank* is in the set; logarithmic in the number of ranges."""
        at = bisect_right(self.firsts, rank) - 1
        return at >= 0 and rank <= self.lasts[at]

    def __len__(self) -> int:
        """Number of ranks."""
        return sum(self.lasts) - sum(self.firsts) + len(self.firsts)

    def __str__(self) -> str:
        """As :func:`format_ranks` writes it."""
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(self.firsts, self.lasts, strict=True))

    def array(self) -> RankArray:
        """All ranks, ascending, shape (n,)."""
        if not self.firsts:
            return np.empty(0, dtype=np.int64)
        return np.concatenate([np.arange(a, b + 1, dtype=np.int64) for a, b in zip(self.firsts, self.lasts, strict=True)])


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 8
