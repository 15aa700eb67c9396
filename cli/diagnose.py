"""``eroica diagnose``: a folder of traces in, one verdict out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import Common, command
from eroica.cli.output import err, out, print_bytes
from eroica.consumers.text import one_line

HELP = """Judge the torch.profiler traces of a folder, one a rank, as if they had come over the topics: one verdict.

Works with some of the ranks too, and says what cannot be concluded. Traces are .json or .json.gz; the rank is read from the
trace, else from the file's name.

Example: eroica diagnose ./traces

Example: eroica diagnose ./traces --json --fail-on-finding --set localize.rules=paper
"""
MAX_UNREAD = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diagnose", help=HELP)(command(diagnose))


def diagnose(
    common: Common,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; folders inside are searched too.")],
    as_json: Annotated[bool, typer.Option("--json", help="The verdict as it would stand on its topic.")] = False,
    fail_on_finding: Annotated[bool, typer.Option("--fail-on-finding", help="Exit code 1 if anything was at fault.")] = False,
) -> int:
    """See ``HELP``."""
    from rich.progress import Progress

    from eroica.consumers.render import render_verdict
    from eroica.consumers.verdicts import is_finding
    from eroica.offline.diagnose import diagnose as judge_folder
    from eroica.schemas.codec import encode

    settings = common.settings()
    with Progress(console=err(), transient=True, disable=not err().is_terminal) as progress:
        task = progress.add_task("reading traces", total=None)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=f"reading {one_line(what, 40)}", completed=done, total=total)

        found = judge_folder(directory, settings, tell)
    for unread in found.unread[:MAX_UNREAD]:
        err().print(f"left out: {one_line(str(unread.path), 200)}: {one_line(unread.why, 300)}")
    if as_json:
        print_bytes(encode(found.verdict))
    else:
        out().print(render_verdict(found.verdict))
    return int(fail_on_finding and is_finding(found.verdict))
