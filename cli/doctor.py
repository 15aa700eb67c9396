"""``eroica doctor``: what stands in the way."""

from __future__ import annotations

from typing import Annotated

import typer

from eroica.cli.options import Common, Words, command
from eroica.cli.output import err, out, print_json
from eroica.consumers.text import one_line
from eroica.schemas.wording import say_count

HELP = """Check broker, topics, services, permissions and limits of this host: each line is ok, or says what to do.

Exit code 4 when the broker or its topics cannot be used, else 1 when anything else will not work; hints are no failure.

Example: eroica doctor --bootstrap kafka:9092
"""
_MARKS = {"ok": "ok  ", "hint": "hint", "bad": "BAD "}
_BROKER = ("broker", "topics")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", cls=Words, help=HELP)(command(doctor))


def doctor(
    common: Common,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> int:
    """See ``HELP``."""
    from dataclasses import asdict

    from eroica.offline.doctor import examine

    settings = common.settings()
    console, checks = out(), []
    with err().status("looking …"):
        for check in examine(settings):
            checks.append(check)
            if not as_json:
                advice = f"; {one_line(check.do)}" if check.do else ""
                console.print(f"{_MARKS[check.level]}  {check.name}: {one_line(check.found)}{advice}")
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        bad_count, hints = (sum(check.level == level for check in checks) for level in ("bad", "hint"))
        err().print(f"{say_count(bad_count, 'thing')} to mend, {say_count(hints, 'hint')} (they matter only where they say so)")
    bad = {check.name for check in checks if check.level == "bad"}
    return 4 if bad & set(_BROKER) else int(bool(bad))
