"""``eroica profile JOB``: a profile by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from eroica.cli.options import Common, Words, command
from eroica.cli.output import err, out, print_bytes
from eroica.consumers.text import one_line
from eroica.producers.hook.command import MAX_DURATION_MS
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.schemas.wording import say_count

if TYPE_CHECKING:
    from eroica.consumers.verdicts import ReadVerdict
    from eroica.schemas.settings import KafkaSettings

HELP = """Ask all ranks of a running job to profile the same steps; the verdict follows as for any other request.

Needs a running agent on the job's hosts. Exit code 2 if no job of this name has announced itself, 3 if with --wait no verdict
came in time.

Example: eroica profile llama-7b --steps 5 --wait
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("profile", cls=Words, help=HELP)(command(profile))


def profile(
    common: Common,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    steps: Annotated[int | None, typer.Option(min=1, max=1_000, help="Steps to profile; default: detect.profile_steps.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.001, max=MAX_DURATION_MS / 1_000, help="Or how long; agent.max_profile_ms (a minute) ends it, too."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the verdict and print it.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait at most.")] = 180,
    as_json: Annotated[bool, typer.Option("--json", help="The request (with --wait: the verdict) as JSON.")] = False,
) -> int:
    """See ``HELP``."""
    from eroica.bus import check_broker
    from eroica.consumers.manual import announcements_of, find_progress, plan_request, send_request, silence
    from eroica.consumers.render import render_verdict
    from eroica.schemas.codec import encode
    from eroica.topology import merge_announcements

    if steps is not None and seconds is not None:
        raise UsageError("a profile has either a number of steps or of seconds", do="give one of --steps and --seconds")
    settings = common.settings()
    check_broker(settings.kafka)
    with err().status("looking at the job …"):
        announced = announcements_of(settings.kafka, job)
        view = merge_announcements(announced)
        progress = find_progress(settings.kafka, view, now_ms=time.time_ns() // 1_000_000)
    duration_ms = int(seconds * 1_000) if seconds is not None else 0
    asked_steps = steps if steps is not None else (0 if duration_ms else settings.detect.profile_steps or 5)
    now_us = time.time_ns() // 1_000
    request = plan_request(view, progress, settings.detect, now_us=now_us, steps=asked_steps, duration_ms=duration_ms)
    silent = silence(announced, view, now_us=now_us, interval_ms=settings.agent.announce_interval_ms)
    if silent:
        err().print(f"warning: {one_line(silent)}")
    send_request(settings.kafka, request)
    start = (
        f"from step {request.start_step}"
        if progress
        else "from each rank's next step (its progress is unknown: does detect run?)"
    )
    who = say_count(view.world_size, "rank profiles", "ranks profile")
    much = say_count(asked_steps, "step") if asked_steps else f"{seconds:g} s of steps"
    err().print(f"{request.request}: {who} {much} {start}")
    if not wait:
        if as_json:
            print_bytes(encode(request))
        return 0
    with err().status("waiting for the verdict …"):
        found = _verdict_of(settings.kafka, request.request, job, timeout)
    if as_json:
        print_bytes(found.raw)
    else:
        out().print(render_verdict(found.verdict))
    return 0


def _verdict_of(settings: KafkaSettings, request: str, job: str, timeout_s: float) -> ReadVerdict:
    from eroica.consumers.verdicts import read_verdicts

    deadline = time.monotonic() + timeout_s
    for item in read_verdicts(settings, job=job, follow=True, stop=lambda: time.monotonic() > deadline):
        if item is not None and item.verdict.request.id == request:
            return item
    raise InvalidInput(
        f"no verdict came within {timeout_s:g} s",
        where=f"request {request}",
        do="check that group and localize run: eroica doctor",
    )
