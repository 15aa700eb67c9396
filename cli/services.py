"""``eroica detect``, ``eroica group``, ``eroica localize``: the services of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import Common, Words, command
from eroica.cli.output import set_up_logging
from eroica.schemas.errors import UsageError

DETECT_HELP = """Watch the iterations of all jobs and ask for a profile when one gets slow, spikes or stands still.

Run as many as you like: they share the work. Ends in order on SIGTERM. What counts as slow:
eroica schema settings, section detect.

Example: eroica detect --bootstrap kafka:9092 --set detect.window=50
"""
GROUP_HELP = """Collect the behaviour summaries of each profile request, one comparison class at a time.

A class is judged when all have answered, group.idle_ms after the last summary, or at the request's deadline. Run as many as you
like: they share the work. Ends in order on SIGTERM.

Example: eroica group --bootstrap kafka:9092
"""
LOCALIZE_HELP = """Compare peers and publish one verdict for each profile request, exactly once.

Run as many as you like: they share the work. Ends in order on SIGTERM. Rule sets: eroica (default), paper, guide. To compare, it
needs three ranks of one role.

Example: eroica localize --bootstrap kafka:9092 --set localize.rules=eroica
"""

Workdir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="For the little that a worker keeps on disk; default: a temporary folder.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("detect", cls=Words, help=DETECT_HELP)(command(detect))
    app.command("group", cls=Words, help=GROUP_HELP)(command(group))
    app.command("localize", cls=Words, help=LOCALIZE_HELP)(command(localize))


def detect(common: Common, workdir: Workdir = None) -> int:
    """See ``DETECT_HELP``."""
    settings = common.settings()
    set_up_logging()
    from eroica.streams.service import run_detect

    return run_detect(settings, workdir=_made(workdir))


def group(common: Common, workdir: Workdir = None) -> int:
    """See ``GROUP_HELP``."""
    settings = common.settings()
    set_up_logging()
    from eroica.streams.service import run_group

    return run_group(settings, workdir=_made(workdir))


def localize(common: Common) -> int:
    """See ``LOCALIZE_HELP``."""
    settings = common.settings()
    set_up_logging()
    from eroica.localizer.memory import keep_freed_memory
    from eroica.localizer.service import run_localizer

    keep_freed_memory()
    return run_localizer(settings)


def _made(workdir: Path | None) -> Path | None:
    try:
        if workdir is not None:
            workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder cannot be made ({error.strerror})", where=str(workdir), do="mend --workdir") from error
    return workdir
