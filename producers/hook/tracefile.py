"""The files of a profile: whole, or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def check_complete(path: Path) -> None:
    """Kineto says nothing when the disk is full, but then the closing brace is missing.

    :raises OSError: if the file is cut off.
    """
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 16))
        if not stream.read().rstrip().endswith(b"}"):
            raise OSError(f"{path} is cut off; is the file system full?")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write under another name first, so that a reader never sees half a file."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)
