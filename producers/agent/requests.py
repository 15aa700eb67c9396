"""Which requests of ``control`` are to be served, and in which class each rank of this host is. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from eroica.producers.agent.counters import Counters
from eroica.schemas.control import ProfileRequest, checked_classes

MAX_SEEN = 4_096
MAX_WAIT_MS = 3_600_000
MAX_AHEAD_UNKNOWN = 10_000
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
        if now_us > past_at_us(request):
            self._counters.add("requests_past")
            return False
        return True


def past_at_us(request: ProfileRequest) -> int:
    """From then on *request* is not taken up any more."""
    return request.issued_at_us + max(MIN_AGE_LIMIT_US, (2 * request.deadline_ms + request.duration_ms) * 1_000)


def closed_at_us(request: ProfileRequest) -> int:
    """Until then at least group waits for a first summary: a rank that appears later is not profiled for nobody."""
    return request.issued_at_us + (request.deadline_ms + request.duration_ms) * 1_000


def classes_of(request: ProfileRequest, ranks: Iterable[int]) -> dict[int, str]:
    """The comparison class of each of *ranks*; a rank that is in none is left out.

    :raises SchemaError: as :func:`checked_classes`.
    """
    members = checked_classes(request)
    found: dict[int, str] = {}
    for rank in sorted(set(ranks)):
        cls = next((name for name in sorted(members) if rank in members[name]), None)
        if cls is not None:
            found[rank] = cls
    return found


def starts_too_late(request: ProfileRequest, last_step: int, mean_us: float) -> bool:
    """Whether a rank would reach the first step only when nobody waits for its profile any more.

    Its hook would keep the command, and refuse all others meanwhile.

    :param mean_us: of the rank's last iterations; 0 if it has had none: then it may be so many steps ahead.
    """
    ahead = request.start_step - (last_step + 1)
    if mean_us <= 0:
        return ahead > MAX_AHEAD_UNKNOWN
    return ahead * mean_us > 1_000 * min(request.deadline_ms + request.duration_ms, MAX_WAIT_MS)
