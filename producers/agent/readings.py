"""Readings of hardware, one moment at a time, and what a window of them comes to. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import msgspec

from eroica.schemas.summaries import Metric

Kind = Literal["gauge", "counter", "events"]
"""A level; a running total that is told per second; a running total of which the increase over the window is told."""

MAX_READINGS = 1_024
"""Of one source at one moment; more are cut."""
KEPT = 1_200
"""Moments kept: five minutes at four a second."""
MAX_NAME = 64
LONGEST_GAP_US = 5_000_000
"""Between two moments of a rate; a longer one would blur what came before the profile into it."""


class Reading(NamedTuple):
    """One figure. ``device`` is empty where the host has only one of it; counters are scaled to ``unit`` (per second)."""

    name: str
    unit: str
    value: float
    device: str = ""
    kind: Kind = "gauge"


class Series(msgspec.Struct, frozen=True):
    """Levels of one resource over a window, as share of the most, for the summariser: ascending in time, µs since the epoch."""

    resource: str
    at_us: list[int]
    value: list[float]


class Source(Protocol):
    """Where readings come from. Used by one thread."""

    def read(self, pids: frozenset[int]) -> Iterable[Reading]:
        """The figures of this moment; what cannot be read now is left out.

        :param pids: the training processes of this host with their children.
        :raises Absent: there is nothing to read on this host, now and later.
        """
        ...


class Absent(Exception):
    """A source that a host lacks; the text says what and, where it helps, what to do."""


@dataclass(frozen=True, slots=True)
class Moment:
    """All figures of a source at one time, by (name, device)."""

    at_us: int
    values: dict[tuple[str, str], Reading]


def moment(at_us: int, readings: Iterable[Reading]) -> Moment:
    """Bounded and finite; of figures with one name and device the last counts."""
    values: dict[tuple[str, str], Reading] = {}
    for reading in readings:
        if len(values) >= MAX_READINGS:
            break
        if math.isfinite(reading.value):
            values[reading.name[:MAX_NAME], reading.device[:MAX_NAME]] = reading
    return Moment(at_us, values)


class Moments:
    """The last moments of one source. Written by one thread, read by others."""

    def __init__(self) -> None:
        self._kept: deque[Moment] = deque(maxlen=KEPT)

    def add(self, one: Moment) -> None:
        """Keep it."""
        self._kept.append(one)

    @property
    def last_us(self) -> int:
        """When the last was taken; 0 before."""
        return self._kept[-1].at_us if self._kept else 0

    def metrics(self, start_us: int, end_us: int) -> list[Metric]:
        """The window's figures by name and device: of levels mean, lowest and highest; of counters the rates; of events how many.

        A window in which no moment lies takes the nearest before and after it.
        """
        inside = self.around(start_us, end_us)
        if not inside:
            return []
        out = []
        for key in sorted({key for one in inside for key in one.values}):
            series = [(one.at_us, one.values[key]) for one in inside if key in one.values]
            told = _told(series)
            if told:
                name, device = key
                out.append(
                    Metric(
                        name=name,
                        unit=series[-1][1].unit,
                        mean=_round(sum(told) / len(told)),
                        min=_round(min(told)),
                        max=_round(max(told)),
                        device=device,
                    )
                )
        return out

    def around(self, start_us: int, end_us: int) -> list[Moment]:
        """The moments of a window with the nearest before and after it, ascending."""
        kept = list(self._kept)
        first = max((i for i, one in enumerate(kept) if one.at_us <= start_us), default=0)
        last = next((i for i, one in enumerate(kept) if one.at_us >= end_us), len(kept) - 1)
        return kept[first : last + 1]


def _told(series: list[tuple[int, Reading]]) -> list[float]:
    kind = series[-1][1].kind
    if kind == "gauge":
        return [reading.value for _, reading in series]
    if kind == "events":
        return [max(0.0, series[-1][1].value - series[0][1].value)] if len(series) > 1 else []
    rates = []
    for (before_us, before), (after_us, after) in pairwise(series):
        elapsed_us = after_us - before_us
        grown = after.value - before.value  # a counter that fell was reset: nothing is known of that interval
        if 0 < elapsed_us <= LONGEST_GAP_US and grown >= 0:
            rates.append(grown / (elapsed_us / 1e6))
    return rates


def _round(value: float) -> float:
    return float(f"{value:.6g}")
