"""Options that every command shares, and the settings that follow from them."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from eroica.cli.wronguse import kind_of
from eroica.consumers.text import clean

if TYPE_CHECKING:
    from eroica.schemas.settings import EroicaSettings

PANEL = "Common options"
BROKER = ("bootstrap", "prefix")
ALL = (*BROKER, "config", "assignments")
"""Common options that a command may have no use for."""

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


_EXAMPLE = re.compile(r"^Example: ", re.MULTILINE)
_WORDS = {"int": "N", "float": "NUMBER", "str": "TEXT", "text": "TEXT", "Path": "FILE", "path": "FILE"}


class Words(TyperCommand):
    """A command whose usage line shows its arguments as they are typed, and whose line in a list is never cut."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As any command, in our words."""
        super().__init__(*args, **{**kwargs, "help": _examples_whole(kwargs.get("help"))})
        _name_kinds(self.params)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The options, then each argument by its metavar."""
        named = [p.metavar or (p.name or "").upper() for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *named]

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first sentence of the help, whole."""
        del limit
        return first_sentence(self.help or "")


class GroupWords(TyperGroup):
    """The same for a command that has commands of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As any group, in our words."""
        super().__init__(*args, **{**kwargs, "help": _examples_whole(kwargs.get("help"))})
        _name_kinds(self.params)


def _examples_whole(text: str | None) -> str | None:
    """The help *text* with each example on one line, so that it can be copied."""
    return _EXAMPLE.sub("\b\nExample: ", text) if text else text


def _name_kinds(parameters: Iterable[Any]) -> None:
    """An argument that is named in the help says nothing of Python's type behind it; an option says in a word what it takes."""
    for parameter in parameters:
        if parameter.param_type_name == "argument" and parameter.metavar:
            parameter.display_type_rich = _no_type
        elif parameter.param_type_name == "option" and not parameter.metavar:
            parameter.metavar = _WORDS.get(kind_of(parameter))


def _no_type(*_args: Any, **_kwargs: Any) -> str:
    return ""


def first_sentence(text: str) -> str:
    """The first sentence of *text*, on one line."""
    return re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0].replace("\n", " ")


def _hidden(kind: Any) -> Any:
    """The common option *kind*, not in the help."""
    base, option = typing.get_args(kind)
    option = copy.copy(option)
    option.hidden = True
    return Annotated[base, option]


def common_of(context: typer.Context) -> Common:
    """What stood in front of the command's name."""
    outer = context.find_root().obj
    return outer if isinstance(outer, Common) else Common()


def command(function: Callable[..., int | None], *, unused: Collection[str] = ()) -> Callable[..., None]:
    """Make *function* a command: it gets the common options as ``common``, and its result becomes the exit code.

    :param unused: common options that mean nothing to it: it takes them, like every command, but its help is silent of them.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    own = [
        p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for p in inspect.signature(function).parameters.values()
        if p.name != "common"
    ]
    kinds: dict[str, Any] = {"bootstrap": Bootstrap, "prefix": Prefix, "config": Config, "assignments": Assignments}
    kinds |= {name: _hidden(kinds[name]) for name in unused}
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kinds[name]) for name in kinds]
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
