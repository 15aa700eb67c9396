"""Which process group an operation of gloo belongs to: its annotation does not say, but every group has threads of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from eroica.producers.trace.columns import ANNOTATION, Trace
from eroica.producers.trace.naming import host_collective

THREADS_OF_A_GROUP = 2
"""torch's default (ProcessGroupGloo::Options::threads); they are started together when the group is made."""


def gloo_groups(trace: Trace, named: dict[str, dict[str, Any]]) -> dict[int, str] | None:
    """Group by thread of the trace; None if the job has several groups of gloo and they cannot be told apart.

    Groups are made one after the other, so the threads of one follow on those of the other by number. That tells the groups if
    each thread of each was seen.

    :param named: as :func:`~eroica.producers.trace.identity.process_groups` gives it.
    """
    rows = trace.rows(ANNOTATION)
    rows = rows[trace.named(rows, _by_gloo)]
    threads = np.flatnonzero(np.bincount(trace.thread[rows], minlength=1)).tolist() if rows.size else []
    groups = [name for name, known in named.items() if known["size"] != 1 and "gloo" in (known.get("backend") or "gloo")]
    if not threads or not groups:
        return {}
    if len(groups) == 1:
        return dict.fromkeys(threads, groups[0])
    if len(threads) != THREADS_OF_A_GROUP * len(groups) or not all(n.isdecimal() for n in groups):
        return None
    numbers = [trace.threads[t][1] for t in threads]
    if not all(n.isdecimal() and len(n) <= 18 for n in numbers):
        return None
    threads.sort(key=lambda t: int(trace.threads[t][1]))
    groups.sort(key=int)
    return {thread: groups[i // THREADS_OF_A_GROUP] for i, thread in enumerate(threads)}


def _by_gloo(name: str) -> bool:
    found = host_collective(name)
    return found is not None and found.backend == "gloo"
