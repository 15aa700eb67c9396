"""Options that every command shares, and the settings that follow from them."""

from __future__ import annotations

import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from eroica.consumers.text import clean

if TYPE_CHECKING:
    from eroica.schemas.settings import EroicaSettings

PANEL = "Common options"

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        help="Kafka brokers, comma separated; default localhost:9092 (demo: a broker of its own).",
        rich_help_panel=PANEL,
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option("--prefix", metavar="TEXT", help="In front of every topic's name; default 'eroica.'", rich_help_panel=PANEL),
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings, TOML.", rich_help_panel=PANEL)]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting; may be repeated. See: eroica schema settings",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class Common:
    """Values of the common options, as given in front of or behind the command's name."""

    bootstrap: str | None = None
    prefix: str | None = None
    config: Path | None = None
    assignments: tuple[str, ...] = field(default=())

    def over(self, outer: Common) -> Common:
        """These values, and where one is absent that of *outer*."""
        return Common(
            bootstrap=self.bootstrap if self.bootstrap is not None else outer.bootstrap,
            prefix=self.prefix if self.prefix is not None else outer.prefix,
            config=self.config or outer.config,
            assignments=outer.assignments + self.assignments,
        )

    def settings(self, defaults: tuple[str, ...] = (), under: Mapping[str, Mapping[str, Any]] | None = None) -> EroicaSettings:
        """The settings. *defaults* are assignments that those of the caller beat, and so is *under*: section → key → value.

        :raises UsageError: an unknown or impossible setting, or a file that is not there.
        """
        from eroica.schemas.settings import environment_warnings, load_settings

        for warning in environment_warnings(os.environ):
            typer.echo(f"eroica: {clean(warning)}", err=True)
        if self.config is not None:
            # Services read the file by this name, and the processes that a command starts inherit it.
            os.environ["EROICA_CONFIG"] = str(self.config)
        given = list(defaults)
        if self.bootstrap is not None:
            given.append(f"kafka.bootstrap={self.bootstrap}")
        if self.prefix is not None:
            given.append(f"kafka.prefix={self.prefix}")
        return load_settings([*given, *self.assignments], under)

    def arguments(self, defaults: tuple[str, ...] = ()) -> list[str]:
        """The same options for the command line of a process of ours, except for broker and prefix."""
        words = [word for assignment in defaults for word in ("--set", assignment)]
        if self.config is not None:
            words += ["--config", str(self.config)]
        for assignment in self.assignments:
            words += ["--set", assignment]
        return words


class Words(TyperCommand):
    """A command whose usage line shows its arguments as they are typed, and whose line in a list is never cut."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As any command; an argument that is named in the help says nothing of Python's type behind it."""
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            if parameter.param_type_name == "argument" and parameter.metavar:
                parameter.display_type_rich = _no_type  # type: ignore[attr-defined, method-assign, unused-ignore]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The options, then each argument by its metavar."""
        named = [p.metavar or (p.name or "").upper() for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *named]

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first sentence of the help, whole."""
        del limit
        return first_sentence(self.help or "")


def _no_type(*_args: Any, **_kwargs: Any) -> str:
    return ""


def first_sentence(text: str) -> str:
    """The first sentence of *text*, on one line."""
    return re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0].replace("\n", " ")


def common_of(context: typer.Context) -> Common:
    """What stood in front of the command's name."""
    outer = context.find_root().obj
    return outer if isinstance(outer, Common) else Common()


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Make *function* a command: it gets the common options as ``common``, and its result becomes the exit code."""
    hints = typing.get_type_hints(function, include_extras=True)
    own = [
        p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for p in inspect.signature(function).parameters.values()
        if p.name != "common"
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("bootstrap", Bootstrap), ("prefix", Prefix), ("config", Config), ("assignments", Assignments))
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @functools.wraps(function)
    def wrapper(*, context: typer.Context, **values: Any) -> None:
        given = Common(
            values.pop("bootstrap"), values.pop("prefix"), values.pop("config"), tuple(values.pop("assignments") or ())
        )
        common = given.over(common_of(context))
        if context.invoked_subcommand is not None:  # of a command that has commands of its own: they inherit the options
            context.find_root().obj = common
            return
        code = function(common=common, **values)
        if code:
            raise typer.Exit(code)

    parameters = [context, *own, *added]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it, functions lack it
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapper.__wrapped__
    return wrapper
