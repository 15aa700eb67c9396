"""Receive waits of expert-parallel exchanges as matrices [source, destination], and their effects taken out in turn.

Pure numpy. The decomposition follows DeepXTrace's idea: ratios to the median of the pairs that are as near to each other, then
what a whole row, a whole column, and a single cell have beyond that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from eroica.localizer.robust import median, spread_of
from eroica.localizer.tables import Floats, Ints
from eroica.schemas.groups import GroupChunk, ReceiveGroup
from eroica.schemas.ranks import format_ranks, parse_ranks, say_ranks

MIN_SIDE = 3
"""Fewer sources or destinations tell nothing."""
MIN_CELLS = 2
"""Figures that a row or a column needs."""
WITHOUT_LONGEST = 3
"""From so many reports on the longest is left out: what happens once does not last."""
LEAST = 0.05
"""A wait below this share of its block's median counts as that share."""


@dataclass(frozen=True)
class ReceiveTable:
    """One entry a worker and exchange; ``total_us`` and ``max_us`` hold a figure per source of the group."""

    groups: list[ReceiveGroup] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    total_us: list[list[float]] = field(default_factory=list)
    max_us: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(cls, heads: Sequence[GroupChunk], rows: Sequence[Ints]) -> ReceiveTable:
        """From chunks and each one's rows in the frame, -1 for workers that are left out."""
        out = cls()
        known: dict[ReceiveGroup, int] = {}
        for head, mine in zip(heads, rows, strict=True):
            told = head.receive_waits
            for i, row in enumerate(told.row):
                if (at := int(mine[row])) >= 0:
                    out.row.append(at)
                    out.group.append(known.setdefault(head.receive_groups[told.group[i]], len(known)))
                    out.count.append(told.count[i])
                    out.total_us.append(told.total_us[i])
                    out.max_us.append(told.max_us[i])
        out.groups.extend(known)
        return out

    def matrices(self, ranks: Ints, steps_of: Ints) -> Iterator[Matrix]:
        """The matrices large enough to be looked at, by name and sources.

        :param ranks: of each row of the frame.
        :param steps_of: of each row of the frame: how many steps it tells of.
        """
        entries: list[list[int]] = [[] for _ in self.groups]
        for i, group in enumerate(self.group):
            if self.count[i] > 0:
                entries[group].append(i)
        for number in sorted(range(len(self.groups)), key=lambda n: (self.groups[n].name, self.groups[n].sources)):
            sources = parse_ranks(self.groups[number].sources)
            fitting = (i for i in entries[number] if len(self.total_us[i]) == len(self.max_us[i]) == sources.size)
            by_row: dict[int, int] = {}
            for i in fitting:
                by_row.setdefault(self.row[i], i)  # what a worker tells twice counts once
            mine = [by_row[row] for row in sorted(by_row)]
            if sources.size < MIN_SIDE or len(mine) < MIN_SIDE:
                continue
            rows, count = np.array([self.row[i] for i in mine]), np.array([float(self.count[i]) for i in mine])
            total = np.array([self.total_us[i] for i in mine]).T
            longest = np.array([self.max_us[i] for i in mine]).T
            few = count < WITHOUT_LONGEST
            each = np.where(few, total / count, (total - longest) / np.maximum(count - 1, 1))
            wait = each * count / steps_of[rows]
            wait[~(np.isfinite(wait) & (total >= 0) & (longest >= 0) & (longest <= total * (1 + 1e-6) + 1))] = np.nan
            wait[sources[:, None] == ranks[rows]] = np.nan
            yield Matrix(
                self.groups[number].name,
                sources,
                rows,
                np.maximum(wait, 0.0),
                np.where(few, np.nan, longest / np.maximum(each, 1e-9)),
            )


@dataclass(frozen=True)
class Matrix:
    """How long destinations wait for sources."""

    name: str
    sources: Ints
    """Ranks, ascending, shape (S,)."""
    rows: Ints
    """Rows of the frame of the destinations, ascending, shape (D,)."""
    wait_us: Floats
    """Per step, shape (S, D); NaN where it is not known."""
    worst: Floats
    """The longest report over the mean of the others, shape (S, D); NaN where there are too few."""

    @property
    def label(self) -> str:
        """How evidence and notes name it."""
        return f"{self.name} ({say_ranks(format_ranks(self.sources), 60)})"


@dataclass(frozen=True)
class Effects:
    """Logs of ratios, each beyond the effects before it; NaN where too little is known."""

    usual_us: Floats
    """Median of the pairs that are as near, shape (S, D)."""
    source: Floats
    """Shape (S,)."""
    destination: Floats
    """Shape (D,)."""
    pair: Floats
    """Shape (S, D)."""
    pair_us: Floats
    """The same in time, as effects that add up: who is late adds to each wait, and does not multiply it. Shape (S, D)."""
    source_spread: float
    destination_spread: float
    pair_spread: float
    """Robust standard deviations of what is chance and lasting difference."""


def effects(wait_us: Floats, near: npt.NDArray[np.bool_]) -> Effects:
    """Take out the medians of near and far pairs, then what sources, destinations and single pairs have beyond them.

    :param wait_us: shape (S, D), NaN where unknown (a rank and itself).
    :param near: shape (S, D): whether both sit on one host.
    """
    usual = np.full(wait_us.shape, np.nan)
    for block in (near, ~near):
        here = block & np.isfinite(wait_us)
        if here.any() and (middle := median(wait_us[here])) > 0:
            usual[block] = middle
    logs = np.log(np.maximum(wait_us, LEAST * usual) / usual)
    source = _centred(_medians(logs, 1))
    rest = logs - source[:, None]
    destination = _centred(_medians(rest, 0))
    pair = rest - destination
    known = pair[np.isfinite(pair)]
    more = wait_us - usual
    more = more - _medians(more, 1)[:, None]
    more = more - _medians(more, 0)
    each = spread_of(known) if known.size else 0.0
    rows, columns = source[np.isfinite(source)], destination[np.isfinite(destination)]
    return Effects(
        usual,
        source,
        destination,
        pair,
        more,
        max(_spread(rows), 1.25 * each / np.sqrt(max(wait_us.shape[1] - 1, 1))),
        max(_spread(columns), 1.25 * each / np.sqrt(max(wait_us.shape[0] - 1, 1))),
        each,
    )


def _spread(values: Floats) -> float:
    return spread_of(values) if values.size else 0.0


def _centred(values: Floats) -> Floats:
    known = values[np.isfinite(values)]
    return values - median(known) if known.size else values


def _medians(table: Floats, axis: int) -> Floats:
    """Medians of what is known along *axis*; NaN where less than :data:`MIN_CELLS` are."""
    ordered = np.sort(table, axis=axis)  # what is not known sorts last
    count = np.isfinite(table).sum(axis=axis)
    low = np.expand_dims(np.maximum(count - 1, 0) // 2, axis)
    high = np.expand_dims(np.minimum(count // 2, table.shape[axis] - 1), axis)
    middle = 0.5 * (np.take_along_axis(ordered, low, axis) + np.take_along_axis(ordered, high, axis))
    return np.where(count >= MIN_CELLS, middle.squeeze(axis), np.nan)
