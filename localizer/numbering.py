"""Sorting and numbering of integer columns: the same as numpy's, with fewer passes over memory where numbers are small."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_DIGIT_BITS = 16
"""Numpy's stable sort of 16-bit numbers is a counting sort: one pass over them."""
_SPARSE = 4
"""A table of all possible numbers is worth its memory up to so many of them an entry."""
_FEW = 4_096
"""Below, one call of numpy is the fastest."""


def stable_order(key: Ints) -> Ints:
    """What ``np.argsort(key, kind="stable")`` returns, for numbers of 0 and more."""
    if key.size < _FEW or bool((key[1:] >= key[:-1]).all()):
        return np.argsort(key, kind="stable")
    order = np.argsort((key & 0xFFFF).astype(np.uint16), kind="stable")
    top = int(key.max()) >> _DIGIT_BITS
    shift = _DIGIT_BITS
    while top:
        digit = ((key[order] >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
        top >>= _DIGIT_BITS
        shift += _DIGIT_BITS
    return order


def distinct(column: Ints) -> tuple[Ints, Ints]:
    """What ``np.unique(column, return_inverse=True)`` returns."""
    number, count = numbered(column)
    values = np.empty(count, dtype=np.int64)
    values[number] = column
    return values, number


def numbered(*columns: Ints) -> tuple[Ints, int]:
    """Equal tuples of the columns get equal numbers, from 0 in the order of the tuples; and how many there are.

    Shape (n,), from columns of shape (n,).
    """
    if columns[0].size == 0:
        return np.empty(0, dtype=np.int64), 0
    key, span = np.zeros(columns[0].size, dtype=np.int64), 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        width = high - low + 1
        if span * width >= 2**62:
            # Sequence numbers may be anything; what counts is which of them are equal.
            key, span = _dense(key, span)
            if span * width >= 2**62:
                shown, column = np.unique(column, return_inverse=True)
                low, width = 0, shown.size
        if width == 1:
            continue
        column = column.reshape(-1) - low if low else column.reshape(-1)
        key = column if span == 1 else key * width + column
        span *= width
    return _dense(key, span)


def first_seen(*columns: Ints) -> tuple[Ints, Ints]:
    """Equal tuples get equal numbers, from 0 in the order in which they first stand there; and where each does so first."""
    number, count = numbered(*columns)
    first = np.empty(count, dtype=np.int64)
    first[number[::-1]] = np.arange(number.size)[::-1]
    order = np.argsort(first)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    return place[number], first[order]


def _dense(key: Ints, span: int) -> tuple[Ints, int]:
    if span <= _SPARSE * key.size:
        seen = np.zeros(span, dtype=np.bool_)
        seen[key] = True
        number = np.cumsum(seen) - 1
        return number[key], int(number[-1]) + 1
    order = stable_order(key)
    ranked = key[order]
    number = np.concatenate(([0], np.cumsum(ranked[1:] != ranked[:-1])))
    out = np.empty(key.size, dtype=np.int64)
    out[order] = number
    return out, int(number[-1]) + 1


def heads_of(sorted_key: Ints) -> Ints:
    """Where each run of equal numbers begins."""
    if sorted_key.size == 0:
        return np.empty(0, dtype=np.int64)
    return np.concatenate(([0], np.flatnonzero(sorted_key[1:] != sorted_key[:-1]) + 1))


def sums(group: Ints, values: npt.NDArray[np.float64], groups: int) -> npt.NDArray[np.float64]:
    """Sum of *values* by group, added in their order, shape (groups,)."""
    return np.bincount(group, values, groups).astype(np.float64, copy=False)
