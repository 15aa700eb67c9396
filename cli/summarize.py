"""``eroica summarize``: what one trace says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import ALL, Common, Words, command
from eroica.cli.output import err, out, print_bytes

HELP = """Summarise one trace as the agent does: a few KB in its place.

Reads a torch.profiler trace (.json, .json.gz) or an Nsight Systems export (.sqlite), which may hold several workers: each is
summarised, with --json one a line.

Example: eroica summarize rank0.json.gz

Example: eroica summarize trace.json --rank 3 --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("summarize", cls=Words, help=HELP)(command(summarize, unused=ALL))


def summarize(
    common: Common,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The trace: .json, .json.gz or .sqlite.")],
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="Whose trace it is, where neither it nor its name tells; of several workers the first."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as it would stand on its topic.")] = False,
) -> int:
    """See ``HELP``."""
    from eroica.offline.summarize import render_summary, summarize_file
    from eroica.schemas.codec import encode

    del common  # no setting bears on it yet; the options are there for all commands alike
    with err().status("reading the trace …"):
        summaries = summarize_file(file, rank)
    for summary in summaries:
        if as_json:
            print_bytes(encode(summary))
        else:
            out().print(render_summary(summary))
    return 0
