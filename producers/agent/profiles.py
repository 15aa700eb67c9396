"""The profiles that are under way on this host: asked for, answered, or given up at their deadline. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from eroica.producers.agent.hello import Rank, Text, convert
from eroica.producers.agent.launches import Run, Worker
from eroica.producers.hook.wire import WIRE_VERSION
from eroica.schemas.control import ProfileRequest
from eroica.schemas.outputs import Output
from eroica.schemas.summaries import Identity, SummaryError
from eroica.schemas.topics import message_key

MARGIN_US = 15_000_000
"""Beyond the expected end of a profile: its file is written, and the machine may be in trouble."""
FAREWELL_US = 5_000_000
"""A process that ends with a profile under way may still be writing it."""
LARGE_TRACE_BYTES = 32 * 2**20
"""A trace below this that gives no summary would give none without stacks either."""
MAX_PENDING = 8_192
MAX_ERROR_CHARACTERS = 500

_Nat = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """A hook's answer. Names are as in ``producers/hook/wire.py``."""

    pid: Annotated[int, Meta(ge=1, le=2**31)]
    request: Annotated[str, Meta(min_length=1, max_length=256)]
    path: Annotated[str, Meta(max_length=4_096)] = ""
    rank: Rank = 0
    first_step: int = -1
    last_step: int = -1
    late_by: _Nat = 0
    blocked_ms: Annotated[float, Meta(ge=0)] = 0.0
    started_wall_ns: _Nat = 0
    ended_wall_ns: _Nat = 0
    attempt: _Nat = 1
    notes: Annotated[tuple[Annotated[str, Meta(max_length=MAX_ERROR_CHARACTERS)], ...], Meta(max_length=8)] = ()
    error: Text | Annotated[str, Meta(max_length=60_000)] = ""


def parse_profiled(message: dict[str, Any]) -> Profiled | None:
    """Check a ``profiled`` message; ``None`` for one that cannot be understood."""
    try:
        return convert(message, Profiled)
    except msgspec.MsgspecError:
        return None


@dataclass
class Pending:
    """One rank's profile that was asked for."""

    who: Identity
    deadline_us: int
    command: dict[str, Any]
    allowed_us: int = 0
    """How long it was given."""
    notes: tuple[str, ...] = ()
    """For the summary."""
    sent: bool = False
    """The hook's socket took the command."""


def identity_of(run: Run, worker: Worker, request: str, cls: str, host: str) -> Identity:
    """Who a summary is of."""
    hello = worker.hello
    return Identity(
        job=run.job,
        run_id=run.run_id,
        request=request,
        cls=cls,
        rank=hello.rank,
        world_size=run.world_size,
        host=host,
        local_rank=hello.local_rank,
        pid=hello.pid,
        device=hello.device,
        coords=dict(hello.coords),
    )


def summary_key(who: Identity) -> str:
    """The key of whatever a rank says to a request."""
    return message_key(who.job, who.request, who.cls)


def failure(who: Identity, error: str, now_us: int) -> Output:
    """The rank is heard, but has no summary."""
    return Output(summary_key(who), SummaryError(who=who, error=error[:MAX_ERROR_CHARACTERS], ended_at_us=now_us), now_us)


def profile_command(
    request: ProfileRequest, directory: str, *, max_duration_ms: int, expires_ms: int, max_trace_bytes: int
) -> dict[str, Any]:
    """The ``profile`` message of wire.py."""
    return {
        "kind": "profile",
        "v": WIRE_VERSION,
        "request": request.request,
        "start_step": max(0, request.start_step),
        "steps": max(0, request.steps),
        "duration_ms": max(0, request.duration_ms),
        "with_stack": request.with_stack,
        "directory": directory,
        "max_duration_ms": max_duration_ms,
        "expires_ms": expires_ms,
        "max_trace_bytes": max_trace_bytes,
        "attempt": 1,
    }


def without_stacks(pending: Pending, trace_bytes: int, why: str, now_us: int) -> Pending | None:
    """The same profile once more, since its trace with stacks was of no use; ``None`` where that cannot help.

    It gets as much time as the first one got at most.
    """
    if trace_bytes < LARGE_TRACE_BYTES or not pending.command["with_stack"] or pending.command["attempt"] > 1:
        return None
    return Pending(
        who=pending.who,
        deadline_us=now_us + pending.allowed_us,
        allowed_us=pending.allowed_us,
        command={**pending.command, "with_stack": False, "attempt": 2},
        notes=(f"profiled again, without stacks: {why}"[:MAX_ERROR_CHARACTERS],),
    )


def deadline_us(request: ProfileRequest, worker: Worker, max_duration_ms: int, now_us: int) -> int:
    """When a rank that has not answered is given up: twice the expected time, and a margin.

    The expectation is steps until the end times the rank's own mean step, or the asked-for time.
    """
    ahead = max(0, request.start_step - (worker.last_step + 1)) + 2
    profile_us = min(request.duration_ms * 1_000 + request.steps * worker.mean_us, max_duration_ms * 1_000)
    return now_us + int(2 * (ahead * worker.mean_us + profile_us)) + MARGIN_US


class Profiles:
    """At most one entry a (request, process). Every entry ends in exactly one of: answered, failed."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, int], Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def ask(self, pending: Pending) -> bool:
        """Begin; false when too many are under way."""
        if len(self._pending) >= MAX_PENDING:
            return False
        self._pending[(pending.who.request, pending.who.pid)] = pending
        return True

    def answered(self, profiled: Profiled) -> Pending | None:
        """A hook answered; ``None`` if nobody waits for it (any more)."""
        return self._pending.pop((profiled.request, profiled.pid), None)

    def unsent(self) -> list[Pending]:
        """Those whose command has not been taken yet, in the order of asking."""
        return [pending for pending in self._pending.values() if not pending.sent]

    def farewell(self, living: Collection[int], now_us: int) -> None:
        """Processes outside of *living* have ended: little more can come from them."""
        for pending in self._pending.values():
            if pending.who.pid not in living:
                pending.deadline_us = min(pending.deadline_us, now_us + FAREWELL_US)

    def overdue(self, now_us: int) -> list[Pending]:
        """Take out those whose deadline has passed."""
        keys = [key for key, pending in self._pending.items() if pending.deadline_us <= now_us]
        return [self._pending.pop(key) for key in keys]

    def give_up(self) -> list[Pending]:
        """Take out all of them."""
        left = list(self._pending.values())
        self._pending.clear()
        return left

    def requests(self) -> set[str]:
        """Requests with a profile under way."""
        return {request for request, _ in self._pending}
