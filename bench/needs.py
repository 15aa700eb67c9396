"""What a benchmark needs that a machine may lack: it then says so in one sentence and is left out of ``make bench``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

SKIPPED = 77
"""Exit code of a benchmark that was left out; ``make bench`` goes on with the next."""
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Real traces and timelines, beside the checkout: ``../shared/data``."""


def leave_out(why: object) -> NoReturn:
    """End with the sentence *why*."""
    print(f"left out: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


def existing(path: Path) -> Path:
    """*path*; where it is not there the benchmark is left out."""
    if not path.exists():
        leave_out(f"{path} is not there: this benchmark needs the real data beside the checkout (../shared/data)")
    return path
