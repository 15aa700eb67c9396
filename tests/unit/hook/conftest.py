"""Lets the tests of this folder import their kit; a ring, and a folder for sockets."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eroica.producers.hook.ring import Ring

sys.path.insert(0, str(Path(__file__).parent))

from ring_kit import PID


@pytest.fixture
def folder() -> Iterator[Path]:
    # Short, for a Unix socket's path has about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="ring") as path:
        yield Path(path)


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring(PID)
    made.open()
    yield made
    made.close()
