"""Topic ``control``: profile requests (detect, cli → agents, group). Key job."""

from __future__ import annotations

from typing import Literal

import msgspec

from eroica.schemas.base import Int, Message

Reason = Literal["degradation", "spike", "blocked", "manual", "offline"]
Mode = Literal["profile", "stacks"]


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
