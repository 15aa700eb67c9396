"""A trigger becomes a profile request."""

from __future__ import annotations

import math

from eroica.schemas.control import ProfileRequest, Reason
from eroica.schemas.ids import stable_id
from eroica.schemas.ranks import format_ranks
from eroica.schemas.settings import DetectSettings
from eroica.streams.rules import Finding
from eroica.topology.jobview import JobView

MAX_CLASSES_BYTES = 400_000
"""Classes that take more in a request fall back to one class: the request must fit a message, and a group message carries it."""


def profile_request(
    *,
    job: str,
    run_id: str,
    world_size: int,
    reason: Reason,
    step: int,
    mean_us: float,
    event_time_us: int,
    finding: Finding,
    view: JobView | None,
    settings: DetectSettings,
) -> ProfileRequest:
    """The request for a trigger at *step*: deterministic, its id names job, launch, rule and step.

    :param mean_us: mean iteration, µs; 0 if unknown.
    :param view: what is known of the job; ignored unless it is complete and of this launch.
    """
    stacks = reason == "blocked"
    lead_steps = lead(settings, mean_us)
    classes, source, note = _classes(view, run_id, world_size)
    return ProfileRequest(
        request=stable_id("req", job, run_id, reason, step),
        job=job,
        run_id=run_id,
        reason=reason,
        mode="stacks" if stacks else "profile",
        start_step=step if stacks else step + lead_steps,
        steps=0 if stacks else settings.profile_steps,
        duration_ms=0 if stacks or settings.profile_steps else settings.profile_ms,
        with_stack=settings.with_stack,
        world_size=world_size,
        classes=classes,
        topology_source=source,
        issued_at_us=event_time_us,
        deadline_ms=settings.deadline_ms,
        detail=finding.detail + note,
        figures=finding.figures,
    )


def lead(settings: DetectSettings, mean_us: float) -> int:
    """Steps between a trigger and the start of its profile: time enough for every rank to hear of it."""
    return max(settings.lead_steps, math.ceil(settings.lead_ms * 1_000 / mean_us) if mean_us > 0 else 0)


def profiled_steps(request: ProfileRequest, mean_us: float) -> int:
    """Steps that *request* profiles, estimated from the mean iteration where it asks for a time."""
    if request.mode == "stacks":
        return 0
    return request.steps or math.ceil(request.duration_ms * 1_000 / max(mean_us, 1.0))


def _classes(view: JobView | None, run_id: str, world_size: int) -> tuple[dict[str, str], str, str]:
    everyone = {"all": "0" if world_size == 1 else f"0-{world_size - 1}"}
    if view is None or view.run_id != run_id or not view.complete:
        return everyone, "unknown", ""
    if view.world_size != world_size:
        note = f"; the announced world size {view.world_size} contradicts {world_size}, so all ranks are compared with each other"
        return everyone, "unknown", note
    classes = {name: format_ranks(view.classes[name]) for name in sorted(view.classes)}
    if sum(len(name) + len(ranks) + 8 for name, ranks in classes.items()) > MAX_CLASSES_BYTES:
        return everyone, "unknown", "; the comparison classes do not fit a message, so all ranks are compared with each other"
    return classes, view.topology_source, ""
