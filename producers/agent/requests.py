"""Which requests of ``control`` are to be served, and in which class each rank of this host is. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from eroica.producers.agent.counters import Counters
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import SchemaError
from eroica.schemas.ranks import parse_ranks

MAX_SEEN = 4_096
MIN_AGE_LIMIT_US = 120_000_000
"""A request may always be this old: its issuer's clock or its way may be late."""


class RequestFilter:
    """Lets each request through once, unless it is too old by event time. Memory is bounded."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._seen: OrderedDict[str, None] = OrderedDict()

    def accept(self, request: ProfileRequest, now_us: int) -> bool:
        """Whether *request* is new and not past. Nothing else is asked of it: it may be of a job that is not here."""
        if request.request in self._seen:
            self._counters.add("requests_repeated")
            return False
        self._seen[request.request] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        limit_us = max(MIN_AGE_LIMIT_US, (2 * request.deadline_ms + request.duration_ms) * 1_000)
        if now_us - request.issued_at_us > limit_us:
            self._counters.add("requests_past")
            return False
        return True


def classes_of(request: ProfileRequest, ranks: Iterable[int]) -> dict[int, str]:
    """The comparison class of each of *ranks*; a rank that is in none is left out.

    :raises SchemaError: classes that are no sets of ranks, or a request that asks for nothing.
    """
    if request.mode == "profile" and (request.steps > 0) == (request.duration_ms > 0):
        raise SchemaError(
            "exactly one of steps and duration_ms must be positive", where=f"control, request {request.request[:64]}"
        )
    wanted = np.array(sorted(set(ranks)), dtype=np.int64)
    found: dict[int, str] = {}
    for cls in sorted(request.classes):
        members = np.intersect1d(wanted, parse_ranks(request.classes[cls]), assume_unique=True)
        for rank in members.tolist():
            found.setdefault(rank, cls)
    return found
