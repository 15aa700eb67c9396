"""Distributions that can be merged: counts in logarithmic bins (after DDSketch: Masson, Rim, Lee, VLDB 2019). Pure.

Bin *i* counts the values in ``(γ^(i−1), γ^i]`` with γ = (1 + α) / (1 − α), so that any quantile is known to a share α of its
value. Merging adds counts: the sketch of a whole is the merge of its parts' sketches, whatever the parts, and in any order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from eroica.schemas.base import Int, Record
from eroica.schemas.errors import SchemaError

ACCURACY = 0.05
"""α: largest relative error of a quantile. Part of the contract: sketches of another α cannot be merged with these."""
GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
LOWEST = -70
"""The bin of all that is a thousandth or less; it stands for 0."""
HIGHEST = 350
"""The bin of all that is larger than any duration or rate: 10^15."""
MAX_BINS = 64
"""Bins kept. The lowest are merged into one, so that what is above it stays exact; without a gap 64 bins span a factor of 600."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Sketch(Record, frozen=True, kw_only=True):
    """A distribution: ``counts[k]`` values lie in bin ``bins[k]``; bins ascend, counts are above 0."""

    bins: list[Int] = msgspec.field(default_factory=list)
    counts: list[Int] = msgspec.field(default_factory=list)

    @property
    def total(self) -> int:
        """How many values it stands for."""
        return sum(self.counts)


def sketch_of(values: Floats) -> Sketch:
    """The sketch of *values*, shape (n,), any order; NaN and what is below 0 count as 0."""
    return sketch_of_bins(bins_of(values))


def bins_of(values: Floats) -> Ints:
    """The bin of each value; shape as *values*."""
    inside = np.fmin(np.fmax(values, GAMMA**LOWEST), GAMMA**HIGHEST)
    return np.ceil(np.log(inside) / math.log(GAMMA) - 1e-12).astype(np.int64).clip(LOWEST, HIGHEST)


def sketch_of_bins(numbers: Ints) -> Sketch:
    """The sketch of values in these bins, from :func:`bins_of`, shape (n,)."""
    counts = np.bincount(numbers - LOWEST)
    bins = np.flatnonzero(counts)
    return _kept((bins + LOWEST).tolist(), counts[bins].tolist())


def merge(sketches: Sequence[Sketch]) -> Sketch:
    """The sketch of all values that *sketches* stand for.

    :raises SchemaError: one of them is none: its columns differ in length, or its bins do not ascend within the range.
    """
    together: dict[int, int] = {}
    for one in sketches:
        check(one)
        for number, count in zip(one.bins, one.counts, strict=True):
            together[number] = together.get(number, 0) + count
    bins = sorted(together)
    return _kept(bins, [together[b] for b in bins])


def quantile(sketch: Sketch, share: float) -> float:
    """The value below which *share* (0..1) of the values lie, to a relative :data:`ACCURACY`; 0 for an empty sketch.

    Where all of :data:`MAX_BINS` bins are used, the lowest also holds all that is below it.
    """
    # The nearest rank: the tail of a few values is their largest.
    place, seen = max(1, math.ceil(share * sketch.total - 1e-9)), 0
    for number, count in zip(sketch.bins, sketch.counts, strict=True):
        seen += count
        if seen >= place:
            return 0.0 if number <= LOWEST else 2 * GAMMA**number / (GAMMA + 1)
    return 0.0


def check(sketch: Sketch) -> None:
    """Whether a sketch from the wire is one.

    :raises SchemaError: it is not.
    """
    bins, counts = sketch.bins, sketch.counts
    sound = len(bins) == len(counts) <= MAX_BINS and all(c > 0 for c in counts)
    if not sound or any(b <= a for a, b in itertools.pairwise(bins)) or any(not LOWEST <= b <= HIGHEST for b in bins):
        raise SchemaError("a sketch's bins do not ascend within their range, or have no counts", where="sketch")


def _kept(bins: list[int], counts: list[int]) -> Sketch:
    """The highest :data:`MAX_BINS` bins, the others merged into the lowest of them."""
    more = len(bins) - MAX_BINS
    if more > 0:
        bins, counts = bins[more:], [sum(counts[: more + 1]), *counts[more + 1 :]]
    return Sketch(bins=bins, counts=counts)
