"""What a setting may be, and what to say of one that is not. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from eroica.schemas.environment import is_table, variable
from eroica.schemas.errors import UsageError
from eroica.schemas.wording import did_you_mean

SEE = "see `eroica schema settings`"
MAX_SHOWN = 40
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOUNDS = {
    "gt": "above {}",
    "ge": "from {}",
    "le": "up to {}",
    "max_length": "of at most {} characters",
    "pattern": "that matches {}",
}


def may_be(field: FieldInfo) -> str:
    """What a setting takes, in words.

    >>> from eroica.schemas.settings import DetectSettings
    >>> may_be(DetectSettings.model_fields["window"])
    'a whole number above 1 up to 100000'
    """
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if is_table(field):
        return "a table of names and texts"
    found = [
        wording.format(bound)
        for rule in field.metadata
        for name, wording in _BOUNDS.items()
        if (bound := getattr(rule, name, None)) is not None
    ]
    return " ".join([_KINDS.get(kind, "something else"), *found])


def unknown_section(section: str, known: Collection[str], source: str) -> UsageError:
    """What to say of a *section* that is none.

    :param source: the flag or file it stands in.
    """
    near = did_you_mean(section, known)
    return UsageError(f"there is no section {section[:60]!r}", where=source, do=f"{near}sections: {', '.join(known)}")


def unknown_setting(section: str, key: str, known: Collection[str], source: str = "") -> UsageError:
    """What to say of a *key* that its *section* lacks: the one that may have been meant.

    :param source: the file or variable it stands in.
    """
    return UsageError(
        f"there is no setting {key[:60]!r} in section {section}",
        where=source or f"{section}.{key[:60]}",
        do=f"{did_you_mean(key, known)}{SEE}",
    )


def wrong_setting(
    error: ValidationError,
    sections: Mapping[str, Mapping[str, FieldInfo]],
    given: Mapping[str, Collection[str]],
    environ: Collection[str],
    file: str | None,
) -> UsageError:
    """The first thing that is wrong, where it stands, and what it may be.

    :param sections: section → key → the setting.
    :param given: section → keys that flags set.
    :param environ: names of the environment's variables.
    :param file: the settings file, if there is one.
    """
    first = error.errors()[0]
    section, key, *deeper = (*map(str, first["loc"]), "")[: max(2, len(first["loc"]))]
    source = _source(section, key, given, environ, file)
    if section not in sections:
        return unknown_section(section, sections, source)
    if first["type"] == "extra_forbidden" and not deeper:
        return unknown_setting(section, key, sections[section], source)
    field = sections[section].get(key)
    if field is None:
        example = variable(section, next(iter(sections[section])))
        return UsageError(f"section {section} is not one value: it has keys, e.g. {example}", where=source, do=SEE)
    path = ".".join((section, key, *(part for part in deeper if part)))
    kind = "text" if deeper else may_be(field)
    value = first["input"]
    # The client's own properties hold passwords.
    known = isinstance(value, (str, int, float)) and not is_table(field)
    shown = f", not {str(value)[:MAX_SHOWN]!r}" if known else ""
    return UsageError(f"setting {path} must be {kind}{shown}", where=source, do=SEE)


def not_json(environ: Mapping[str, str], sections: Mapping[str, Mapping[str, FieldInfo]]) -> UsageError:
    """Which variable was to hold a JSON object and does not."""
    tables = {variable(section) for section in sections} | {
        variable(section, key) for section, keys in sections.items() for key, field in keys.items() if is_table(field)
    }
    wrong = [name for name, text in environ.items() if name.upper() in tables and not _is_object(text)]
    return UsageError('its value must be a JSON object, e.g. {"name": "text"}', where=", ".join(sorted(wrong)), do=SEE)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _source(section: str, key: str, given: Mapping[str, Collection[str]], environ: Collection[str], file: str | None) -> str:
    """Where a setting stands; nothing for a flag, which the caller has before his eyes."""
    if key in given.get(section, ()):
        return ""
    upper = {name.upper(): name for name in environ}
    for name in (variable(section, key), variable(section)):
        if name in upper:
            return upper[name]
    return file or ""
