"""The file beside a trace: what only the training process itself can see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIDE_SUFFIX = ".side.json"
MAX_SIDE_BYTES = 2**20


def read_side(trace_path: str | Path) -> tuple[bool, Any]:
    """Whether there is such a file, and what it holds; ``None`` if it is unreadable.

    The file is ``rank0.side.json`` or ``rank0.json.side.json`` beside ``rank0.json``.
    """
    places = (Path(trace_path).with_suffix(SIDE_SUFFIX), Path(f"{trace_path}{SIDE_SUFFIX}"))
    side = next((p for p in places if p.is_file()), None)
    if side is None:
        return False, None
    import json  # nothing else here needs it, and few traces have such a file

    try:
        with side.open("rb") as file:
            raw = file.read(MAX_SIDE_BYTES + 1)
        return True, json.loads(raw) if len(raw) <= MAX_SIDE_BYTES else None
    except (OSError, ValueError, RecursionError):
        return True, None
