"""How long this rank waited for each source of an expert-parallel exchange, added up while a profile runs.

No trace holds it: the library's own kernels count it, and the program hands it over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

MAX_GROUPS = 8
MAX_SOURCES = 1_024
"""As the summaries' schema has them; this package imports nothing of ours."""
MAX_US = 1e12
MAX_NAME = 80


class ReceiveWaits:
    """Sums by group and source. Not more than :data:`MAX_GROUPS` groups of :data:`MAX_SOURCES` sources."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self.left_out = 0
        """Calls of groups beyond the limit."""
        self._refused = False

    def add(self, name: str, ranks: Sequence[int], waits_us: Any) -> None:
        """Add what was waited since the last call.

        :param waits_us: one figure a source, a tensor or a function that returns them and begins anew. What a function returns
            first is dropped: it holds what came before this profile.
        :raises ValueError, TypeError, OverflowError: what was handed over cannot be; nothing is added from then on.
        """
        if self._refused:
            return
        self._refused = True  # what cannot be once will not be better at the next call: one failure a profile
        self._add(str(name)[:MAX_NAME], ranks, waits_us)
        self._refused = False

    def _add(self, name: str, ranks: Sequence[int], waits_us: Any) -> None:
        group = self._groups.get(name)
        if group is None and len(self._groups) >= MAX_GROUPS:
            self.left_out += 1
            return
        told = waits_us() if callable(waits_us) else waits_us
        sources, waits = _numbers(ranks, int), _numbers(told, float)
        if len(sources) != len(waits):
            raise ValueError(f"{len(waits)} waits for {len(sources)} sources")
        if not all(0 <= us < MAX_US for us in waits) or min(sources, default=0) < 0 or len(set(sources)) < len(sources):
            raise ValueError("waits are finite and not negative, sources are different ranks")
        if group is None:
            group = self._groups[name] = _Group(sources)
            if callable(waits_us):
                return
        group.add(sources, waits)

    def summary(self) -> list[dict[str, Any]]:
        """As written beside the trace; sources ascend, times in µs."""
        return [{"group": name, **group.summary()} for name, group in self._groups.items() if group.count]


class _Group:
    __slots__ = ("_order", "_sources", "_totals", "_worst", "count")

    def __init__(self, sources: list[int]) -> None:
        self._sources = sources
        self._order = sorted(range(len(sources)), key=sources.__getitem__)
        self._totals = [0.0] * len(sources)
        self._worst = [0.0] * len(sources)
        self.count = 0

    def add(self, sources: list[int], waits: list[float]) -> None:
        if sources != self._sources:
            raise ValueError("the group's sources changed within a profile")
        self._totals = [a + b for a, b in zip(self._totals, waits, strict=True)]
        self._worst = [a if a > b else b for a, b in zip(self._worst, waits, strict=True)]
        self.count += 1

    def summary(self) -> dict[str, Any]:
        return {
            "ranks": [self._sources[i] for i in self._order],
            "count": self.count,
            "total_us": [round(self._totals[i], 1) for i in self._order],
            "max_us": [round(self._worst[i], 1) for i in self._order],
        }


def _numbers(values: Any, kind: Callable[[Any], Any]) -> list[Any]:
    """A list of numbers from a sequence, an array or a tensor, of bounded length."""
    if len(values) > MAX_SOURCES:
        raise ValueError(f"more than {MAX_SOURCES} sources")
    numbers = [kind(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a figure is not finite")
    return numbers
