"""Topic ``control``: profile requests (detect, cli → agents, group). Key job."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import msgspec

from eroica.schemas.base import MAX_NAME_CHARS, Int, Message
from eroica.schemas.errors import SchemaError
from eroica.schemas.ranks import MAX_RANK, RankRanges

Reason = Literal["degradation", "spike", "blocked", "manual", "scheduled", "offline"]
"""``scheduled``: nobody complains; the profile shows what is healthy in this job."""
Mode = Literal["profile", "stacks"]

MAX_CLASSES = 1_024
"""Comparison classes of one request: pipeline stages by device models. Each is opened by a message that repeats the request."""
SIMULATED = "simulated"
"""The detail of a request that the simulator makes itself, at the step that its scenario names."""
MAX_PROFILE_MS = 3_600_000
MAX_PROFILE_STEPS = 100_000
"""A longer profile is a slip: no agent records it, and detect takes what is profiled for innocent."""


class ProfileRequest(Message, frozen=True, kw_only=True, tag="profile_request"):
    """Profile the same iterations on every rank of a job.

    Deterministic ``request`` id: the same trigger gives the same request, and whoever has seen an id ignores it. Exactly one of
    ``steps`` and ``duration_ms`` is positive for ``mode="profile"``; both are 0 for ``mode="stacks"``.
    """

    request: str
    job: str
    run_id: str
    reason: Reason
    mode: Mode = "profile"
    start_step: Int = 0
    """First step to profile, ahead of every rank when the request was made; later hearers start at their next step and say so."""
    steps: Int = 0
    duration_ms: Int = 0
    with_stack: bool = True
    """Record Python call stacks (names the user's function, costs more while profiling)."""
    world_size: Int
    classes: dict[str, str]
    """Comparison class → its ranks as ranges. Invariant: classes are disjoint and cover 0..world_size-1."""
    topology_source: str = "unknown"
    """Where the classes come from, e.g. ``process_groups``, ``coordinates``, ``none``."""
    issued_at_us: Int
    """Event time of the trigger, µs since the epoch."""
    deadline_ms: Int
    """How long after the first summary (or the request) a class may stay incomplete before it is closed."""
    detail: str = ""
    """For a person: the rule and its figures."""
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    """The rule's figures for programs: observed_us, baseline_us, threshold …"""


def checked_classes(request: ProfileRequest) -> dict[str, RankRanges]:
    """The classes of *request*, once it is known to keep what :class:`ProfileRequest` promises. Takes no memory for the ranks.

    :raises SchemaError: an impossible world, classes that overlap or reach outside of it, lengths that make no sense.
    """
    where = f"control, request {request.request[:64]!r}"
    if not 1 <= request.world_size <= MAX_RANK + 1:
        raise SchemaError(f"a world of {request.world_size} ranks is impossible", where=where, do=f"use 1..{MAX_RANK + 1}")
    if request.mode == "profile" and (request.steps > 0) == (request.duration_ms > 0):
        raise SchemaError("exactly one of steps and duration_ms must be positive", where=where)
    if request.steps > MAX_PROFILE_STEPS or request.duration_ms > MAX_PROFILE_MS:
        raise SchemaError(
            f"a profile of {request.steps} steps or {request.duration_ms} ms is too long",
            where=where,
            do=f"ask for at most {MAX_PROFILE_STEPS} steps or {MAX_PROFILE_MS} ms",
        )
    if len(request.classes) > MAX_CLASSES:
        raise SchemaError(f"{len(request.classes)} classes are more than {MAX_CLASSES}", where=where)
    if any(len(name) > MAX_NAME_CHARS for name in request.classes):
        raise SchemaError(f"the name of a class has over {MAX_NAME_CHARS} characters", where=where)
    classes = {name: RankRanges.parse(text) for name, text in request.classes.items()}
    ranges = sorted((a, b) for ranks in classes.values() for a, b in zip(ranks.firsts, ranks.lasts, strict=True))
    if any(first <= last for (_, last), (first, _) in pairwise(ranges)):
        raise SchemaError("a rank is in two classes", where=where)
    if ranges and ranges[-1][1] >= request.world_size:
        raise SchemaError(f"rank {ranges[-1][1]} of a class lies outside of a world of {request.world_size}", where=where)
    return classes
