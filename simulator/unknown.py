"""What to say where an assignment names a field that a scenario does not have, or gives it an impossible value."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence

import msgspec

from eroica.schemas.errors import UsageError
from eroica.schemas.wording import did_you_mean

_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?")
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
"""As msgspec says it, with the path of the part that it is in."""


def unknown_field(problem: str, assignments: Sequence[str], root: type[msgspec.Struct]) -> UsageError | None:
    """The error to raise if *problem*, a message of msgspec's, is that one of *assignments* (``a.b=value``) names no field of
    *root*; it says what the fields are, and which may have been meant.
    """
    told = _UNKNOWN.match(problem)
    if told is None:
        return None
    field, place = told[1], _parts(re.split(r"[.\[\]]+", told[2] or ""))
    for assignment in assignments:
        *path, name = assignment.partition("=")[0].strip().split(".")
        if name != field or _parts(path) != place:
            continue
        known = _fields_at(place, root)
        return UsageError(
            f"there is no field {field[:60]!r} in {'.'.join(path) or 'a scenario'}",
            where=f"--set {assignment[:100]}",
            do=f"{did_you_mean(field, known)}its fields: {', '.join(known)}",
        )
    return None


def assigned_at(problem: str, assignments: Sequence[str]) -> str:
    """The one of *assignments* that *problem*, a message of msgspec's, is about by its path; empty if it is none of them."""
    told = _PLACE.search(problem)
    place = _parts(re.split(r"[.\[\]]+", told[1])) if told else []
    return next((a for a in assignments if place and _parts(a.partition("=")[0].strip().split(".")) == place), "")


def _parts(path: Sequence[str]) -> list[str]:
    """The names on *path*, without the numbers of entries of lists."""
    return [name for name in path if name and name != "..." and not name.isdigit()]


def _fields_at(path: Sequence[str], root: type[msgspec.Struct]) -> list[str]:
    """Names of the fields of the part of *root* at *path*, which leads through structures and lists of them."""
    at = root
    for name in path:
        kind = next(field.type for field in msgspec.structs.fields(at) if field.name == name)
        at = next(t for t in (kind, *typing.get_args(kind)) if isinstance(t, type) and issubclass(t, msgspec.Struct))
    return [field.name for field in msgspec.structs.fields(at)]
