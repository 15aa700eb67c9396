"""Bytes to messages and back: orjson out, msgspec in, sizes bounded, versions checked, the wrong path named."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
import orjson

from eroica.schemas.base import MAX_NAME_CHARS, SCHEMA_VERSION, Message
from eroica.schemas.errors import MessageTooLarge, SchemaError, UnknownMajorVersion
from eroica.schemas.topics import MESSAGE_TOPIC, TOPICS, Topic

M = TypeVar("M", bound=Message)
_MAJOR = SCHEMA_VERSION.partition(".")[0]


def encode(message: Message) -> bytes:
    """One JSON object; deterministic: fields in the order of their declaration, dictionaries as given.

    numpy arrays and scalars are written straight from their buffers. NaN and infinities become ``null``: never put one where a
    number is required.

    :raises MessageTooLarge: above the limit of the message's topic.
    """
    raw = _dump(message)
    topic = MESSAGE_TOPIC[type(message)]
    if len(raw) > topic.max_message_bytes:
        raise MessageTooLarge(
            f"{type(message).__name__} of {len(raw)} bytes is over the limit of {topic.max_message_bytes}",
            where=topic.name,
        )
    return raw


_NAMES = ("job", "run_id", "request", "cls", "host", "verdict_id", "who")
"""Fields that hold such a name, or a record with such fields."""


def decode(topic: str, raw: bytes | None, where: str = "") -> Message:
    """Decode a value of *topic* (short name).

    Guarantee: raises nothing but :class:`SchemaError` and its kinds, whatever the bytes are.

    :param where: topic/partition/offset for the error.
    :raises MessageTooLarge: over the topic's limit, decompressed.
    :raises UnknownMajorVersion: written by an incompatible schema.
    :raises SchemaError: not JSON, or the first path that is wrong.
    """
    spec = TOPICS[topic]
    place = where or topic
    if raw is None:
        raise SchemaError("the message has no value (a tombstone)", where=place)
    if len(raw) > spec.max_message_bytes:
        raise MessageTooLarge(f"{len(raw)} bytes are over the limit of {spec.max_message_bytes}", where=place)
    try:
        message = cast(Message, _decoder(spec.name).decode(raw))
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError) as error:
        _check_major(raw, place)
        raise SchemaError(f"not a message of this topic: {str(error)[:300]}", where=place) from error
    if message.schema_version.partition(".")[0] != _MAJOR:
        _refuse(message.schema_version, place)
    _check_names(message, place)
    return message


def decode_as(kind: type[M], raw: bytes | None, where: str = "") -> M:
    """Like :func:`decode` for one class; another kind of the topic is a :class:`SchemaError`."""
    message = decode(MESSAGE_TOPIC[kind].name, raw, where)
    if not isinstance(message, kind):
        raise SchemaError(f"expected {kind.__name__}, found {type(message).__name__}", where=where)
    return message


def encoded_size(message: Message) -> int:
    """Bytes that *message* would take, whatever its topic's limit."""
    return len(_dump(message))


def _check_names(record: msgspec.Struct, where: str) -> None:
    """What keys are made of has to fit into one: nobody could pass a longer name on."""
    for field in _NAMES:
        name = getattr(record, field, None)
        if isinstance(name, str) and len(name) > MAX_NAME_CHARS:
            raise SchemaError(f"a name of {len(name)} characters (at most {MAX_NAME_CHARS}) in `{field}`", where=where)
        if isinstance(name, msgspec.Struct):
            _check_names(name, where)


class _Head(msgspec.Struct):
    schema_version: str = SCHEMA_VERSION


def _check_major(raw: bytes, where: str) -> None:
    try:
        version = _HEAD.decode(raw).schema_version
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return
    if version.partition(".")[0] != _MAJOR:
        _refuse(version, where)


def _refuse(version: str, where: str) -> None:
    if not (_VERSION.fullmatch(version) and int(version.partition(".")[0]) > int(_MAJOR)):
        raise SchemaError(f"schema_version {version[:20]!r} is none that a writer has", where=where)
    raise UnknownMajorVersion(
        f"schema_version {version[:20]!r} is not {_MAJOR}.x", where=where, do="upgrade this reader, or the writer"
    )


_HEAD = msgspec.json.Decoder(_Head)
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,6}")


@cache
def _decoder(topic: str) -> msgspec.json.Decoder[Any]:
    spec: Topic = TOPICS[topic]
    return msgspec.json.Decoder(spec.union)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


def _dump(message: Message) -> bytes:
    return orjson.dumps(message, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _plain(value: object) -> Any:
    """A struct as a dictionary in wire names, its kind first (orjson asks for types it does not know)."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        plain: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field else {}
        for name, wire in _fields(type(value)):
            plain[wire] = getattr(value, name)
        return plain
    raise TypeError(f"{type(value).__name__} has no place in a message")
