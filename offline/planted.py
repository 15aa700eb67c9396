"""What a simulation planted, against what a replay of it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eroica.consumers.text import one_line
from eroica.offline.labels import Label, simulated_label
from eroica.offline.score import score
from eroica.offline.simulated import LABELS
from eroica.schemas.ranks import say_ranks
from eroica.schemas.verdicts import Verdict

__all__ = ["Found", "Planted", "compare", "say_cause", "truth_beside"]

Found = Literal["right", "wrong", "not named"]
SHOWN = 100
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Planted:
    """The truth of a simulation, and how well a verdict has it."""

    planted: tuple[str, ...]
    """Each cause in words; empty for a healthy job."""
    found: Found
    """``right``: the first cause named has class and place of one that was planted, or nobody is named in a healthy job;
    ``wrong``: something else is named; ``not named``: nothing is."""
    count: int
    """Of the planted causes, how many are named."""

    def __str__(self) -> str:
        several = f", {self.count} of {len(self.planted)} named" if len(self.planted) > 1 else ""
        return f"planted: {' and '.join(self.planted) or NOTHING}; found: {self.found}{several}"


def truth_beside(directory: Path) -> Label | None:
    """What the simulator wrote beside the recording in *directory*; ``None`` for any other recording.

    :raises InvalidInput: the file is there and is not the simulator's.
    """
    path = directory / LABELS
    return simulated_label(path) if path.is_file() else None


def compare(verdicts: Sequence[Verdict], label: Label) -> Planted:
    """Hold the one of *verdicts* that answers the labelled request against *label*; without one nothing is named."""
    causes = label.truth["causes"]
    words = tuple(say_cause(cause) for cause in causes)
    verdict = next((one for one in verdicts if one.request.id == label.request), None)
    if verdict is None:
        return Planted(words, "not named", 0)
    worth = score(verdict, label.truth)
    if worth.right:
        found: Found = "right"
    else:
        found = "not named" if worth.said == verdict.status else "wrong"
    return Planted(words, found, worth.found)


def say_cause(cause: dict[str, Any]) -> str:
    """A planted cause in words: the fault, and its place.

    >>> say_cause({"fault": "slow_hbm", "class": "worker", "suspects": {"ranks": "3", "hosts": ["node-0"]}})
    'slow_hbm at rank 3, host node-0'
    """
    place = ", ".join(_place(kind, value) for kind, value in cause["suspects"].items() if value)
    return one_line(cause.get("fault") or cause["class"], SHOWN) + (f" at {place}" if place else "")


def _place(kind: str, value: str | list[Any]) -> str:
    """Suspects of one kind, as people read them."""
    if kind == "ranks":
        return one_line(say_ranks(str(value), SHOWN))
    return f"{kind if len(value) > 1 else kind[:-1]} {one_line(', '.join(map(str, value)), SHOWN)}"
