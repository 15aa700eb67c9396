"""What a rule set says of a frame, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from eroica.localizer.frame import Frame, Ints
from eroica.schemas.ranks import format_ranks, say_ranks
from eroica.schemas.verdicts import CauseClass, Evidence

MIN_COVERAGE = 0.5
"""With fewer of the expected workers nothing is concluded."""


@dataclass(frozen=True)
class Finding:
    """One cause."""

    cls: CauseClass
    ranks: Ints
    """Suspected workers; empty if no single place is at fault."""
    explains: float
    confidence: float
    functions: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    fault: str | None = None
    links: list[str] = field(default_factory=list)
    """``host a|host b`` or ``rank 3``."""
    stages: list[int] = field(default_factory=list)
    gain_us: float = 0.0
    """Time of a step that mending it would give back, µs."""
    doubt: float = 0.0
    """What is taken off the confidence for another explanation that was not seen, 0..1."""
    seen: float = 0.0
    """How plainly a rule sees a worker that is not out by own time, 0..1; 0: own times say."""
    instead: str = ""
    """That explanation in words, where it may well be the true one."""


@dataclass(frozen=True)
class Judgement:
    """All that a rule set found."""

    findings: list[Finding] = field(default_factory=list)
    """Causes by share explained, those below the limit for an accusation included."""
    waiters: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that are slow only because they wait."""
    wait_share: float = 0.0
    """Mean share of the step that the waiters wait, 0..1."""
    step_us: float | None = None
    ideal_step_us: float | None = None
    recovered_by_slowest: float | None = None
    """Share of what an ideal step would give back that mending the slowest 3 % of the workers gives (M_W); ``None``: no model."""
    recovered_by_last_stage: float | None = None
    """The same of the last pipeline stage (M_S)."""
    comparable: bool = True
    """Whether there was anything to compare with."""
    why: str = ""
    """Why there was not; by default the first note tells."""
    notes: list[str] = field(default_factory=list)


def name_rows(frame: Frame, rows: Ints) -> str:
    """Rows as people read them: ``rank 3``, ``ranks 0-2,5``."""
    return say_ranks(format_ranks(frame.ranks[rows]))
