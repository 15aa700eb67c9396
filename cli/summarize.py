"""``eroica summarize``: what one trace says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import Common, command
from eroica.cli.output import err, out, print_bytes

HELP = """Summarise one torch.profiler trace as the agent does: a few KB in place of the trace.

Example: eroica summarize rank0.json.gz

Example: eroica summarize trace.json --rank 3 --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("summarize", help=HELP)(command(summarize))


def summarize(
    common: Common,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The trace, .json or .json.gz.")],
    rank: Annotated[int | None, typer.Option(min=0, help="Whose trace it is, where neither it nor its name tells.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as it would stand on its topic.")] = False,
) -> int:
    """See ``HELP``."""
    from eroica.offline.summarize import render_summary, summarize_file
    from eroica.schemas.codec import encode

    del common  # no setting bears on it yet; the options are there for all commands alike
    with err().status("reading the trace …"):
        summary = summarize_file(file, rank)
    if as_json:
        print_bytes(encode(summary))
    else:
        out().print(render_summary(summary))
    return 0
