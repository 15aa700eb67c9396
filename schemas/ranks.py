"""Sets of ranks as strings of ranges, ``"0-31,40"``: a verdict stays small at 100,000 ranks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from eroica.schemas.errors import SchemaError

MAX_RANK = 16_777_215
"""Largest rank accepted from the wire: bounds the memory that a hostile ``"0-999999999"`` could ask for."""

RankArray = npt.NDArray[np.int64]


def format_ranks(ranks: Iterable[int] | RankArray) -> str:
    """Write *ranks* (any order, duplicates allowed) as ascending ranges.

    Postcondition: ``parse_ranks(format_ranks(r))`` equals ``sorted(set(r))``.

    >>> format_ranks([3, 1, 2, 7])
    '1-3,7'
    """
    array = np.unique(np.fromiter((int(r) for r in ranks), dtype=np.int64))
    if array.size == 0:
        return ""
    breaks = np.flatnonzero(np.diff(array) != 1)
    starts = array[np.concatenate(([0], breaks + 1))]
    ends = array[np.concatenate((breaks, [array.size - 1]))]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts.tolist(), ends.tolist(), strict=True))


def parse_ranks(text: str) -> RankArray:
    """Read ranges back into a sorted int64 array, shape (n,).

    :raises SchemaError: for anything but ascending or repeated ranges of ranks in ``0..MAX_RANK``.
    """
    if not text:
        return np.empty(0, dtype=np.int64)
    parts: list[RankArray] = []
    total = 0
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not _is_rank(low) or (dash and not _is_rank(high)):
            raise SchemaError(f"{part[:40]!r} is not a rank or a range of ranks", do="write ranks as '0-31,40'")
        first, last = int(low), int(high or low)
        if last < first or last > MAX_RANK:
            raise SchemaError(f"{part[:40]!r} is not an ascending range within 0..{MAX_RANK}")
        total += last - first + 1
        if total > MAX_RANK + 1:
            raise SchemaError("the set names more ranks than a job can have")
        parts.append(np.arange(first, last + 1, dtype=np.int64))
    return np.unique(np.concatenate(parts))


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 8
