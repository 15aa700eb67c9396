"""JSON Schema (2020-12) of every message and of the settings, generated from the classes themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from eroica.schemas.base import SCHEMA_VERSION, Message
from eroica.schemas.errors import UsageError
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.topics import MESSAGE_TOPIC, TOPICS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SETTINGS = "settings"
_MAJOR = SCHEMA_VERSION.partition(".")[0]


def message_kinds() -> dict[str, type[Message]]:
    """Kind on the wire → class, in the order of the topics."""
    return {str(message.__struct_config__.tag): message for message in MESSAGE_TOPIC}


def schema_names() -> list[str]:
    """What :func:`json_schema` knows: kinds of messages, topics (any of their kinds), and ``settings``."""
    return [*dict.fromkeys([*message_kinds(), *TOPICS]), SETTINGS]


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one message kind, of all kinds of a topic, or of the settings.

    Readers accept unknown fields (additive changes within a major version), so objects are open.

    :raises UsageError: for another name.
    """
    kinds = message_kinds()
    if name == SETTINGS:
        body = EroicaSettings.model_json_schema()
        title = "Settings of all components"
    elif name in kinds:
        body = _of_type(kinds[name])
        title = f"{kinds[name].__name__}, topic {MESSAGE_TOPIC[kinds[name]].name}"
    elif name in TOPICS:
        body = _of_type(TOPICS[name].union)
        title = f"Messages of topic {name}"
    else:
        raise unknown_schema(name, schema_names())
    return _named(name, title, body)


def unknown_schema(name: str, known: Sequence[str]) -> UsageError:
    """That no schema is called *name*, and which there are."""
    return UsageError(f"there is no schema {name[:80]!r}", do=f"known: {', '.join(known)}")


def file_schema(name: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of files that *kind* describes; unlike messages they may hold no unknown field."""
    return _named(name, f"{kind.__name__}, a file", _of_type(kind))


def _named(name: str, title: str, body: dict[str, Any]) -> dict[str, Any]:
    body.pop("title", None)
    return {"$schema": DIALECT, "$id": f"urn:eroica:schema:{_MAJOR}:{name}", "title": title, **body}


def schema_text(name: str) -> str:
    """The schema as the file that is published: indented, with a line feed at the end."""
    return indented(json_schema(name))


def indented(schema: dict[str, Any]) -> str:
    """A schema as text, with a line feed at the end."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(directory: Path) -> list[Path]:
    """Write one file a message kind, and ``settings.json``; files that are right are left alone. Returns all paths.

    :raises UsageError: when *directory* cannot be written.
    """
    paths: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in [*message_kinds(), SETTINGS]:
            path = directory / f"{name}.json"
            text = schema_text(name)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise UsageError(f"the folder cannot be written ({error.strerror})", where=str(directory)) from error
    return paths


def _of_type(kind: Any) -> dict[str, Any]:
    (body,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    return {**body, "$defs": dict(sorted(components.items()))}
