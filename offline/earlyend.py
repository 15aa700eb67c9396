"""Whether a recording came to its own end, or its recorder was killed or met a full disk."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import zstandard

from eroica.offline.recording import CHUNK_BYTES, DATA_FILE, MAX_FILES, Manifest, decompressed, open_file
from eroica.schemas.wording import say_count

MAX_CHUNKS = 1_024
"""What follows is counted as far as it unpacks to a gigabyte a file."""


@dataclass(frozen=True)
class EarlyEnd:
    """What is known of a recording that did not come to its own end."""

    messages: int
    """Written after the last checkpoint and still readable; they do not count."""
    bytes: int
    """After the last checkpoint, readable or not."""

    def __str__(self) -> str:
        what = "the recording did not come to its own end: its recorder was killed, met an error or a full disk, or still runs"
        if not self.bytes:
            return f"{what}; what it read after its last checkpoint is missing"
        left = say_count(self.messages, "message was", "messages were")
        return f"{what}; {left} written after its last checkpoint and left out"


def early_end(directory: Path, manifest: Manifest) -> EarlyEnd | None:
    """``None`` where the recording in *directory* came to its own end, as far as can be known."""
    confirmed = {entry.file: entry.bytes for entry in manifest.files}
    after = [_count_after(directory, name, confirmed.get(name, 0)) for name in _file_names(directory)]
    messages, length = sum(records for records, _ in after), sum(size for _, size in after)
    return EarlyEnd(messages, length) if length or manifest.closed is False else None


def _count_after(directory: Path, name: str, confirmed: int) -> tuple[int, int]:
    """Whole records, and bytes, of the file *name* that follow its first *confirmed* bytes.

    What cannot be read any more ends the count: a recorder that was killed leaves half a frame.
    """
    records = length = 0
    with suppress(OSError, zstandard.ZstdError), open_file(directory / name) as stream:
        length = max(0, os.fstat(stream.fileno()).st_size - confirmed)
        stream.seek(confirmed)
        plain = decompressed(stream, length)
        for piece in islice(iter(lambda: plain.read(CHUNK_BYTES), b""), MAX_CHUNKS):
            records += piece.count(b"\n")
    return records, length


def _file_names(directory: Path) -> list[str]:
    """Names in *directory* that data files have, at most as many as a recording may have."""
    with suppress(OSError), os.scandir(directory) as found:
        return sorted(islice((entry.name for entry in found if DATA_FILE.fullmatch(entry.name)), MAX_FILES))
    return []
