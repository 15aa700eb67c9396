"""Reading what the strict decoder refuses: event by event, mending what has one meaning, dropping and counting the rest.

Mended: invalid UTF-8 (replacement characters), the tokens NaN and Infinity (absent values), control characters and backslashes
that are not escaped (paths of Windows), commas before a closing bracket, times written as strings. Dropped and counted: events
that are no JSON object after that, or lack a usable time. The count of every kind ends in ``Trace.repairs``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from eroica.producers.trace.beginnings import PHASES
from eroica.producers.trace.columns import ColumnBuilder
from eroica.producers.trace.events import JSON_ERRORS, META_KEYS, NO_ARGS, Args, Event

EVENT_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|id|dur|args|s|bp)"\s*:)')
"""End of one event and start of the next. It cannot match inside a JSON string: there a quote would be escaped."""
_ARRAY_END = re.compile(rb'\}\s*(?:,\s*)?\]\s*(?:,\s*(?="[A-Za-z_ ]+"\s*:)|\}\s*$|$)')
_NUMBER_TOKENS = re.compile(rb"(?<=[:\[,])(\s*)-?(?:NaN|nan|[Ii]nf(?:inity)?)\b(?=\s*[,}\]])")
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_DANGLING = re.compile(rb",(?=\s*[}\]])")
_INFO = re.compile(r'"distributedInfo"\s*:\s*\{')
_WHO = re.compile(r'"(rank|world_size)"\s*:\s*"?(\d{1,8})\b')
_INFO_REACH = 300
"""Rank and world stand at the head of ``distributedInfo``, within so many characters."""
_MAX_JOINS = 8
"""An event that was cut at a nested list of objects is whole again after so many pieces, or it is given up."""
_MAX_ENDS = 64
"""Lists of objects inside one event that are tried as the end of all events."""

_EVENT = msgspec.json.Decoder(Event)
_ANY = msgspec.json.Decoder()
_PREFIX = json.JSONDecoder()
_WIRE_NAMES = dict(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))
_TEXT = ("dtype", "group_name", "group_description", "group_ranks")


@dataclass(frozen=True, slots=True)
class CarefulResult:
    """What is left of a piece."""

    tail: bytes | None
    """What follows the array's end (``"key": …}``); None if the array does not end in the piece."""
    unfinished: bytes
    """The start of an event that the piece cuts; empty if there is none."""


def read_carefully(piece: bytes, builder: ColumnBuilder) -> CarefulResult:
    """Read *piece*, a run of events without the brackets around, as far as it can be read."""
    events: list[Event] = []
    pending, joins = b"", 0
    pieces = _split(piece)
    for number, raw in enumerate(pieces):
        candidate = pending + b"," + raw if pending else raw
        event = _one(candidate, builder)
        if event is None and pending:
            event = _one(raw, builder)
            if event is not None:
                builder.mend("events_unreadable", 1)
        if event is not None:
            events.append(event)
            pending, joins = b"", 0
            continue
        for end in islice(_ARRAY_END.finditer(candidate), _MAX_ENDS):
            if (last := _one(candidate[: end.start() + 1], builder)) is not None:
                builder.add([*events, last])
                return CarefulResult(b",".join([candidate[end.end() :], *pieces[number + 1 :]]), b"")
        pending, joins = (candidate, joins + 1) if joins < _MAX_JOINS else (b"", 0)
        if not pending:
            builder.mend("events_unreadable", _MAX_JOINS + 1)
    builder.add(events)
    return CarefulResult(None, pending if pending.strip(b" \t\r\n,]}") else b"")


def read_meta(raw: bytes) -> dict[str, Any]:
    """Top-level keys out of ``"key": value, …`` with or without the closing brace; where that cannot be read as a whole (a log of
    Kineto's own with bare quotes), those that can be read by themselves.
    """
    text = raw.strip().rstrip(b",").strip()
    for closed in (b"{" + text, b"{" + text + b"}"):
        try:
            value = _ANY.decode(_clean(closed))
        except JSON_ERRORS:
            continue
        if isinstance(value, dict):
            return {k: v for k in META_KEYS if (v := value.get(k)) is not None}
    mended = _clean(text).decode("utf-8", "replace")
    found = {key: value for key in META_KEYS if (value := _value_of(key, mended)) is not None}
    if "distributedInfo" not in found and (place := _INFO.search(mended)) is not None:
        told = {key: int(number) for key, number in _WHO.findall(mended, place.end(), place.end() + _INFO_REACH)[::-1]}
        found.update({"distributedInfo": told} if told else {})
    return found


