"""``eroica agent``: the reporter of one host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import Common, Words, command
from eroica.cli.output import set_up_logging

HELP = """Report what the training processes of this host do, and profile them when asked.

One agent a host, beside the jobs or in a container that shares the runtime directory with them. On SIGTERM it sends what is
left and ends. Jobs find it through the runtime directory, whichever is started first.

Example: eroica agent --bootstrap kafka:9092 --host node-17
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("agent", cls=Words, help=HELP)(command(agent))


def agent(
    common: Common,
    host: Annotated[
        str | None, typer.Option(help="This host's name in verdicts; default: EROICA_HOST, else the real one.")
    ] = None,
    runtime_dir: Annotated[
        Path | None,
        typer.Option("--runtime-dir", metavar="DIR", help="Folder of the sockets; default: EROICA_RUNTIME_DIR, else under /tmp."),
    ] = None,
) -> int:
    """See ``HELP``."""
    settings = common.settings()
    set_up_logging()
    from eroica.producers.agent.service import run_agent

    return run_agent(settings, host=host, runtime_dir=runtime_dir)
