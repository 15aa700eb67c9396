"""``eroica demo``: the whole pipeline on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import Common, Words, command
from eroica.cli.output import err, out, print_json
from eroica.consumers.text import clean

HELP = """Train a small model on this machine, slow one worker down, and watch the verdict come, in about a minute.

Everything is real: torch processes, Kafka protocol, profiles. An embedded broker is used unless --bootstrap names one. Ends with
exit code 0 if the verdict is right, else 1: it names the slowed rank, or nobody for --fault none.

Example: eroica demo --fault slow-data --fault-rank 2
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", cls=Words, help=HELP)(command(demo))


def demo(
    common: Common,
    fault: Annotated[str, typer.Option(help="slow-data, slow-host or none.")] = "slow-data",
    fault_rank: Annotated[int, typer.Option("--fault-rank", help="The worker to slow down.")] = 2,
    ranks: Annotated[int, typer.Option(help="Workers, 3 to 16, on two hosts.")] = 4,
    record: Annotated[Path | None, typer.Option("--record", metavar="DIR", help="Also record the run.")] = None,
    timeout: Annotated[float, typer.Option(min=10, help="Seconds it may take.")] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON; what happens goes to standard error.")] = False,
) -> int:
    """See ``HELP``."""
    from rich.text import Text

    from eroica.consumers.render import render_verdict
    from eroica.offline.demo.runner import run_demo
    from eroica.offline.demo.scenario import SETTINGS, parse_fault

    scenario = parse_fault(fault, fault_rank, ranks)
    settings = common.settings(SETTINGS)
    told = err() if as_json else out()
    with told.status("starting …") as status:
        result = run_demo(
            scenario,
            settings,
            common.arguments(SETTINGS),
            external=common.bootstrap is not None,
            own_prefix=common.prefix is None,
            record_to=record,
            timeout_s=timeout,
            say=lambda line: told.print(Text(clean(line), style="bold yellow" if ">>>" in line else "")),
            waiting=lambda what: status.update(f"{what} …"),
        )
    if as_json:
        print_json(result.as_json())
    else:
        closing = Text(result.closing(), style="bold red" if result.wrong else "bold green")
        told.print("", render_verdict(result.verdict), "", closing, sep="\n")
    return int(bool(result.wrong))
