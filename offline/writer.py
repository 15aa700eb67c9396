"""Appending to a recording: buffered lines, complete zstd frames, and checkpoints that make them count."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard

from eroica import __version__
from eroica.bus import Incoming
from eroica.offline.recording import MANIFEST, FileEntry, Manifest, digest_of, file_name, open_file, read_manifest, to_line
from eroica.schemas.errors import InvalidInput, UsageError

ZSTD_LEVEL = 3
FRAME_BYTES = 262_144
"""Lines are compressed in frames of about this size: what one partition's writer holds in memory."""


class RecordingWriter:
    """Writes a recording into *directory*, or goes on with the one that is there.

    What was added counts after :meth:`checkpoint`; a process that is killed in between loses only what came after the last one.
    One writer a folder at a time.
    """

    def __init__(
        self, directory: Path, *, job: str, prefix: str, settings: dict[str, dict[str, Any]], level: int = ZSTD_LEVEL
    ) -> None:
        """Open or create the recording.

        :param level: of compression; a lower one is faster.
        :raises InvalidInput: the folder holds a recording of another job or prefix, or a broken one.
        :raises UsageError: the folder cannot be written, or holds other things.
        """
        self.directory = directory
        self._job, self._prefix, self._settings, self._level = job, prefix, settings, level
        self._files: dict[tuple[str, int], _PartitionFile] = {}
        self._positions: dict[str, dict[str, int]] = {}
        self._partitions: dict[str, int] = {}
        self.resumed = False
        with _writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            if (directory / MANIFEST).exists():
                self._resume(read_manifest(directory))
            elif any(directory.iterdir()):
                raise UsageError("the folder is not empty and holds no recording", where=str(directory), do="name another folder")

    def start_of(self, topic: str) -> dict[int, int]:
        """Partition → offset at which reading goes on; partitions that are absent start at the beginning."""
        return {int(partition): offset for partition, offset in self._positions.get(topic, {}).items()}

    def counts(self) -> dict[str, int]:
        """Topic → messages recorded so far."""
        totals: dict[str, int] = {}
        for (topic, _), file in sorted(self._files.items()):
            totals[topic] = totals.get(topic, 0) + file.messages
        return totals

    def note_partitions(self, topic: str, partitions: int) -> None:
        """Remember how many partitions *topic* has."""
        self._partitions[topic] = partitions

    def passed(self, topic: str, partition: int, offset: int) -> None:
        """*offset* was read, and recorded if it was of the job."""
        positions = self._positions.setdefault(topic, {})
        positions[str(partition)] = max(positions.get(str(partition), 0), offset + 1)

    def add(self, topic: str, record: Incoming) -> None:
        """Append *record*; one at or before the last of its partition is a repetition and changes nothing.

        :raises UsageError: it cannot be written (the disk is full).
        """
        key = (topic, record.partition)
        with _writing(self.directory):
            file = self._files.get(key)
            if file is None:
                file = self._files[key] = _PartitionFile(self.directory, topic, record.partition, level=self._level)
            file.add(record)

    def checkpoint(self, *, closed: bool = False) -> None:
        """Make everything added so far part of the recording: frames to disk first, then the manifest, in one step.

        :param closed: the recorder came to its own end.
        :raises UsageError: it cannot be written (the disk is full); the recording stays as it was at the last checkpoint.
        """
        with _writing(self.directory):
            self._checkpoint(closed)

    def _checkpoint(self, closed: bool) -> None:
        entries = [file.confirm() for _, file in sorted(self._files.items())]
        manifest = Manifest(
            software=__version__,
            job=self._job,
            prefix=self._prefix,
            partitions=dict(sorted(self._partitions.items())),
            positions={
                topic: dict(sorted(p.items(), key=lambda item: int(item[0]))) for topic, p in sorted(self._positions.items())
            },
            settings=self._settings,
            files=entries,
            closed=closed,
        )
        raw = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        temporary = self.directory / f"{MANIFEST}.new"
        with open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self.directory / MANIFEST)

    def close(self, *, early: bool = False) -> None:
        """Confirm what is left and close the files.

        :param early: not all was written that was to be.
        """
        try:
            self.checkpoint(closed=not early)
        finally:
            for file in self._files.values():
                file.close()

    def discard(self) -> None:
        """Remove the recording, unless it was there before; to be called last."""
        if self.resumed:
            return
        for name in (MANIFEST, *(file_name(*key) for key in self._files)):
            (self.directory / name).unlink(missing_ok=True)
        with suppress(OSError):  # what others put there meanwhile stays
            self.directory.rmdir()

    def _resume(self, manifest: Manifest) -> None:
        if manifest.job != self._job or manifest.prefix != self._prefix:
            raise InvalidInput(
                f"the folder holds a recording of job {manifest.job[:100]!r} from prefix {manifest.prefix[:100]!r}",
                where=str(self.directory),
                do="name another folder",
            )
        for entry in manifest.files:
            file = _PartitionFile(self.directory, entry.topic, entry.partition, entry, level=self._level)
            self._files[entry.topic, entry.partition] = file
        self._positions = {topic: dict(positions) for topic, positions in manifest.positions.items()}
        self._partitions = dict(manifest.partitions)
        self.resumed = True


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the folder cannot be written ({error.strerror or error})",
            where=str(directory),
            do="make room, or name another folder",
        ) from error


