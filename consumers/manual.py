"""Asking for a profile by hand: the same request that detect makes, with a person as its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from eroica.bus import BusProducer, CompactedTable, cloudevent_headers, read_partitions
from eroica.bus.producer import wait_delivered
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.control import ProfileRequest, checked_classes
from eroica.schemas.errors import SchemaError, UsageError
from eroica.schemas.ids import stable_id
from eroica.schemas.iterations import StepPartial
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.ranks import format_ranks
from eroica.schemas.settings import DetectSettings, KafkaSettings
from eroica.schemas.topics import message_key
from eroica.schemas.wording import say_count
from eroica.topology import JobView, merge_announcements

LOOK_BACK_MS = 60_000
"""How far back the job's progress is looked for."""
READ_TIMEOUT_S = 30.0
SILENT_INTERVALS = 2
"""A host that has not been announced for so many intervals is silent, to us as to the agents."""
MAX_HOSTS = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a launch has come."""

    last_step: int
    mean_us: float
    """Mean duration of its last closed steps."""


def plan_request(
    view: JobView,
    progress: Progress | None,
    settings: DetectSettings,
    *,
    now_us: int,
    steps: int = 0,
    duration_ms: int = 0,
    detail: str = "asked for by hand",
) -> ProfileRequest:
    """The request for *view*'s launch. Pure.

    It starts far enough ahead for every rank to hear of it; with unknown *progress* at each rank's next step, which the ranks
    then say in their summaries.

    :raises UsageError: unless exactly one of *steps* and *duration_ms* is positive, or if the job has ended.
    :raises SchemaError: the profile is too long, or the classes cannot be.
    """
    if (steps > 0) == (duration_ms > 0) or min(steps, duration_ms) < 0:
        raise UsageError("a profile has either a number of steps or of seconds", do="give one of --steps and --seconds")
    if view.ended:
        raise UsageError("the job has ended", where=f"job {view.job}, run {view.run_id}")
    start = 0
    if progress is not None:
        ahead = math.ceil(settings.lead_ms * 1_000 / progress.mean_us) if progress.mean_us > 0 else 0
        start = progress.last_step + max(settings.lead_steps, ahead)
    request = ProfileRequest(
        request=stable_id("req", view.job, view.run_id, "manual", now_us),
        job=view.job,
        run_id=view.run_id,
        reason="manual",
        start_step=start,
        steps=steps,
        duration_ms=duration_ms,
        with_stack=settings.with_stack,
        world_size=view.world_size,
        classes={name: format_ranks(ranks) for name, ranks in sorted(view.classes.items())},
        topology_source=view.topology_source,
        issued_at_us=now_us,
        deadline_ms=settings.deadline_ms + duration_ms,
        detail=detail,
    )
    checked_classes(request)  # agents and group would pass it over, and nobody would hear why
    return request


def progress_of(partials: list[StepPartial], view: JobView) -> Progress | None:
    """The furthest closed step among *partials* of *view*'s launch, and the mean step time of the newest ones. Pure."""
    mine = [p for p in partials if p.job == view.job and p.run_id == view.run_id and p.count]
    if not mine:
        return None
    last = max(p.first_step + len(p.count) - 1 for p in mine)
    recent = [mean for p in mine for i, mean in enumerate(p.mean_us) if p.first_step + i > last - 20 and mean > 0]
    return Progress(last, sum(recent) / len(recent) if recent else 0.0)


def silence(announced: Iterable[JobAnnouncement], view: JobView, *, now_us: int, interval_ms: int) -> str:
    """One sentence on the hosts of *view*'s launch that have not been announced for two intervals; empty if none. Pure.

    Their processes or agents may be gone without a word; or the clocks differ, which is why it is only said.
    """
    spoke: dict[str, int] = {}
    for one in announced:
        if (one.job, one.run_id) == (view.job, view.run_id) and not one.ended and one.announced_at_us > 0:
            spoke[one.host] = max(one.announced_at_us, spoke.get(one.host, 0))
    old = {host: now_us - at for host, at in spoke.items() if now_us - at > SILENT_INTERVALS * interval_ms * 1_000}
    if not old:
        return ""
    named = ", ".join(sorted(old)[:MAX_HOSTS]) + (", …" if len(old) > MAX_HOSTS else "")
    return (
        f"{len(old)} of {say_count(len(view.hosts.names), 'host')} ({named}) last announced the job "
        f"{say_age(min(old.values()))} ago or more, and should every {interval_ms / 1_000:g} s: if its processes were killed, "
        f"or no agent runs there, nobody will answer. Look there with: eroica doctor"
    )


def say_age(age_us: int) -> str:
    """How long ago, in one unit.

    >>> say_age(74_300_000), say_age(600_000_000), say_age(9_000_000_000)
    ('74 s', '10 min', '2 h')
    """
    seconds = age_us // 1_000_000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7_200 else f"{seconds // 3_600} h"


def find_job(settings: KafkaSettings, job: str) -> JobView:
    """The newest launch of *job* as its hosts announced it.

    :raises TopologyError: the announcements contradict each other.
    :raises UsageError, BrokerError: as :func:`announcements_of`.
    """
    return merge_announcements(announcements_of(settings, job))


def announcements_of(settings: KafkaSettings, job: str) -> list[JobAnnouncement]:
    """The last word of each host on *job*, of any launch.

    :raises UsageError: nobody announced a job of this name; says which there are.
    :raises BrokerError: broker unreachable or topic missing.
    """

    def decode(raw: bytes) -> JobAnnouncement:
        return decode_as(JobAnnouncement, raw, "jobs")

    with CompactedTable(settings, "jobs", decode, client_id="eroica-profile") as table:
        table.wait_ready(READ_TIMEOUT_S)
        announced = list(table.snapshot().values())
    mine = [a for a in announced if a.job == job]
    if not mine:
        names = ", ".join(sorted({a.job for a in announced})[:10])
        raise UsageError(
            f"no job of this name has announced itself{f'; there are: {names}' if names else ''}",
            where=f"job {job}",
            do="check that an agent runs on its hosts",
        )
    return mine


def find_progress(settings: KafkaSettings, view: JobView, *, now_ms: int) -> Progress | None:
    """How far the launch has come, from what detect wrote within the last minute; ``None`` when it wrote nothing.

    :raises BrokerError: broker unreachable or topic missing.
    """
    partials: list[StepPartial] = []
    for batch in read_partitions(settings, "partials", start=now_ms - LOOK_BACK_MS, to_end=True, client_id="eroica-profile"):
        for record in batch:
            try:
                partial = decode_as(StepPartial, record.value, record.where)
            except SchemaError:
                continue  # detect puts it into the dead letters; it is no reason not to profile
            if partial.job == view.job:
                partials.append(partial)
        partials = partials[-1_000:]
    return progress_of(partials, view)


def send_request(settings: KafkaSettings, request: ProfileRequest) -> None:
    """Put *request* on ``control`` and return when the broker has it.

    :raises BrokerError: it could not be delivered.
    """
    headers = cloudevent_headers(
        event_type="io.eroica.profile_request",
        source="/cli/profile",
        event_id=request.request,
        time_ms=request.issued_at_us // 1_000,
    )
    with BusProducer(settings, "eroica-profile") as producer:
        producer.send("control", key=message_key(request.job), value=encode(request), headers=headers)
        wait_delivered(producer, settings.connect_timeout_ms / 1_000 + 10)
