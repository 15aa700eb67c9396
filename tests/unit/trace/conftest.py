"""Traces made by hand, and the real ones."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

REAL_TRACES = Path(__file__).resolve().parents[3] / "../shared/data/traces"

MakeTrace = Callable[..., Path]


@pytest.fixture
def make_trace(tmp_path: Path) -> MakeTrace:
    """Write events (and top-level keys) as a trace; returns its path."""

    def write(events: list[dict[str, Any]], name: str = "trace.json", **meta: Any) -> Path:
        path = tmp_path / name
        raw = json.dumps({**meta, "traceEvents": events, "traceName": name}).encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return write


@pytest.fixture
def real_trace() -> Callable[[str], Path]:
    """Path of a real trace by its place under the data folder; skips where the data is not."""

    def find(place: str) -> Path:
        path = REAL_TRACES / place
        if not path.exists():
            pytest.skip(f"the real trace {place} is not on this machine")
        return path

    return find
