"""The spool's folder at a start: which segment files are there, how far each is sound, and the cursor."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from eroica.producers.agent.spoolrecord import HEAD, body_at, is_torn

MAX_SEGMENT = 10**11
"""Of a cursor; a number beyond is damage."""
_NAME = re.compile(r"^(\d{12})\.seg$")


class Position(NamedTuple):
    """Just behind a record: segment, offset in bytes, and the number of records of the segment before it."""

    segment: int
    offset: int
    ordinal: int


@dataclass
class Segment:
    """A part of the queue."""

    number: int
    size: int
    count: int
    memory: bytearray | None = None
    """Its content where the disk did not take it; else it is a file."""


def path_of(directory: Path, number: int) -> Path:
    """Where segment *number* lies."""
    return directory / f"{number:012d}.seg"


def scan(directory: Path) -> tuple[list[Segment], int]:
    """The segments in *directory*, and how many of them are damaged. What a killed process left half written is removed.

    :raises OSError: the folder or a file cannot be read.
    """
    for part in directory.glob("*.part"):
        with suppress(OSError):
            part.unlink()
    numbers = sorted(int(match.group(1)) for path in directory.iterdir() if (match := _NAME.match(path.name)))
    found = [_scan_one(directory, number) for number in numbers]
    return [segment for segment, _ in found], sum(damaged for _, damaged in found)


def stored_cursor(directory: Path) -> Position | None:
    """What the cursor says; ``None`` where it says nothing of sense."""
    try:
        words = (directory / "cursor").read_text(encoding="ascii").split()
        cursor = Position(*(int(word) for word in words))
    except (OSError, ValueError, TypeError):
        return None
    return cursor if 0 < cursor.segment < MAX_SEGMENT else None


def _scan_one(directory: Path, number: int) -> tuple[Segment, bool]:
    data = path_of(directory, number).read_bytes()
    offset = count = 0
    while (body := body_at(data, offset)) is not None:
        offset += HEAD.size + len(body)
        count += 1
    # The end that a killed process left is normal; anything else is damage.
    damaged = offset < len(data) and len(data) - offset >= HEAD.size and not is_torn(data, offset)
    return Segment(number, len(data), count), damaged
