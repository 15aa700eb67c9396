"""``eroica topics``: the topics of the broker against the table."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from eroica.cli.options import Common, GroupWords, Words, command
from eroica.cli.output import err, out, print_json
from eroica.consumers.text import one_line
from eroica.schemas.errors import UsageError
from eroica.schemas.wording import say_count

ENSURE_HELP = """Create the topics that are missing and widen those that are too narrow; nothing is ever shrunk.

Safe to repeat.

Example: eroica topics ensure --bootstrap kafka:9092 --dry-run
"""
LIST_HELP = """List our topics on the broker with their partitions.

Example: eroica topics list --json
"""
DELETE_HELP = """Delete our topics, with everything in them, under the given prefix.

Example: eroica topics delete --prefix test. --yes
"""

AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    topics = typer.Typer(
        cls=GroupWords,
        no_args_is_help=True,
        subcommand_metavar="ensure|list|delete …",
        help="Create, list or delete the topics.\n\nExample: eroica topics ensure",
    )
    topics.command("ensure", cls=Words, help=ENSURE_HELP)(command(ensure))
    topics.command("list", cls=Words, help=LIST_HELP)(command(list_))
    topics.command("delete", cls=Words, help=DELETE_HELP)(command(delete))
    app.add_typer(topics, name="topics")


def ensure(
    common: Common,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    as_json: AsJson = False,
) -> None:
    """See ``ENSURE_HELP``."""
    from eroica.bus import ensure_topics

    settings = common.settings()
    with err().status("asking the broker …"):
        changes = ensure_topics(settings.kafka, dry_run=dry_run)
    if as_json:
        fields = ("topic", "action", "setting", "have", "want")
        print_json([{name: getattr(change, name) for name in fields} for change in changes])
        return
    for change in changes:
        out().print(one_line(change))
    done = [change for change in changes if change.action != "keep"]
    would = "would be made" if dry_run else "made"
    out().print(f"{len(done)} changes {would}" if done else "topics are as they should be")


def list_(common: Common, as_json: AsJson = False) -> None:
    """See ``LIST_HELP``."""
    from eroica.bus import list_topics

    settings = common.settings()
    found = list_topics(settings.kafka)
    if as_json:
        print_json(found)
        return
    for name, partitions in found.items():
        out().print(f"{one_line(name)}  {say_count(partitions, 'partition')}")
    if not found:
        out().print(f"no topics begin with {one_line(settings.kafka.prefix)!r}; create them with: eroica topics ensure")


def delete(
    common: Common,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """See ``DELETE_HELP``."""
    from eroica.bus import delete_topics

    settings = common.settings()
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("deleting topics needs a confirmation", do="add --yes")
        typer.confirm(f"Delete all topics {one_line(settings.kafka.prefix)}* with their content?", abort=True)
    names = delete_topics(settings.kafka)
    if as_json:
        print_json(names)
        return
    for name in names:
        out().print(f"- {one_line(name)}")
    out().print(f"{len(names)} topics deleted")
