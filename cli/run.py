"""``eroica run -- CMD``: a training command with the hook inside."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import ALL, Common, Words, command
from eroica.schemas.errors import UsageError

HELP = """Start a training command with the hook inside, without a change to its code.

The command takes this process's place, so signals and its exit code are its own.

Example: eroica run --job llama-7b -- torchrun --nproc-per-node 8 train.py
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", cls=Words, help=HELP)(command(run, unused=ALL))


def run(
    common: Common,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND …", help="The training command.")],
    job: Annotated[str | None, typer.Option(help="The job's name; default: EROICA_JOB, else the launcher's run id.")] = None,
    host: Annotated[str | None, typer.Option(help="This host's name; default: EROICA_HOST, else the real one.")] = None,
    runtime_dir: Annotated[
        Path | None, typer.Option("--runtime-dir", metavar="DIR", help="Folder of the agent's socket.")
    ] = None,
) -> int:
    """See ``HELP``."""
    from eroica.producers.hook.launch import environment
    from eroica.producers.hook.wire import ENV_HOST

    program = shutil.which(words[0])
    if program is None:
        raise UsageError(
            "there is no such command", where=words[0][:200], do="give it after --, e.g. eroica run -- python train.py"
        )
    env = environment(os.environ, job=job or "", runtime_dir=str(runtime_dir or ""))
    if host is not None:
        env[ENV_HOST] = host
    os.execvpe(program, words, env)
