"""A recording on disk: one zstd JSON-lines file a topic and partition, and a manifest with checksums.

The format is described in ``docs/record-replay.md``. A file is a row of complete zstd frames, so it grows by appending; the
manifest says how much of it counts: a recorder that was killed leaves a recording that is whole up to its last checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import zstandard

from eroica.bus import Headers, Incoming
from eroica.schemas.base import Int
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.schemas.topics import TOPICS

FORMAT = "eroica-recording"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16_000_000
MAX_LINE_BYTES = 2 * max(topic.max_message_bytes for topic in TOPICS.values()) + 1_000_000
"""A line holds one message, at worst in base64, with key and headers; a longer one is no recording of ours."""
MAX_WINDOW_BYTES = 1 << 27
"""Memory that a file may ask of the decompressor (zstd's own default limit)."""
MAX_FILES = 10_000
CHUNK_BYTES = 1 << 20
DATA_FILE = re.compile(r"[a-z]{1,40}-[0-9]{1,6}\.jsonl\.zst")


Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Partition = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,6}$")]


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record; names as kcat's JSON envelope, with base64 twins where bytes are not UTF-8."""

    topic: str
    partition: Int
    offset: Int
    ts: Int = -1
    key: str | None = None
    payload: str | None = None
    key_b64: str | None = None
    payload_b64: str | None = None
    headers: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """Name and base64 of the value, in their order."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What of one file counts."""

    file: str
    topic: str
    partition: Count
    messages: Count
    first_offset: Int
    last_offset: Int
    min_ts: Int
    max_ts: Int
    bytes: Count
    """Compressed bytes that belong to the recording; what follows them was never confirmed."""
    sha256: str
    """Of those bytes."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The recording as a whole."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    software: str
    job: str
    prefix: str
    """Prefix of the topics that it was recorded from."""
    partitions: dict[str, Int]
    """Topic → partitions it had."""
    positions: dict[str, dict[Partition, Int]]
    """Topic → partition → next offset to read: where recording goes on."""
    settings: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """The settings of detect, group and localize as the recorder was given them: what a replay starts from."""
    files: list[FileEntry]
    closed: bool | None = None
    """Whether the recorder came to its own end; ``None`` where an older one did not say."""


def to_line(topic: str, record: Incoming) -> Line:
    """*record* of *topic* (short name) as a line."""
    key, key_b64 = _text(record.key)
    payload, payload_b64 = _text(record.value)
    headers = [(name, base64.b64encode(value).decode()) for name, value in record.headers]
    return Line(topic, record.partition, record.offset, record.timestamp_ms, key, payload, key_b64, payload_b64, headers)


def from_line(line: Line, where: str) -> Incoming:
    """The record that *line* tells of; its topic is the short name.

    :raises InvalidInput: base64 that is none.
    """
    try:
        headers: Headers = tuple((name, base64.b64decode(value, validate=True)) for name, value in line.headers)
        return Incoming(
            topic=line.topic,
            partition=line.partition,
            offset=line.offset,
            key=_bytes(line.key, line.key_b64),
            value=_bytes(line.payload, line.payload_b64),
            headers=headers,
            timestamp_ms=line.ts,
        )
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"a field is not base64 ({error})", where=where) from error


def file_name(topic: str, partition: int) -> str:
    """The file of one partition."""
    return f"{topic}-{partition}.jsonl.zst"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the recording in *directory*, checked.

    :raises InvalidInput: there is none, it is not ours, or of a version that we do not know.
    """
    path = directory / MANIFEST
    try:
        with open_file(path) as stream:
            raw = stream.read(MAX_MANIFEST_BYTES + 1)
        if len(raw) > MAX_MANIFEST_BYTES:
            raise InvalidInput(f"the manifest is over {MAX_MANIFEST_BYTES} bytes", where=str(path))
        manifest = msgspec.json.decode(raw, type=Manifest)
    except FileNotFoundError as error:
        raise InvalidInput(
            "this folder holds no recording: there is no manifest.json", where=str(directory), do="make one with: eroica record"
        ) from error
    except OSError as error:
        raise InvalidInput(f"the manifest cannot be read ({error.strerror})", where=str(path)) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"the manifest is broken ({str(error)[:200]})", where=str(path)) from error
    if manifest.format != FORMAT:
        raise InvalidInput(f"this is a {manifest.format[:40]!r}, not a recording of ours", where=str(path))
    if manifest.version != FORMAT_VERSION:
        raise InvalidInput(f"the recording has format version {manifest.version}, not {FORMAT_VERSION}", where=str(path))
    if len(manifest.files) > MAX_FILES or len({entry.file for entry in manifest.files}) < len(manifest.files):
        raise InvalidInput(f"the manifest names a file twice, or more than {MAX_FILES} files", where=str(path))
    for entry in manifest.files:
        if DATA_FILE.fullmatch(entry.file) is None or entry.file != file_name(entry.topic, entry.partition):
            raise InvalidInput(f"the manifest names a file that cannot be its own: {entry.file[:80]!r}", where=str(path))
        if entry.topic not in TOPICS:
            raise InvalidInput(f"the manifest names an unknown topic {entry.topic[:80]!r}", where=str(path))
    return manifest


