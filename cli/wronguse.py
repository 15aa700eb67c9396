"""What the parser of the command line refuses, as one sentence like every other error.

Which package the parser's classes come from depends on the version of typer, so they are known by what they have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from eroica.consumers.text import one_line

MAX_SHOWN = 40
_NUMBERS = {"int": "a whole number", "float": "a number"}
_NAMES = {"integer": "int", "integer range": "int", "float range": "float"}
"""What older versions call a kind."""


def wrong_use(error: Any, argv: Sequence[str], commands: Collection[str]) -> str:
    """The sentence.

    :param error: what the parser raised.
    :param argv: the command line.
    :param commands: names of commands, for an error that does not know which it is of.
    """
    path = str(getattr(getattr(error, "ctx", None), "command_path", "eroica"))
    named = path.partition(" ")[2] or next((word for word in argv if word in commands), "")
    said = _number(error) or one_line(error.format_message(), 500)
    if not said.startswith("-"):
        said = f"{said[:1].lower()}{said[1:]}"
    sentence = (f"{named}: {said}" if named else said).removesuffix(".")
    see = f"eroica {named}" if named else "eroica"
    return f"{sentence}{'' if sentence.endswith('?') else ';'} see: {see} --help"


def kind_of(parameter: Any) -> str:
    """``int``, ``float``, ``str``, ``Path`` …: what an option or argument takes."""
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is not None:
        return str(getattr(descriptor.annotation, "__name__", ""))
    name = str(getattr(getattr(parameter, "type", None), "name", ""))
    return _NAMES.get(name, name)


def _number(error: Any) -> str:
    """What a number has to be that is none, or is out of its range; empty if it is about something else."""
    parameter: Any = getattr(error, "param", None)
    kind = _NUMBERS.get(kind_of(parameter), "")
    if not kind or not hasattr(error, "message") or type(error).__name__ != "BadParameter":
        return ""
    least, most = _bound(parameter, "min"), _bound(parameter, "max")
    where = " to ".join(f"{bound:g}" for bound in (least, most) if bound is not None)
    bounds = "" if not where else f" from {where}" if least is not None else f" up to {where}"
    return f"{parameter.opts[0]} takes {kind}{bounds}{_given(error)}"


def _bound(parameter: Any, name: str) -> float | None:
    found = getattr(parameter, name, None)
    return found if found is not None else getattr(getattr(parameter, "type", None), name, None)


def _given(error: Any) -> str:
    """What stood there, where the parser tells."""
    errors = getattr(error.__cause__, "errors", None)
    return f", not {one_line(errors()[0]['input'], MAX_SHOWN)!r}" if errors is not None else ""