def _value_of(key: str, text: str) -> Any:
    """The first readable value that stands behind *key*."""
    for place in islice(re.finditer(rf'"{key}"\s*:\s*', text), _MAX_ENDS):
        try:
            return _PREFIX.raw_decode(text, place.end())[0]
        except JSON_ERRORS:
            continue
    return None


def tail_behind(unfinished: bytes) -> bytes | None:
    """What follows the end of all events, if the last of them cannot be read; None if no end is in sight."""
    for end in reversed(list(islice(_ARRAY_END.finditer(unfinished), _MAX_ENDS))):
        tail = unfinished[end.end() :]
        if not tail.strip(b" \t\r\n}") or read_meta(tail):
            return tail
    return None


def _split(piece: bytes) -> list[bytes]:
    cuts = [m.start() + 1 for m in EVENT_BOUNDARY.finditer(piece)]
    starts = [0, *(m.end() for m in EVENT_BOUNDARY.finditer(piece))]
    return [piece[a:b] for a, b in zip(starts, [*cuts, len(piece)], strict=True)]


def _one(raw: bytes, builder: ColumnBuilder) -> Event | None:
    """One event, or None if these bytes are not one whole object."""
    try:
        return _EVENT.decode(raw)
    except JSON_ERRORS:
        pass
    cleaned = _clean(raw)
    try:
        value = _ANY.decode(cleaned)
    except JSON_ERRORS:
        return None
    if not isinstance(value, dict):
        return None
    if cleaned != raw:
        builder.mend("bytes_mended")
    return _from_dict(value, builder)


def _clean(raw: bytes) -> bytes:
    try:
        raw.decode()
    except UnicodeDecodeError:
        raw = raw.decode("utf-8", "replace").encode()
    raw = _ESCAPE.sub(lambda found: found.group() if len(found.group()) > 1 else rb"\\", _CONTROL.sub(b" ", raw))
    return _DANGLING.sub(b"", _NUMBER_TOKENS.sub(rb"\1null", raw))


def _from_dict(value: dict[str, Any], builder: ColumnBuilder) -> Event:
    """Build the event from loosely typed values; without a usable time it becomes one that is passed by."""
    phase = value.get("ph")
    pair = isinstance(phase, str) and phase in PHASES
    if phase != "X" and not pair:
        return Event(ph=phase if isinstance(phase, str) else "")
    ts, dur = _number(value.get("ts")), _number(value.get("dur", 0.0))
    if pair:
        # Without a time it still belongs to its other half, which then goes, too.
        value = {k: v for k, v in value.items() if k != "dur" and (k != "ts" or ts is not None)}
        ts, dur = float("nan") if ts is None else ts, 0.0
    if ts is None or dur is None:
        builder.mend("times_unusable")
        return Event()
    if isinstance(value.get("ts"), str) or isinstance(value.get("dur"), str):
        builder.mend("times_as_strings")
    args = value.get("args")
    return Event(
        ph=str(phase),
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=_text(value.get("pid")),
        tid=_text(value.get("tid")),
        ts=ts,
        dur=dur,
        args=_args(args) if isinstance(args, dict) else None,
    )


def _args(value: dict[str, Any]) -> Args:
    found: dict[str, Any] = {}
    for field, wire in _WIRE_NAMES.items():
        given = value.get(wire)
        if given is None:
            continue
        if field in _TEXT or field == "collective":
            found[field] = _text(given)
        elif field in ("dims", "types"):
            found[field] = msgspec.Raw(msgspec.json.encode(given))
        elif field == "stream":
            found[field] = given if isinstance(given, int | str) and not isinstance(given, bool) else None
        elif (number := _number(given)) is not None and abs(number) < 2**62:
            found[field] = number if field == "bytes" else int(number)
    return Args(**found) if found else NO_ARGS


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)[:200]


def _number(value: object) -> float | None:
    """A number, or a string that is one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value[:40] if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
