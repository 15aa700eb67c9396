"""One line of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "hint", "bad"]
"""``hint``: works, or is not needed everywhere; ``bad``: something will not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor."""

    name: str
    level: Level
    found: str
    do: str = ""
