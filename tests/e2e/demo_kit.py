"""What the tests of the demo share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from waiting import until

EROICA = [sys.executable, "-m", "eroica.cli"]


def environment(tmp_path: Path) -> dict[str, str]:
    """Temporary files where this test can look after them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return {**os.environ, "TMPDIR": str(scratch)}


def left_behind(tmp_path: Path, pid: int) -> list[str]:
    """Files of the demo with process id *pid* that are still there."""
    shared = [str(path) for path in Path("/dev/shm").glob(f"eroica-demo-{pid}-*")]
    return [str(path) for path in (tmp_path / "scratch").iterdir()] + shared


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float = 120.0, pause_s: float = 0.1
) -> None:
    def happened() -> bool:
        if condition():
            return True
        assert process.poll() is None, "the demo ended"
        return False

    until(happened, timeout_s=timeout_s, pause_s=pause_s)
