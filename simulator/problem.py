"""What is wrong in a scenario, by the path of the field: errors of the simulator's own, and msgspec's in plain words."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from eroica.schemas.errors import InvalidInput, TopologyError, UsageError
from eroica.schemas.wording import did_you_mean

__all__ = ["Path", "ScenarioError", "blaming", "from_validation", "path_of", "unknown_word"]

Path = tuple[str | int, ...]
"""Names of fields and numbers of entries, from the root; ``"*"`` is an entry of a mapping that nobody named."""

_PLACE = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
_PART = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[(\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_ENUM = re.compile(r"Invalid enum value '?([^']*)'?$")
_BOUND = re.compile(r"Expected `\w+` (<=|>=|<|>) (\S+)$")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table of fields",
    "null": "nothing",
}
_BOUNDS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}
MAX_WORD = 60


class ScenarioError(InvalidInput):
    """A scenario that cannot be: what is wrong, and the paths of the fields that it follows from, the first above all."""

    def __init__(self, what: str, *paths: str, do: str = "") -> None:
        super().__init__(what, where=paths[0] if paths else "", do=do)
        self.paths: tuple[Path, ...] = tuple(path_of(path) for path in paths)


def path_of(text: str) -> Path:
    """The path that *text* names with dots.

    >>> path_of("faults.0.dose")
    ('faults', 0, 'dose')
    """
    return tuple(int(part) if part.isdecimal() else part for part in text.split("."))


@contextmanager
def blaming(*paths: str) -> Iterator[None]:
    """Make what the model of a job says against sizes or names an error of the fields at *paths*."""
    try:
        yield
    except (TopologyError, UsageError) as error:
        raise ScenarioError(error.what, *paths, do=error.do) from error


def unknown_word(word: str, noun: str, at: str, known: Sequence[str]) -> ScenarioError:
    """The error for a *word* at the path *at* that is none of those that are *known*.

    >>> str(unknown_word("gpip", "schedule", "job.schedule", ["gpipe", "1f1b"]))
    "job.schedule: 'gpip' is not a known schedule. did you mean gpipe? use one of gpipe, 1f1b"
    """
    do = f"{did_you_mean(word, known)}use one of {', '.join(known)}"
    return ScenarioError(f"{word[:MAX_WORD]!r} is not a known {noun}", at, do=do)


def from_validation(problem: str, root: type[msgspec.Struct]) -> ScenarioError:
    """The error for *problem*, a message of msgspec's on data that are no *root*."""
    told = _PLACE.search(problem)
    said = problem[: told.start()] if told else problem
    path: Path = tuple(int(n) if n else name or "*" for name, n, _ in _PART.findall(told[1])) if told else ()
    what, do = said, "the fields are described in docs/simulator.md"
    if unknown := _UNKNOWN.match(said):
        path, fields = (*path, unknown[1]), [name for kind in _types_at(path, root) for name in _fields(kind)]
        what = f"there is no field {unknown[1][:MAX_WORD]!r}"
        do = f"{did_you_mean(unknown[1], fields)}the fields here: {', '.join(fields)}"
    elif missing := _MISSING.match(said):
        what = f"the field {missing[1]!r} is missing"
    elif word := _ENUM.match(said):
        choices = [kind for kind in _types_at(path, root) if typing.get_origin(kind) is typing.Literal]
        return unknown_word(word[1], "value", ".".join(map(str, path)), [str(v) for c in choices for v in typing.get_args(c)])
    elif bound := _BOUND.match(said):
        what = f"it has to be {_BOUNDS[bound[1]]} {bound[2]}"
    else:
        for name, words in _KINDS.items():
            what = what.replace(f"`{name}`", words).replace(f"`{name} | ", f"`{words} | ")
        what = what.replace("Expected", "this has to be", 1).replace(", got", ", and is")
    return ScenarioError(what, ".".join(map(str, path)), do=do)


def _types_at(path: Path, root: typing.Any) -> list[typing.Any]:
    """The types that the value at *path* may have: no unions, no annotations."""
    kinds = list(_plain(root))
    for part in path:
        below: list[typing.Any] = []
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                below += [field.type for field in msgspec.structs.fields(kind) if field.name == part]
            elif typing.get_origin(kind) in (list, dict):
                below.append(typing.get_args(kind)[-1])
        kinds = [plain for kind in below for plain in _plain(kind)]
    return kinds


def _plain(kind: typing.Any) -> Iterator[typing.Any]:
    if typing.get_origin(kind) in (typing.Literal, list, dict) or isinstance(kind, type):
        yield kind
        return
    inner = typing.get_args(kind)
    for part in inner[:1] if typing.get_origin(kind) is typing.Annotated else inner:
        yield from _plain(part)


def _fields(kind: typing.Any) -> list[str]:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return [field.name for field in msgspec.structs.fields(kind)] if is_struct else []
