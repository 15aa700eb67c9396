"""Kineto JSON (plain or gzip) to columns, piece by piece, so that memory is bounded by the columns and not by the file.

The file is cut at event boundaries into pieces of 96 KiB. Each goes through the compiled scanner
(:mod:`eroica.producers.trace.compiled`). One that it refuses, or each where it is absent, goes through a typed decoder, and what
that refuses is read event by event (:mod:`eroica.producers.trace.repair`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eroica.producers.trace.columns import ColumnBuilder, Trace
from eroica.producers.trace.compiled import count_of
from eroica.producers.trace.events import DOCUMENT, EVENTS, JSON_ERRORS, meta_of, not_a_trace
from eroica.producers.trace.repair import EVENT_BOUNDARY, read_carefully, read_meta, tail_behind
from eroica.schemas.errors import InvalidInput

try:
    from isal import isal_zlib as zlib  # the same interface, three times as fast
except ImportError:
    import zlib  # type: ignore[no-redef]

_ZLIB_ERROR: Any = zlib.error

PIECE_BYTES = 96 * 2**10
"""Decoded at once. Below 128 KiB the C library gives the same memory to each piece; above, each would be new pages from the
system, a quarter of the time to read a small trace. The cost per piece is small."""
MAX_EVENT_BYTES = 64 * 2**20
"""Without an event boundary in so many bytes it is not a trace."""
MAX_OBJECTS = 100_000_000
"""JSON objects in a file; a trace of 4 GiB has 35 million (an event of 120 bytes each, about every second with its arguments)."""
MIN_OBJECT_BYTES = 12
"""Objects shorter than this on average are no events: reading a file full of them would take hours."""
MAX_RATIO = 200
"""Bytes of JSON out of one compressed byte; traces have up to 30, and a file that was made to fill the memory up to 1,000."""
_SURE_BYTES = 64 * 2**20
_SURE_OBJECTS = 1_000_000
"""So much is read before averages count."""
PACKED_BYTES = 2**14
"""Read of a compressed file at once: about a piece, unpacked."""
_SEARCH_BYTES = 2**10
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOM = b"\xef\xbb\xbf"


def read_trace(path: str | Path, *, max_bytes: int = 4 * 2**30, compiled: bool = True) -> Trace:
    """Read a trace of ``torch.profiler`` in any convention since 2020.

    :param max_bytes: limit on the JSON, decompressed.
    :param compiled: use the compiled scanner if it is there; the columns are the same without it.
    :raises InvalidInput: no such file, not a trace, larger than *max_bytes*, or made to keep a reader busy (no events, or
        packed as no trace can be). A damaged trace is no error: what was left out or mended stands in ``Trace.repairs``.
    """
    where = str(path)
    builder = ColumnBuilder(compiled=compiled)
    try:
        meta = _Reader(where, builder).read(_blocks(Path(path), max_bytes, builder))
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", where=where, do="check path and access") from error
    return builder.build(meta)


class _Reader:
    """The pieces of one file in order: head, runs of events, tail."""

    def __init__(self, where: str, builder: ColumnBuilder) -> None:
        self.where = where
        self.builder = builder
        self.meta: dict[str, Any] = {}
        self.bare = False
        self.started = False
        self.tail: bytes | None = None

    def read(self, blocks: Iterator[bytes]) -> dict[str, Any]:
        parts: list[bytes] = []
        size, need = 0, PIECE_BYTES
        for block in blocks:
            parts.append(block)
            size += len(block)
            if size < need:
                continue
            buffer = b"".join(parts)
            if self.tail is not None:
                self.tail, buffer = self._bounded(self.tail + buffer), b""
            else:
                buffer = self._next(buffer)
            parts, size = [buffer], len(buffer)
            # What was looked at in vain is looked at again when it is twice as long, so that all looks together stay linear.
            need = min(max(PIECE_BYTES, 2 * size, len(self.tail or b"")), MAX_EVENT_BYTES + 1)
        self._last(b"".join(parts))
        return self.meta

    def _next(self, buffer: bytes) -> bytes:
        """Read the whole events of *buffer*; returns what remains of it."""
        cut = _last_boundary(buffer)
        if cut is None or not (self.started or self._has_head(buffer[: cut[0]])):
            if not self.started and buffer.removeprefix(_BOM).strip():
                self._open(buffer)
            return self._bounded(buffer)
        rest = buffer[cut[1] :]
        if self.started and self.builder.scan(buffer, 0, cut[0]):
            return rest
        unfinished = self._piece(buffer[: cut[0]])
        return unfinished + b"," + rest if unfinished else rest

    def _bounded(self, raw: bytes) -> bytes:
        if len(raw) > MAX_EVENT_BYTES:
            raise not_a_trace(self.where, f"no event ends within {MAX_EVENT_BYTES} bytes")
        return raw

    def _has_head(self, piece: bytes) -> bool:
        return piece.removeprefix(_BOM).lstrip()[:1] != b"{" or _HEAD.search(piece) is not None

    def _piece(self, piece: bytes) -> bytes:
        """Read a run of whole events, the first with the head in front; returns what is only the start of an event."""
        if not self.started:
            self._open(piece)
            if not self.bare:
                if (meta := self._headed(piece)) is not None and self.builder.scan(piece, meta[1], len(piece)):
                    self.started = True
                    self.meta.update(meta[0])
                    return b""
                try:
                    document = DOCUMENT.decode(piece.removeprefix(_BOM) + b"]}")
                except JSON_ERRORS:
                    return self._carefully(self._without_head(piece))
                self._take(document)
                return b""
            piece = self._without_head(piece)
            if self.builder.scan(piece, 0, len(piece)):
                return b""
        try:
            events = EVENTS.decode(b"[" + piece + b"]")
        except JSON_ERRORS:
            return self._carefully(piece)
        self.builder.add(events)
        return b""

    def _last(self, rest: bytes) -> None:
        """The rest of the file with the tail."""
        if self.tail is not None:
            self.meta.update(read_meta(self.tail + rest))
            return
        whole = rest.removeprefix(_BOM) if not self.started else (b"[" if self.bare else b'{"traceEvents":[') + rest
        if not self.started:
            self._open(rest)
        if self._scanned_last(rest):
            return
        try:
            if self.bare:
                self.builder.add(EVENTS.decode(whole))
            else:
                self._take(DOCUMENT.decode(whole))
        except JSON_ERRORS:
            body = rest if len(whole) != len(rest.removeprefix(_BOM)) else self._without_head(rest)
            result = read_carefully(body, self.builder)
            tail = result.tail
            if tail is None:
                self.builder.mend("events_unreadable", bool(result.unfinished))
                tail = tail_behind(result.unfinished)
            if tail is not None:
                self.meta.update(read_meta(tail))
            else:
                self.builder.mend("file_truncated")

    def _headed(self, piece: bytes) -> tuple[dict[str, Any], int] | None:
        """What stands before the list of events, and where the first event begins; None if that is not sound by itself."""
        head = _HEAD.search(piece)
        if head is None:
            return None
        try:
            document = DOCUMENT.decode(piece[: head.end()].removeprefix(_BOM) + b"]}")
        except JSON_ERRORS:
            return None
        return meta_of(document), head.end()

    def _scanned_last(self, rest: bytes) -> bool:
        """Read the rest of the file by the scanner; False, and nothing is read, if it is not as it should be."""
        meta: dict[str, Any] = {}
        start = 0
        if not self.started and self.bare:
            start = rest.index(b"[") + 1
        elif not self.started:
            if (headed := self._headed(rest)) is None:
                return False
            meta, start = headed

        def closed(tail: bytes) -> bool:
            if self.bare:
                return not tail.strip(b" \t\r\n")
            try:
                document = DOCUMENT.decode(b'{"traceEvents":null' + tail)
            except JSON_ERRORS:
                return False
            meta.update(meta_of(document))
            return document.traceEvents is None

        if not self.builder.scan(rest, start, -1, closed):
            return False
        self.meta.update(meta)
        return True

    def _open(self, piece: bytes) -> None:
        first = piece.removeprefix(_BOM).lstrip()[:1]
        if first not in (b"{", b"["):
            raise not_a_trace(self.where, "it is empty" if not first else "it is not JSON")
        self.bare = first == b"["

    def _without_head(self, piece: bytes) -> bytes:
        self.started = True
        if self.bare:
            return piece.removeprefix(_BOM).lstrip()[1:]
        head = _HEAD.search(piece)
        if head is None:
            raise not_a_trace(self.where, "it has no list 'traceEvents'")
        self.meta.update(read_meta(piece[: head.start()].removeprefix(_BOM).lstrip()[1:]))
        return piece[head.end() :]

    def _carefully(self, piece: bytes) -> bytes:
        result = read_carefully(piece, self.builder)
        self.tail = result.tail
        return result.unfinished

    def _take(self, document: Any) -> None:
        if document.traceEvents is None:
            raise not_a_trace(self.where, "it has no list 'traceEvents'")
        self.started = True
        self.meta.update(meta_of(document))
        self.builder.add(document.traceEvents)


def _last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """Where the last whole event ends and the next begins."""
    reach = _SEARCH_BYTES
    while True:
        start = max(0, len(buffer) - reach)
        matches = list(EVENT_BOUNDARY.finditer(buffer, start))
        if matches:
            return matches[-1].start() + 1, matches[-1].end()
        if start == 0:
            return None
        reach *= 8


def _blocks(path: Path, max_bytes: int, builder: ColumnBuilder) -> Iterator[bytes]:
    """The JSON in blocks; a compressed file that ends early or breaks gives what came before, and a note."""
    total = objects = 0
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        source = _inflated(file, builder) if packed else iter(lambda: file.read(PIECE_BYTES), b"")
        for block in source:
            total += len(block)
            if total > max_bytes:
                raise InvalidInput(
                    f"the trace is larger than {max_bytes} bytes", where=str(path), do="profile fewer steps or raise the limit"
                )
            objects += count_of(block, ord("{"))
            if packed and total > max(_SURE_BYTES, MAX_RATIO * file.tell()):
                raise not_a_trace(str(path), f"one compressed byte gives more than {MAX_RATIO} of JSON")
            if objects > MAX_OBJECTS:
                raise InvalidInput(
                    f"the trace holds more than {MAX_OBJECTS:,} objects",
                    where=str(path),
                    do="profile fewer steps, or without stacks",
                )
            if objects > _SURE_OBJECTS and total < MIN_OBJECT_BYTES * objects:
                raise not_a_trace(str(path), f"its objects have {total // objects} bytes on average")
            yield block


def _inflated(file: Any, builder: ColumnBuilder) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=31)
    packed = b""
    while True:
        packed = packed or file.read(PACKED_BYTES)
        if not packed:
            if not unpacker.eof:
                builder.mend("file_truncated")
            return
        if unpacker.eof:  # a file of several members
            unpacker = zlib.decompressobj(wbits=31)
        try:
            block = unpacker.decompress(packed, PIECE_BYTES)
        except _ZLIB_ERROR:
            builder.mend("file_truncated")
            return
        packed = unpacker.unconsumed_tail or (unpacker.unused_data if unpacker.eof else b"")
        if block:
            yield block
