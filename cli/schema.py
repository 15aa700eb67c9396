"""``eroica schema``: what messages and settings look like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eroica.cli.options import BROKER, Common, Words, command
from eroica.cli.output import out, print_json

HELP = """Print the JSON Schema (2020-12) of a message kind or topic, of scenario files, or the table of all settings.

Without a name: the list of names.

Example: eroica schema verdict

Example: eroica schema settings
"""


SCENARIO = "scenario"
SOURCES = "[P]: the EROICA paper (NSDI '26, arXiv 2506.08528); [G]: the public EROICA guide"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema", cls=Words, help=HELP)(command(schema, unused=BROKER))


def schema(
    common: Common,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A kind of message, a topic, or: settings, scenario.")
    ] = None,
    directory: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write all schemas as files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="settings as JSON Schema, the list as JSON.")] = False,
) -> None:
    """See ``HELP``."""
    from eroica.schemas.jsonschema import SETTINGS, indented, schema_names, schema_text, unknown_schema, write_schemas

    names = [*schema_names(), SCENARIO]
    if directory is not None:
        for path in write_schemas(directory):
            typer.echo(path)
    elif name is None:
        if as_json:
            print_json(names)
        else:
            typer.echo("\n".join(names))
    elif name not in names:
        raise unknown_schema(name, names)
    elif name == SCENARIO:
        from eroica.simulator.fileschema import scenario_schema

        typer.echo(indented(scenario_schema()), nl=False)
    elif name == SETTINGS and not as_json:
        _print_settings(common)
    else:
        typer.echo(schema_text(name), nl=False)


def _print_settings(common: Common) -> None:
    from rich.table import Table
    from rich.text import Text

    from eroica.schemas.settings import Section

    table = Table("setting", "value", "meaning", box=None, pad_edge=False)
    settings: Any = common.settings()
    for section in type(settings).model_fields:
        values: Section = getattr(settings, section)
        for key, field in type(values).model_fields.items():
            value = getattr(values, key)
            # A dictionary holds the client's own properties, passwords among them: names only.
            shown = ", ".join(sorted(value)) if isinstance(value, dict) else str(value)
            table.add_row(Text(f"{section}.{key}"), Text(shown), Text(field.description or ""))
    out().print(table, "", Text(SOURCES, style="dim"), sep="\n")
