"""``eroica record``: a job's topics as files."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import Common, Words, command
from eroica.cli.output import err, out, print_json
from eroica.consumers.text import one_line
from eroica.schemas.errors import UsageError
from eroica.schemas.wording import say_count

HELP = """Write a job's topics to a folder: what is there now, until a verdict came, or until stopped.

Into a folder with a recording of the same job it goes on where that ends. Give the settings of the services (--config, --set): a
replay starts from them. Exit code 2 if nothing of a job of this name was found; then no recording is left behind.

Example: eroica record --job llama-7b --out recording --until-verdict
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("record", cls=Words, help=HELP)(command(record))


def record(
    common: Common,
    job: Annotated[str, typer.Option(help="The job's name.")],
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder.")],
    until_verdict: Annotated[bool, typer.Option("--until-verdict", help="Go on until a verdict is recorded.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C or SIGTERM.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Counts by topic as JSON.")] = False,
) -> int:
    """See ``HELP``."""
    if until_verdict and follow:
        raise UsageError("a recording ends at a verdict or goes on", do="give one of --until-verdict and --follow")
    from eroica.bus import check_broker
    from eroica.offline import record as recorder

    settings = common.settings()
    check_broker(settings.kafka)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with err().status("recording …") as status:

        def show(progress: recorder.RecordProgress) -> None:
            total = sum(progress.counts.values())
            status.update(f"recording {one_line(job, 60)}: {say_count(total, 'message')}, reading {progress.topic} …")

        counts = recorder.record(
            settings,
            job,
            directory,
            until="verdict" if until_verdict else "stopped" if follow else "now",
            stop=stopped.is_set,
            on_progress=show,
        )
    if as_json:
        print_json(counts)
    else:
        out().print(f"{one_line(directory)}: {', '.join(f'{name} {count}' for name, count in counts.items())}")
    return 0
