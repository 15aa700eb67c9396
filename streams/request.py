"""A trigger becomes a profile request."""

from __future__ import annotations

import math

from eroica.schemas.control import MAX_CLASSES, ProfileRequest, Reason
from eroica.schemas.ids import stable_id
from eroica.schemas.ranks import format_ranks
from eroica.schemas.settings import AgentSettings, DetectSettings
from eroica.streams.rules import Finding
from eroica.topology.jobview import JobView

MAX_CLASSES_BYTES = 400_000
"""Classes that take more in a request fall back to one class: the request must fit a message, and a group message carries it."""

LONGEST_PROFILE_MS: int = AgentSettings.model_fields["max_profile_ms"].default
"""Agents stop a profile after this, whatever was asked; detect does not hear of it where theirs is set otherwise."""
MAX_WAIT_MS = 3_600_000


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
    trigger: int | None = None,
) -> ProfileRequest:
    """The request for a trigger at *step*: deterministic, its id names job, launch, rule and step.

    :param mean_us: mean iteration, µs; 0 if unknown.
    :param trigger: what the id names in place of the step.
    :param view: what is known of the job; ignored unless it is complete and of this launch.
    """
    stacks = reason == "blocked"
    lead_steps = lead(settings, mean_us)
    classes, source, note = _classes(view, run_id, world_size)
    return ProfileRequest(
        request=stable_id("req", job, run_id, reason, step if trigger is None else trigger),
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
    """Steps that *request* profiles; those of a time, and of the longest profile that agents record, by the mean iteration."""
    if request.mode == "stacks":
        return 0
    steps = request.steps or math.ceil(request.duration_ms * 1_000 / max(mean_us, 1.0))
    return min(steps, math.ceil(LONGEST_PROFILE_MS * 1_000 / max(mean_us, 1.0)))


def comes_in_time(request: ProfileRequest, last_step: int, mean_us: float) -> bool:
    """Whether the profile begins before its deadline; else nobody waits for it any more and nothing is profiled."""
    ahead_us = (request.start_step - last_step) * mean_us
    return ahead_us <= 1_000 * min(request.deadline_ms + request.duration_ms, MAX_WAIT_MS)


def _classes(view: JobView | None, run_id: str, world_size: int) -> tuple[dict[str, str], str, str]:
    everyone = {"all": "0" if world_size == 1 else f"0-{world_size - 1}"}
    if view is None or view.run_id != run_id or not view.complete:
        return everyone, "unknown", ""
    if view.world_size != world_size:
        note = f"; the announced world size {view.world_size} contradicts {world_size}, so all ranks are compared with each other"
        return everyone, "unknown", note
    classes = {name: format_ranks(view.classes[name]) for name in sorted(view.classes)}
    if len(classes) > MAX_CLASSES or sum(len(name) + len(ranks) + 8 for name, ranks in classes.items()) > MAX_CLASSES_BYTES:
        return (
            everyone,
            "unknown",
            "; the comparison classes are too many for a message, so all ranks are compared with each other",
        )
    return classes, view.topology_source, ""
