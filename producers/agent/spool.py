"""Messages on disk until the broker has them: segment files that are only appended to, a checksum a record, and a cursor.

Survives the sudden end of the process (what ``write`` took is in the kernel's hands), not that of the machine. One process owns a
directory. Format: docs/agent.md.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from eroica.producers.agent.spoolrecord import HEAD, MAX_BODY_BYTES, Record, body_at, is_torn, pack, unpack
from eroica.schemas.errors import UsageError

SEGMENT_BYTES = 4 * 2**20
MIN_SEGMENTS = 4
"""A full spool gives up its oldest segment, so at most a quarter of it at once."""
_NAME = re.compile(r"^(\d{12})\.seg$")


class Position(NamedTuple):
    """Just behind a record: segment, offset in bytes, and the number of records of the segment before it."""

    segment: int
    offset: int
    ordinal: int


@dataclass
class _Segment:
    number: int
    size: int
    count: int


class Spool:
    """A queue on disk. Reading goes ahead of the cursor, :meth:`ack` moves it, and after a restart reading begins there.

    Guarantees: what was appended comes back in order, at least once, unless the spool was full (then the oldest go, counted in
    ``dropped``) or its files were damaged (counted in ``corrupt``). Not thread-safe.
    """

    def __init__(self, directory: Path, max_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Open or create the spool.

        :raises OSError: the directory cannot be used.
        """
        self.directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = max(1, min(segment_bytes, max_bytes // MIN_SEGMENTS))
        self.dropped = 0
        self.corrupt = 0
        self._write_fd = -1
        self._read_fd = -1
        self._read_segment = -1
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segments = self._scan()
        # A former process may have left half a record at the end: never append behind it.
        self._next = self._segments[-1].number + 1 if self._segments else 1
        self._cursor = self._load_cursor()
        self._read = self._before_read = self._cursor
        self._saved = self._cursor
        self._remove_read()

    @property
    def size_bytes(self) -> int:
        """Size on disk."""
        return sum(segment.size for segment in self._segments)

    @property
    def pending(self) -> int:
        """Records that have not been acknowledged."""
        done = self._cursor.ordinal if self._segments and self._segments[0].number == self._cursor.segment else 0
        return sum(segment.count for segment in self._segments) - done

    def append(self, record: Record) -> bool:
        """Add *record* at the end; false if the disk has no room for it even without the oldest segment."""
        data = pack(record)
        if len(data) > MAX_BODY_BYTES + HEAD.size or len(data) > self._max_bytes:
            self.dropped += 1
            return False
        while self._segments and self.size_bytes + len(data) > self._max_bytes:
            self._drop_oldest()
        if self._write(data):
            return True
        self._drop_oldest()
        if self._write(data):
            return True
        self.dropped += 1
        return False

    def read(self) -> tuple[Position, Record] | None:
        """The next record and the position to acknowledge it by; ``None`` at the end."""
        while True:
            segment = next((s for s in self._segments if s.number >= self._read.segment), None)
            if segment is None:
                return None
            if segment.number > self._read.segment:
                self._read = Position(segment.number, 0, 0)
            if self._read.ordinal >= segment.count:
                if segment.number == self._segments[-1].number:
                    return None
                self._read = Position(segment.number + 1, 0, 0)
                continue
            body = self._read_body(segment.number, self._read.offset)
            record = unpack(body)
            if body is None or record is None:
                # Changed behind our back, since the scan had read it: the rest of the segment has no beginnings to trust.
                self.corrupt += 1
                segment.count = self._read.ordinal
                if segment.number == self._segments[-1].number:
                    self._close_segment()
                continue
            self._before_read = self._read
            self._read = Position(segment.number, self._read.offset + HEAD.size + len(body), self._read.ordinal + 1)
            return self._read, record

    def unread(self) -> None:
        """Give the last record back: the next :meth:`read` returns it again."""
        self._read = self._before_read

    def rewind(self) -> None:
        """Read again from the first record that is not acknowledged."""
        self._read = self._cursor

    def ack(self, position: Position) -> None:
        """Everything up to *position* is with the broker. Positions of records that were dropped meanwhile are passed over."""
        if position[:2] > self._cursor[:2] and self._segments and position.segment >= self._segments[0].number:
            self._cursor = position
            self._read = max(self._read, position)

    def sync(self) -> None:
        """Write the cursor down and delete what lies before it; cheap when nothing changed."""
        if self._cursor == self._saved:
            return
        self._remove_read()
        part = self.directory / "cursor.part"
        with suppress(OSError):  # the cursor written before is older, so records come twice: readers expect that
            part.write_text(f"{self._cursor.segment} {self._cursor.offset} {self._cursor.ordinal}\n", encoding="ascii")
            part.replace(self.directory / "cursor")
            self._saved = self._cursor

    def close(self) -> None:
        """Write the cursor down and close the files."""
        self.sync()
        for fd in (self._write_fd, self._read_fd):
            if fd >= 0:
                os.close(fd)
        self._write_fd = self._read_fd = -1
        self._read_segment = -1

    def _scan(self) -> list[_Segment]:
        numbers = sorted(int(match.group(1)) for path in self.directory.iterdir() if (match := _NAME.match(path.name)))
        return [self._scan_one(number) for number in numbers]

    def _scan_one(self, number: int) -> _Segment:
        data = self._path(number).read_bytes()
        offset = count = 0
        while (body := body_at(data, offset)) is not None:
            offset += HEAD.size + len(body)
            count += 1
        # The end that a killed process left is normal; anything else is damage.
        if offset < len(data) and len(data) - offset >= HEAD.size and not is_torn(data, offset):
            self.corrupt += 1
        return _Segment(number, len(data), count)

    def _load_cursor(self) -> Position:
        first = Position(self._segments[0].number, 0, 0) if self._segments else Position(self._next, 0, 0)
        try:
            words = (self.directory / "cursor").read_text(encoding="ascii").split()
            cursor = Position(*(int(word) for word in words))
        except (OSError, ValueError, TypeError):
            return first
        segment = next((s for s in self._segments if s.number == cursor.segment), None)
        if segment is None:
            return first
        valid = 0 <= cursor.ordinal <= segment.count and 0 <= cursor.offset <= segment.size
        return cursor if valid else first

    def _write(self, data: bytes) -> bool:
        last = self._segments[-1] if self._segments else None
        try:
            if self._write_fd < 0 or last is None or last.size + len(data) > self._segment_bytes:
                last = self._open_segment()
            written = os.write(self._write_fd, data)
            if written == len(data):
                last.size += written
                last.count += 1
                return True
            os.ftruncate(self._write_fd, last.size)
        except OSError:
            pass
        return False

    def _open_segment(self) -> _Segment:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._path(self._next), flags, 0o600)
        if self._write_fd >= 0:
            os.close(self._write_fd)
        self._write_fd = fd
        segment = _Segment(self._next, 0, 0)
        self._segments.append(segment)
        self._next += 1
        return segment

    def _drop_oldest(self) -> None:
        if not self._segments:
            return
        segment = self._segments[0]
        done = self._cursor.ordinal if segment.number == self._cursor.segment else 0
        self.dropped += segment.count - done
        self._delete(segment)
        following = Position(self._segments[0].number if self._segments else self._next, 0, 0)
        self._cursor = max(self._cursor, following)
        self._read = max(self._read, following)

    def _remove_read(self) -> None:
        """Delete the segments that lie wholly before the cursor, but not the one being written."""
        while self._segments and (
            self._segments[0].number < self._cursor.segment
            or (len(self._segments) > 1 and self._segments[0].number == self._cursor.segment
                and self._cursor.ordinal >= self._segments[0].count)
        ):  # fmt: skip
            self._delete(self._segments[0])
            if self._segments:
                self._cursor = max(self._cursor, Position(self._segments[0].number, 0, 0))
                self._read = max(self._read, self._cursor)

    def _delete(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        with suppress(OSError):
            self._path(segment.number).unlink()
        if self._read_segment == segment.number:
            os.close(self._read_fd)
            self._read_fd = self._read_segment = -1
        if not self._segments:
            self._close_segment()

    def _close_segment(self) -> None:
        """The next record begins another segment."""
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def _read_body(self, number: int, offset: int) -> bytes | None:
        try:
            if self._read_segment != number:
                if self._read_fd >= 0:
                    os.close(self._read_fd)
                    self._read_fd = self._read_segment = -1
                self._read_fd = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
                self._read_segment = number
            head = os.pread(self._read_fd, HEAD.size, offset)
            if len(head) < HEAD.size:
                return None
            length = HEAD.unpack(head)[1]
            return body_at(head + os.pread(self._read_fd, min(length, MAX_BODY_BYTES + 1), offset + HEAD.size), 0)
        except OSError:
            return None

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:012d}.seg"


def open_spool(directory: Path, max_bytes: int) -> Spool:
    """The spool in *directory*.

    :raises UsageError: the folder cannot be used.
    """
    try:
        return Spool(directory, max_bytes)
    except OSError as error:
        raise UsageError(
            f"the spool cannot be used ({error.strerror})", where=str(directory), do="mend it, or give another --runtime-dir"
        ) from error
