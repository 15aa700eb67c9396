"""The ``eroica`` command: a table of subcommands, loaded when they are called, and one way to end with an error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer

from eroica import __version__
from eroica.cli import output
from eroica.cli.__main__ import INTERRUPTED
from eroica.cli.options import Assignments, Bootstrap, Common, Config, GroupWords, Prefix, Words
from eroica.consumers.text import one_line
from eroica.schemas.errors import EroicaError

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Slow down a real training job on this machine and watch the verdict come."),
    "run": ("run", "Start a training command with the hook inside; no code change."),
    "agent": ("agent", "Report the training processes of this host (one agent a host)."),
    "detect": ("services", "Watch iterations and ask for profiles when a job slows or stalls."),
    "group": ("services", "Collect the summaries of a request, class by class."),
    "localize": ("services", "Compare peers and publish the verdict."),
    "topics": ("topics", "Create, list or delete the topics."),
    "profile": ("profile", "Ask for a profile of a running job by hand."),
    "verdicts": ("verdicts", "Read verdicts."),
    "record": ("record", "Write a job's topics to a folder."),
    "replay": ("replay", "Come to the verdicts of a recording again, without a broker."),
    "summarize": ("summarize", "Show what a profiler trace says: functions, phases, communicators, pauses."),
    "diagnose": ("diagnose", "Judge a folder of traces, one a rank: many files in, one verdict out."),
    "simulate": ("simulate", "Simulate a job that is broken in known ways, as a recording or onto a broker."),
    "tune": ("tune", "Search the localizer's thresholds over labelled recordings."),
    "topology": ("topology", "Show the process groups of a parallel layout."),
    "schema": ("schema", "Print the JSON Schema of a message, or the table of settings."),
    "doctor": ("doctor", "Check broker, topics, permissions and limits, with what to do."),
}
"""Command → (module of this room, one line for the list of commands)."""

INTERNAL_ERROR = 70
OUTPUT_LOST = 74
"""Standard output cannot be written; as sysexits.h counts it."""
CLOSED_PIPE = 141
"""As the shell counts a program that SIGPIPE ended."""

HELP = """Find out which worker makes a training job slow, and who merely waits.

To see it work on this machine: eroica demo. On a job of yours: topics ensure, then detect, group and localize; an agent on each
host; run -- your training command; and verdicts --follow. On traces that you have: diagnose.

Example: eroica demo --fault slow-data

Exit codes: 0 fine, 1 a finding where asked to fail on it, 2 wrong use, 3 broken input, 4 broker trouble. An error is one
sentence; EROICA_DEBUG=1 adds where it came from.
"""


class Commands(GroupWords):
    """Loads a command's module only when that command is called: the list of commands needs none of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A placeholder with the one-line help: enough for the list and for spelling hints."""
        return Words(cmd_name, help=COMMANDS[cmd_name][1], callback=_nothing) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command; of an unknown one, what it may have been meant to be."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command {args[0][:60]!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, load(str(name)) if name in COMMANDS else placeholder, rest

    def invoke(self, ctx: Any) -> Any:
        """Run it; Ctrl-C is an ordinary end, and so is a reader that has seen enough (``| head``)."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            if not output.reader_is_gone():
                raise
            output.forget_reader()
            raise typer.Exit(CLOSED_PIPE) from None
        return result


app = typer.Typer(
    cls=Commands, help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eroica {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=False)
def _options(
    context: typer.Context,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
    config: Config = None,
    assignments: Assignments = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    context.obj = Common(bootstrap, prefix, config, tuple(assignments or ()))


def load(name: str) -> Any:
    """The command called *name*, from its module."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    import_module(f"eroica.cli.{COMMANDS[name][0]}").register(single)
    loaded: Any = typer.main.get_group(single)
    return loaded.commands[name]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line *argv* (default: the process's) and return the exit code.

    An :class:`EroicaError` becomes one sentence on standard error; a traceback only with ``EROICA_DEBUG=1``.
    """
    output.prepare_streams()
    try:
        ended = app(args=list(argv) if argv is not None else None, prog_name="eroica", standalone_mode=False)
        code = ended if isinstance(ended, int) else 0
        return CLOSED_PIPE if code == 1 and output.reader_is_gone() else code
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        # Help is written before any command of ours is asked.
        return CLOSED_PIPE if code == 1 and output.reader_is_gone() else code
    except KeyboardInterrupt:
        return INTERRUPTED
    except EroicaError as error:
        return _report(one_line(error, 2_000), error.exit_code)
    except OSError as error:
        if not output.is_lost(error):
            return _internal(error)
        output.forget_reader()
        return _report(f"standard output cannot be written ({error.strerror})", OUTPUT_LOST)
    except Exception as error:  # noqa: BLE001  # the last line of defence: a person gets a sentence
        if isinstance(error.__cause__, KeyboardInterrupt):  # the parser makes it an error of its own
            return INTERRUPTED
        given = sys.argv[1:] if argv is None else argv
        return _wrong_use(error, given) if hasattr(error, "format_message") else _internal(error)


def _wrong_use(error: Any, argv: Sequence[str]) -> int:
    """One sentence; the help where nothing was asked."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    from eroica.cli.wronguse import wrong_use

    return _report(wrong_use(error, argv, COMMANDS), int(error.exit_code))


def _internal(error: Exception) -> int:
    return _report(f"internal error ({one_line(repr(error), 500)}); EROICA_DEBUG=1 shows where", INTERNAL_ERROR)


def _report(sentence: str, code: int) -> int:
    if os.environ.get("EROICA_DEBUG") == "1":
        traceback.print_exc()
    with suppress(OSError):
        print(f"eroica: {sentence}", file=sys.stderr)
    return code


def _nothing() -> None:
    """The callback of a placeholder; never called."""


if __name__ == "__main__":
    sys.exit(main())
