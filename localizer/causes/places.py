"""Rows as places: hosts of which most workers are among them, the others one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from eroica.localizer.frame import Floats, Ints
from eroica.localizer.numbering import stable_order

MAX_SINGLE = 8
"""More single workers are one cause together."""
SHARED = 0.25
"""What slows a host slows all of its workers, by this share of what it does to those who stand out: else it is they alone."""


class RowsOfHosts(Mapping[str, list[int]]):
    """Host → its rows, ascending; hosts by their first row."""

    def __init__(self, host_of: Ints, names: list[str]) -> None:
        """From each row's host as an index into *names*."""
        self._host_of, self._names = host_of, names
        self._order = stable_order(host_of)
        self._ends = np.concatenate(([0], np.cumsum(np.bincount(host_of, minlength=len(names)))))

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._names)}

    def __getitem__(self, host: str) -> list[int]:
        place = self._place[host]
        rows: list[int] = self._order[self._ends[place] : self._ends[place + 1]].tolist()
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def holding(self, rows: Ints) -> list[str]:
        """Hosts of some rows, each once."""
        return [self._names[place] for place in np.unique(self._host_of[rows]).tolist()]


def places(rows: Ints, by_host: RowsOfHosts, excess_us: Floats) -> list[tuple[Ints, list[str]]]:
    """*rows* (ascending) by host where a host's workers are slow together; else alone, or all together if they are many.

    With one host only, or one worker a host, a host cannot be told from its worker.

    :param excess_us: of all workers, shape (n,).
    :returns: pairs of rows and hosts; no hosts for single workers.
    """
    guilty = set(rows.tolist())
    hosts = sorted(h for h in by_host.holding(rows) if len(by_host) > 1 and _together(by_host[h], guilty, excess_us))
    on_hosts = np.array(sorted(row for host in hosts for row in by_host[host] if row in guilty), dtype=np.int64)
    alone = np.setdiff1d(rows, on_hosts)
    found: list[tuple[Ints, list[str]]] = [(on_hosts, hosts)] if hosts else []
    parts = [alone] if alone.size > MAX_SINGLE else list(alone[:, None])
    return [*found, *((part, []) for part in parts if part.size)]


def _together(mine: list[int], guilty: set[int], excess_us: Floats) -> bool:
    """Whether most workers of a host are slow, and the others of them somewhat."""
    slow, rest = ([row for row in mine if (row in guilty) is wanted] for wanted in (True, False))
    if len(mine) < 2 or len(slow) <= len(rest):
        return False
    return not rest or float(np.median(excess_us[rest])) >= SHARED * float(np.median(excess_us[slow]))
