"""``eroica diagnose``: traces of many ranks in, one verdict out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eroica.cli.options import BROKER, Common, Words, command
from eroica.cli.output import err, out, print_bytes
from eroica.consumers.text import one_line

if TYPE_CHECKING:
    from eroica.schemas.verdicts import Verdict

HELP = """Judge the traces of many ranks as if they had come over the topics: one verdict.

Reads torch.profiler traces (.json, .json.gz), one a rank, and Nsight Systems exports (.sqlite, .sqlite3, .db), one a host; or one
timeline of operations (.parquet). Works with some of the ranks too, and says what cannot be concluded. The rank is read from the
trace, else from the file's or folder's name, else it must be given.

Example: eroica diagnose ./traces

Example: eroica diagnose ./traces --topology 'megatron --tp 2 --pp 4' --rank-from 'gpu([0-9]+)'

Example: eroica diagnose ./traces --json --fail-on-finding --set localize.rules=paper
"""
MAX_UNREAD = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diagnose", cls=Words, help=HELP)(command(diagnose, unused=BROKER))


def diagnose(
    common: Common,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A folder (those inside are searched too), or one file.")],
    rank: Annotated[
        list[str] | None, typer.Option(metavar="FILE=N", help="Whose trace a file is; N is its first worker's. May be repeated.")
    ] = None,
    rank_from: Annotated[
        str, typer.Option("--rank-from", metavar="REGEX", help="Finds the rank in each path below the folder: its first group.")
    ] = "",
    topology: Annotated[
        str, typer.Option(metavar="LAYOUT", help="As for eroica topology: 'megatron --tp 2 --pp 4', or a YAML or JSON file.")
    ] = "",
    job: Annotated[str, typer.Option(help="Which of several runs in the folder, by the name that the notes give it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The verdict as it would stand on its topic.")] = False,
    fail_on_finding: Annotated[bool, typer.Option("--fail-on-finding", help="Exit code 1 if anything was at fault.")] = False,
) -> int:
    """See ``HELP``."""
    from rich.progress import Progress

    from eroica.consumers.render import render_verdict
    from eroica.consumers.verdicts import is_finding
    from eroica.offline.diagnose import Told
    from eroica.offline.diagnose import diagnose as judge_traces
    from eroica.offline.layout import parse_layout
    from eroica.producers.trace.listing import RankRule
    from eroica.schemas.codec import encode

    settings = common.settings()
    told = Told(RankRule.parse(rank or [], rank_from), parse_layout(topology) if topology else None, job)
    with Progress(console=err(), transient=True, disable=not err().is_terminal) as progress:
        task = progress.add_task("reading traces", total=None)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=f"reading {one_line(what, 40)}", completed=done, total=total)

        found = judge_traces(source, settings, tell, told)
    for unread in found.unread[:MAX_UNREAD]:
        err().print(f"left out: {one_line(str(unread.path), 200)}: {one_line(unread.why, 300)}")
    if as_json:
        print_bytes(encode(found.verdict))
    else:
        out().print(render_verdict(_named(found.verdict, job or source.resolve().name)))
    return int(fail_on_finding and is_finding(found.verdict))


def _named(verdict: Verdict, name: str) -> Verdict:
    """The verdict as it is shown: of traces that tell no job it speaks by the folder's name.

    As JSON it does not, so that the same files give the same bytes wherever they lie.
    """
    import msgspec

    from eroica.offline.diagnose import OFFLINE

    if verdict.job != OFFLINE:
        return verdict
    headline = verdict.headline.removeprefix(f"{OFFLINE}: ")
    return msgspec.structs.replace(verdict, job=name, headline=f"{name}: {headline}")
