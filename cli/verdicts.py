"""``eroica verdicts``: what is at fault, as it comes; ``eroica verdicts feedback``: whether what it advised helped."""

from __future__ import annotations

import getpass
import time
from enum import Enum
from typing import Annotated

import typer

from eroica.cli.options import Common, GroupWords, Words, command
from eroica.cli.output import err, out, print_bytes
from eroica.consumers.text import one_line
from eroica.schemas.errors import UsageError

MAX_LAST = 10_000
HELP = """Read verdicts: those on the topic now, or with --follow those to come too.

Each says who is at fault and who merely waits, how sure that is, what it costs, and what to do; the fields of --json:
eroica schema verdict.

Example: eroica verdicts --follow --job llama-7b

Example: eroica verdicts --last 5 --short

Example: eroica verdicts --json --fail-on-finding
"""
FEEDBACK_HELP = """Say whether what a verdict advised helped. Later verdicts show the counts beside each remedy.

A second vote of the same author on the same remedy of the same verdict replaces the first.

Example: eroica verdicts feedback verdict-41c0f6e15a0c8e11 --helped yes --remedy nic.cable --note "port 7 was loose"
"""


class Helped(str, Enum):
    """The answer."""

    yes = "yes"
    no = "no"


def register(app: typer.Typer) -> None:
    """Add the commands: ``verdicts`` reads where no command of its own is named."""
    group = typer.Typer(
        cls=GroupWords, invoke_without_command=True, subcommand_metavar="[feedback …]", callback=command(verdicts), help=HELP
    )
    group.command("feedback", cls=Words, help=FEEDBACK_HELP)(command(feedback))
    app.add_typer(group, name="verdicts")


def verdicts(
    common: Common,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on when all have been read.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One verdict a line, as on the topic.")] = False,
    short: Annotated[bool, typer.Option("--short", help="A line each: when, id, job, and the one sentence.")] = False,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, max=MAX_LAST, help="Of those that are there, only the N latest.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    fail_on_finding: Annotated[
        bool, typer.Option("--fail-on-finding", help="Exit code 1 if anything was at fault; with --follow, at the first.")
    ] = False,
) -> int:
    """See ``HELP``."""
    from eroica.bus import check_broker
    from eroica.consumers.render import render_verdict, short_line
    from eroica.consumers.verdicts import is_finding, read_verdicts

    if as_json and short:
        raise UsageError("a verdict is printed in one way", do="give one of --json and --short")
    settings = common.settings()
    check_broker(settings.kafka)
    console, found, count = out(), False, 0
    for item in read_verdicts(settings.kafka, job=job, last=last, follow=follow):
        if item is None:
            continue
        count += 1
        if as_json:
            print_bytes(item.raw.replace(b"\n", b" "))
        elif short:
            console.print(short_line(item.verdict))
        else:
            console.print(render_verdict(item.verdict), "")
        found = found or is_finding(item.verdict)
        if found and fail_on_finding and follow:
            return 1
    if not count and not as_json:
        err().print(f"no verdicts{f' of job {one_line(job, 100)}' if job is not None else ''} yet")
    return int(found and fail_on_finding)


def feedback(
    common: Common,
    verdict_id: Annotated[str, typer.Argument(metavar="VERDICT_ID", help="The verdict's id.")],
    helped: Annotated[Helped, typer.Option("--helped", help="Whether it did.")],
    remedy: Annotated[
        str | None, typer.Option(help="Id of the remedy, as the verdict shows it; default: the advice as a whole.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="What was done, for whoever reads it.")] = "",
    author: Annotated[str | None, typer.Option(help="Who says so; default: the name of this user.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The message as JSON.")] = False,
) -> int:
    """See ``FEEDBACK_HELP``."""
    from eroica.bus import check_broker
    from eroica.consumers.feedback import find_verdict, plan_feedback, send_feedback
    from eroica.schemas.codec import encode

    settings = common.settings()
    check_broker(settings.kafka)
    with err().status("looking for the verdict …"):
        verdict = find_verdict(settings.kafka, verdict_id)
    vote = plan_feedback(
        verdict,
        helped=helped is Helped.yes,
        now_us=time.time_ns() // 1_000,
        remedy=remedy,
        comment=note,
        author=author if author is not None else _user(),
    )
    send_feedback(settings.kafka, vote)
    if as_json:
        print_bytes(encode(vote))
    else:
        answer = "helped" if vote.helped else "did not help"
        out().print(f"{one_line(vote.verdict_id)}: {one_line(vote.remedy or f'the advice on {vote.fault}')} {answer}; thank you")
    return 0


def _user() -> str:
    try:
        return getpass.getuser()[:100]
    except (KeyError, OSError):
        return ""
