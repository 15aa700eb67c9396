"""Orders and joins of columns that numpy lacks, or does at a price."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def middle(values: Floats) -> float:
    """The median, or the greater of two; numpy's own loads a package of its own for it."""
    half = values.size // 2
    return float(np.partition(values, half)[half])


def time_order(ts: Floats, dur: Floats) -> Ints:
    """Ascending by start, then falling by duration; the second key is sorted only where starts are equal."""
    order = np.argsort(ts, kind="stable")
    equal = ts[order][1:] == ts[order][:-1]
    tied = np.flatnonzero(np.concatenate((equal, [False])) | np.concatenate(([False], equal))) if equal.any() else order[:0]
    rows = order[tied]
    order[tied] = rows[np.lexsort((-dur[rows], ts[rows]))]
    return order


def pairs(correlation: Ints, calls: Ints, device: Ints) -> Ints:
    """For each row of *device* the row of *calls* with the same correlation, else -1; shape of *correlation*, -1 elsewhere."""
    calls, device = calls[correlation[calls] > 0], device[correlation[device] > 0]
    found = np.full(correlation.size, -1, np.int64)
    if calls.size and device.size:
        calls = calls[np.argsort(correlation[calls], kind="stable")]
        ids = correlation[calls]
        k = np.minimum(np.searchsorted(ids, correlation[device]), ids.size - 1)
        found[device] = np.where(ids[k] == correlation[device], calls[k], -1)
    return found


def dense(keys: Ints, bound: int) -> tuple[Ints, Ints]:
    """Distinct keys ascending, and each key's place among them: by a table where *bound* allows one, else by sorting.

    :param keys: 0 ≤ keys < bound.
    """
    if bound > max(8 * keys.size, 2**20):
        order = np.argsort(keys, kind="stable")
        first = np.ones(keys.size, np.bool_)
        np.not_equal(keys[order[1:]], keys[order[:-1]], out=first[1:])
        place = np.empty(keys.size, np.int64)
        place[order] = np.cumsum(first) - 1
        return keys[order[first]], place
    present = np.zeros(bound, np.bool_)
    present[keys] = True
    distinct = np.flatnonzero(present)
    place = np.empty(bound, np.int64)
    place[distinct] = np.arange(distinct.size)
    return distinct, place[keys]