def refuse_recording(source: Path) -> None:
    """For commands that take traces: a recording is judged by another one.

    :raises UsageError: *source* is the folder of a recording, or its manifest.
    """
    folder = source if source.is_dir() else source.parent
    if source not in (folder, folder / MANIFEST):
        return
    try:
        read_manifest(folder)
    except InvalidInput:
        return
    raise UsageError(
        "this is a recording, not a folder of traces", where=str(folder), do=f"judge it with: eroica replay {folder}"
    )


def open_file(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open an ordinary file of a recording. A folder from elsewhere may hold links out of it, or a pipe that never ends.

    :raises OSError: it is missing, a link, or something else than a file.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no ordinary file")
    return os.fdopen(fd, "rb" if flags == os.O_RDONLY else "r+b")


def verify(directory: Path, manifest: Manifest) -> None:
    """Check that every file is there and its bytes are those of the manifest.

    :raises InvalidInput: names the first file that is missing, cut or changed.
    """
    for entry in manifest.files:
        digest_of(directory, entry)


def digest_of(directory: Path, entry: FileEntry) -> Any:
    """The running SHA-256 over the bytes of *entry* that count, checked against the manifest.

    :raises InvalidInput: missing, cut or changed.
    """
    path = directory / entry.file
    digest = hashlib.sha256()
    left = entry.bytes
    try:
        with open_file(path) as stream:
            while left and (chunk := stream.read(min(CHUNK_BYTES, left))):
                digest.update(chunk)
                left -= len(chunk)
    except OSError as error:
        raise InvalidInput(f"a file of the recording cannot be read ({error.strerror})", where=str(path)) from error
    if left:
        raise InvalidInput(f"the file is cut: {left} of {entry.bytes} bytes are missing", where=str(path), do="record again")
    if digest.hexdigest() != entry.sha256:
        raise InvalidInput("the file was changed: its checksum is not the manifest's", where=str(path), do="record again")
    return digest


def read_file(directory: Path, entry: FileEntry) -> Iterator[Incoming]:
    """The records of one file in offset order, with bounded memory. Call :func:`verify` first.

    :raises InvalidInput: what is inside is not what the manifest says.
    """
    path = directory / entry.file
    count, last = 0, -1
    decoder = msgspec.json.Decoder(Line)
    try:
        with open_file(path) as stream:
            plain = io.BufferedReader(decompressed(stream, entry.bytes), CHUNK_BYTES)
            while raw := plain.readline(MAX_LINE_BYTES + 1):
                where = f"{path}:{count + 1}"
                if count >= entry.messages:
                    raise InvalidInput(f"the file holds more messages than the manifest's {entry.messages}", where=str(path))
                if len(raw) > MAX_LINE_BYTES or not raw.endswith(b"\n"):
                    raise InvalidInput("the line is cut or too long", where=where)
                record = from_line(decoder.decode(raw), where)
                if (record.topic, record.partition) != (entry.topic, entry.partition) or record.offset <= last:
                    raise InvalidInput("the record does not belong here", where=where)
                count, last = count + 1, record.offset
                yield record
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeError, RecursionError, OSError) as error:
        raise InvalidInput(f"the file cannot be decoded ({str(error)[:200]})", where=f"{path}:{count + 1}") from error
    if count != entry.messages:
        raise InvalidInput(f"the file holds {count} messages, the manifest says {entry.messages}", where=str(path))


def decompressed(stream: Any, length: int) -> Any:
    """A reader of what the first *length* bytes of *stream* unpack to."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    head: Any = _Head(stream, length)
    return decompressor.stream_reader(head, read_across_frames=True)


class _Head(io.RawIOBase):
    """The first *length* bytes of a stream."""

    def __init__(self, stream: Any, length: int) -> None:
        self._stream = stream
        self._left = length

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        piece: bytes = self._stream.read(wanted)
        self._left -= len(piece)
        return piece


def _text(raw: bytes | None) -> tuple[str | None, str | None]:
    """*raw* as text where it is UTF-8, else as base64."""
    if raw is None:
        return None, None
    try:
        return raw.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, base64.b64encode(raw).decode()


def _bytes(text: str | None, b64: str | None) -> bytes | None:
    if b64 is not None:
        return base64.b64decode(b64, validate=True)
    return text.encode("utf-8") if text is not None else None
