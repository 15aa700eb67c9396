"""Reading the kernel's small text files: whatever goes wrong is a missing figure, never an error."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 4_096
MAX_ENTRIES = 1_024


def text_of(path: Path) -> str:
    """The file's text without the line end; empty if it cannot be read (absent, or a driver that refuses just now)."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""


def number_of(path: Path) -> float | None:
    """The number that the file begins with (``16.0 GT/s PCIe`` → 16.0); ``None`` without one."""
    word = text_of(path).split(" ")[0]
    try:
        return float(word) if word else None
    except ValueError:
        return None


def entries_of(folder: Path) -> list[Path]:
    """What lies in *folder*, by name; empty if there is none."""
    try:
        return sorted(folder.iterdir())[:MAX_ENTRIES]
    except OSError:
        return []