class _PartitionFile:
    """One file that grows by whole frames."""

    def __init__(self, directory: Path, topic: str, partition: int, entry: FileEntry | None = None, *, level: int) -> None:
        self._topic, self._partition = topic, partition
        path = directory / file_name(topic, partition)
        self._lines: list[bytes] = []
        self._buffered = 0
        self._encoder = msgspec.json.Encoder()
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self.messages = entry.messages if entry else 0
        self._first = entry.first_offset if entry else -1
        self._last = entry.last_offset if entry else -1
        self._min_ts = entry.min_ts if entry else -1
        self._max_ts = entry.max_ts if entry else -1
        self._digest: Any = digest_of(directory, entry) if entry else hashlib.sha256()
        self._length = entry.bytes if entry else 0
        self._stream: BinaryIO = open_file(path, os.O_RDWR | (0 if entry else os.O_CREAT))
        # Frames after the last checkpoint may be half written; they were never part of the recording.
        self._stream.truncate(self._length)
        self._stream.seek(self._length)

    def add(self, record: Incoming) -> None:
        if record.offset <= self._last:
            return
        line = self._encoder.encode(to_line(self._topic, record)) + b"\n"
        self._lines.append(line)
        self._buffered += len(line)
        if self.messages == 0:
            self._first, self._min_ts, self._max_ts = record.offset, record.timestamp_ms, record.timestamp_ms
        self._last = record.offset
        self._min_ts = min(self._min_ts, record.timestamp_ms)
        self._max_ts = max(self._max_ts, record.timestamp_ms)
        self.messages += 1
        if self._buffered >= FRAME_BYTES:
            self._write_frame()

    def confirm(self) -> FileEntry:
        self._write_frame()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return FileEntry(
            file=file_name(self._topic, self._partition),
            topic=self._topic,
            partition=self._partition,
            messages=self.messages,
            first_offset=self._first,
            last_offset=self._last,
            min_ts=self._min_ts,
            max_ts=self._max_ts,
            bytes=self._length,
            sha256=self._digest.hexdigest(),
        )

    def close(self) -> None:
        with suppress(OSError):  # what a full disk did not take was said before
            self._stream.close()

    def _write_frame(self) -> None:
        if not self._lines:
            return
        frame = self._compressor.compress(b"".join(self._lines))
        self._stream.write(frame)
        self._digest.update(frame)
        self._length += len(frame)
        self._lines.clear()
        self._buffered = 0
