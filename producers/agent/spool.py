"""Messages on disk until the broker has them: segment files that are only appended to, a checksum a record, and a cursor.

Survives the sudden end of the process (what ``write`` took is in the kernel's hands), not that of the machine. What a full disk
does not take is kept in memory, in segments of the same form. One process owns a directory. Format: docs/agent.md.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from eroica.producers.agent.spoolfolder import Position, Segment, path_of, scan, stored_cursor
from eroica.producers.agent.spoolrecord import HEAD, MAX_BODY_BYTES, Record, body_at, pack, unpack
from eroica.schemas.errors import UsageError

SEGMENT_BYTES = 4 * 2**20
MIN_SEGMENTS = 4
"""A full spool gives up its oldest segment, so at most a quarter of it at once."""
MEMORY_BYTES = 16 * 2**20
"""For what the disk does not take: at a message a second and job, minutes of a broker that is away too."""
MEMORY_SEGMENT_BYTES = 2**20


class Spool:
    """A queue on disk. Reading goes ahead of the cursor, :meth:`ack` moves it, and after a restart reading begins there.

    Guarantees: what was appended comes back in order, at least once, unless the spool was full (then the oldest go, counted in
    ``dropped``) or its files were damaged (counted in ``corrupt``). What the disk did not take does not outlive the process,
    unless it takes it at :meth:`close`. Not thread-safe.
    """

    def __init__(
        self, directory: Path, max_bytes: int, segment_bytes: int = SEGMENT_BYTES, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        """Open or create the spool.

        :raises OSError: the directory cannot be used.
        """
        self.directory = directory
        self._max_bytes = max_bytes
        self.memory_bytes = min(memory_bytes, max_bytes)
        self._segment_bytes = max(1, min(segment_bytes, max_bytes // MIN_SEGMENTS))
        self.dropped = 0
        self.disk_takes = True
        """The last message that was appended is on disk, not in memory."""
        self._write_fd = -1
        self._read_fd = -1
        self._read_segment = -1
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segments, self.corrupt = scan(directory)
        stored = stored_cursor(directory)
        # A former process may have left half a record at the end, or a cursor to what it had in memory: never write there.
        self._next = 1 + max(self._segments[-1].number if self._segments else 0, stored.segment if stored else 0)
        self._cursor = self._valid(stored)
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
        """Add *record* at the end: on disk, or in memory where the disk has no room. False if it is larger than either."""
        data = pack(record)
        if len(data) > MAX_BODY_BYTES + HEAD.size or len(data) > self._max_bytes:
            self.dropped += 1
            return False
        while self._segments and self.size_bytes + len(data) > self._max_bytes:
            self._drop_oldest()
        self.disk_takes = self._write(data)
        if self.disk_takes:
            self._save_memory()
            return True
        if len(data) > self.memory_bytes:
            self.dropped += 1
            return False
        while self._memory_size() + len(data) > self.memory_bytes:
            self._drop_oldest()
            self.disk_takes = self._write(data)
            if self.disk_takes:
                self._save_memory()
                return True
        self._remember(data)
        return True

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
            body = self._read_body(segment, self._read.offset)
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

    def close(self) -> int:
        """Write down what is in memory, as far as the disk takes it, and the cursor; answers how many records it did not take."""
        self._save_memory()
        self.sync()
        for fd in (self._write_fd, self._read_fd):
            if fd >= 0:
                os.close(fd)
        self._write_fd = self._read_fd = -1
        self._read_segment = -1
        unsaved = [segment for segment in self._segments if segment.memory is not None]
        return sum(s.count - (self._cursor.ordinal if s.number == self._cursor.segment else 0) for s in unsaved)

    def _valid(self, cursor: Position | None) -> Position:
        first = Position(self._segments[0].number if self._segments else self._next, 0, 0)
        segment = next((s for s in self._segments if cursor is not None and s.number == cursor.segment), None)
        if cursor is None or segment is None:
            return first
        valid = 0 <= cursor.ordinal <= segment.count and 0 <= cursor.offset <= segment.size
        return cursor if valid else first

    def _write(self, data: bytes) -> bool:
        last = self._segments[-1] if self._segments else None
        try:
            if self._write_fd < 0 or last is None or last.memory is not None or last.size + len(data) > self._segment_bytes:
                last = self._open_segment()
            written = os.write(self._write_fd, data)
            if written == len(data):
                last.size += written
                last.count += 1
                return True
            os.ftruncate(self._write_fd, last.size)
        except OSError:
            pass
        last = self._segments[-1] if self._segments else None
        if last is not None and last.memory is None and not last.size:
            self._delete(last)
            self._close_segment()
        return False

    def _remember(self, data: bytes) -> None:
        last = self._segments[-1] if self._segments else None
        if last is None or last.memory is None or last.size + len(data) > MEMORY_SEGMENT_BYTES:
            self._close_segment()
            last = Segment(self._next, 0, 0, bytearray())
            self._segments.append(last)
            self._next += 1
        assert last.memory is not None
        last.memory += data
        last.size += len(data)
        last.count += 1

    def _memory_size(self) -> int:
        return sum(segment.size for segment in self._segments if segment.memory is not None)

    def _save_memory(self) -> None:
        """The disk takes messages again: what is in memory becomes files, the oldest first, as far as there is room."""
        for segment in self._segments:
            done = segment.number == self._cursor.segment and self._cursor.ordinal >= segment.count
            if segment.memory is None or done:
                continue
            path = path_of(self.directory, segment.number)
            part = path.with_suffix(".part")
            try:
                part.write_bytes(segment.memory)
                part.replace(path)
            except OSError:
                with suppress(OSError):
                    part.unlink()
                return
            segment.memory = None

    def _open_segment(self) -> Segment:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path_of(self.directory, self._next), flags, 0o600)
        if self._write_fd >= 0:
            os.close(self._write_fd)
        self._write_fd = fd
        segment = Segment(self._next, 0, 0)
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

    def _delete(self, segment: Segment) -> None:
        self._segments.remove(segment)
        with suppress(OSError):
            path_of(self.directory, segment.number).unlink()
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

    def _read_body(self, segment: Segment, offset: int) -> bytes | bytearray | None:
        if segment.memory is not None:
            return body_at(segment.memory, offset)
        number = segment.number
        try:
            if self._read_segment != number:
                if self._read_fd >= 0:
                    os.close(self._read_fd)
                    self._read_fd = self._read_segment = -1
                self._read_fd = os.open(path_of(self.directory, number), os.O_RDONLY | os.O_CLOEXEC)
                self._read_segment = number
            head = os.pread(self._read_fd, HEAD.size, offset)
            if len(head) < HEAD.size:
                return None
            length = HEAD.unpack(head)[1]
            return body_at(head + os.pread(self._read_fd, min(length, MAX_BODY_BYTES + 1), offset + HEAD.size), 0)
        except OSError:
            return None


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
