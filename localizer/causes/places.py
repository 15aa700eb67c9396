"""Rows as places: hosts of which most workers are among them, the others one by one."""

from __future__ import annotations

import numpy as np

from eroica.localizer.frame import Ints

MAX_SINGLE = 8
"""More single workers are one cause together."""


def places(rows: Ints, by_host: dict[str, list[int]]) -> list[tuple[Ints, list[str]]]:
    """*rows* (ascending) by host where a host's workers are slow together; else alone, or all together if they are many.

    With one host only, or one worker a host, a host cannot be told from its worker.

    :returns: pairs of rows and hosts; no hosts for single workers.
    """
    guilty = set(rows.tolist())
    hosts = sorted(
        host
        for host, mine in by_host.items()
        if len(by_host) > 1
        and len(mine) > 1
        and not guilty.isdisjoint(mine)
        and sum(row in guilty for row in mine) > len(mine) / 2
    )
    on_hosts = np.array(sorted(row for host in hosts for row in by_host[host] if row in guilty), dtype=np.int64)
    alone = np.setdiff1d(rows, on_hosts)
    found: list[tuple[Ints, list[str]]] = [(on_hosts, hosts)] if hosts else []
    parts = [alone] if alone.size > MAX_SINGLE else list(alone[:, None])
    return [*found, *((part, []) for part in parts if part.size)]
