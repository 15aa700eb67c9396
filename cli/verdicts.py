"""``eroica verdicts``: what is at fault, as it comes."""

from __future__ import annotations

from typing import Annotated

import typer

from eroica.cli.options import Common, command
from eroica.cli.output import err, out, print_bytes

HELP = """Read verdicts: those on the topic now, or with --follow those to come too.

Example: eroica verdicts --follow --job llama-7b

Example: eroica verdicts --json --fail-on-finding
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verdicts", help=HELP)(command(verdicts))


def verdicts(
    common: Common,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on when all have been read.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One verdict a line, as on the topic.")] = False,
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    fail_on_finding: Annotated[
        bool, typer.Option("--fail-on-finding", help="Exit code 1 if anything was at fault; with --follow, at the first.")
    ] = False,
) -> int:
    """See ``HELP``."""
    from eroica.bus import check_broker
    from eroica.consumers.render import render_verdict
    from eroica.consumers.verdicts import is_finding, read_verdicts

    settings = common.settings()
    check_broker(settings.kafka)
    console, found, count = out(), False, 0
    for item in read_verdicts(settings.kafka, job=job, follow=follow):
        if item is None:
            continue
        count += 1
        if as_json:
            print_bytes(item.raw.replace(b"\n", b" "))
        else:
            console.print(render_verdict(item.verdict), "")
        found = found or is_finding(item.verdict)
        if found and fail_on_finding and follow:
            return 1
    if not count and not as_json:
        err().print("no verdicts yet")
    return int(found and fail_on_finding)
