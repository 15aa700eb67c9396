"""Which function makes the table of which evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np

from eroica.localizer.causes.measures import Measures
from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.judged import Judged
from eroica.localizer.verdict import whole_verdict
from eroica.schemas.errors import InvalidInput
from eroica.schemas.ranks import parse_ranks
from eroica.schemas.verdicts import Cause, Evidence

MAX_PEERS = 12
"""Rows of peers in a table; the rest are counted."""
TOLERANCE = 2e-3
"""Relative difference at which a figure that was made again still agrees: figures are printed with three decimals."""
_RANKS = re.compile(r"ranks? (\d[\d,-]*)")


class Unexplained(InvalidInput):
    """There is no table for this evidence, or the recording lacks what it was made from."""


@dataclass(frozen=True)
class Explanation:
    """A table, and the figures of the evidence made again from it."""

    how: str
    """How value, expected and score follow from the table."""
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    value: float
    expected: float
    score: float

    def agrees(self, evidence: Evidence) -> bool:
        """Whether the figures are those of *evidence*."""
        pairs = ((self.value, evidence.value), (self.expected, evidence.expected), (self.score, evidence.score))
        return all(math.isclose(again, printed, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for again, printed in pairs)


@dataclass(frozen=True)
class Item:
    """One item of evidence, the cause that it is of, and what it was made from."""

    evidence: Evidence
    cause: Cause
    judged: Judged
    measures: Measures

    @property
    def frame(self) -> Frame:
        """The frame."""
        return self.judged.frame

    @cached_property
    def subject(self) -> Ints:
        """Rows of the ranks that the subject names."""
        return self.rows_in(self.evidence.subject)

    @cached_property
    def peers(self) -> Ints:
        """Rows of the ranks that it was compared with."""
        return self.rows_in(self.evidence.compared_with)

    @property
    def label(self) -> str:
        """What follows the rank in the subject: a function."""
        return self.evidence.subject.partition(": ")[2]

    def rows_in(self, text: str) -> Ints:
        """Rows of the first set of ranks in *text*."""
        match = _RANKS.search(text)
        if match is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(np.isin(self.frame.ranks, parse_ranks(match.group(1).rstrip(",-"))))

    def one(self) -> int:
        """The row of the one rank that the subject names.

        :raises Unexplained: there is none.
        """
        if self.subject.size == 0:
            raise Unexplained("the recording holds no summary of it", where=self.evidence.subject[:100])
        return int(self.subject[0])

    def by_rank(
        self, columns: Mapping[str, Floats], peers: Ints | None = None, subject: Ints | None = None
    ) -> list[tuple[str, ...]]:
        """A row for each suspect, those peers that come closest by the first column, and the median of all peers.

        :param columns: heading → a value of each worker of the frame.
        """
        mine = self.subject if subject is None else subject
        others = np.setdiff1d(self.peers if peers is None else peers, mine)
        first = next(iter(columns.values()))
        shown = others[np.lexsort((others, -np.nan_to_num(first[others])))][:MAX_PEERS]
        names = [*(f"→ rank {r}" for r in self.frame.ranks[mine[:MAX_PEERS]].tolist())]
        names += [f"rank {r}" for r in self.frame.ranks[shown].tolist()]
        rows = np.concatenate((mine[:MAX_PEERS], shown))
        table = [(name, *(number(c[row]) for c in columns.values())) for name, row in zip(names, rows.tolist(), strict=True)]
        for what, left in (("suspects", mine.size - MAX_PEERS), ("peers", others.size - shown.size)):
            if left > 0:
                table.append((f"and {left} more {what}", *("" for _ in columns)))
        if others.size:
            table.append(("median of the peers", *(number(float(np.nanmedian(c[others]))) for c in columns.values())))
        return table


Table = Callable[[Item], Explanation]
_TABLES: dict[tuple[str, str], Table] = {}


def register(rule: str, metric: str) -> Callable[[Table], Table]:
    """Make a function the explanation of *metric* of *rule*; both may hold the wildcards of a shell."""

    def add(table: Table) -> Table:
        if (rule, metric) in _TABLES:
            raise ValueError(f"{metric!r} of {rule!r} is explained twice")
        _TABLES[rule, metric] = table
        return table

    return add


def registered(evidence: Evidence) -> Table | None:
    """The function that explains *evidence*: of several that fit the one with the longest names."""
    fitting = [key for key in _TABLES if fnmatchcase(evidence.rule, key[0]) and fnmatchcase(evidence.metric, key[1])]
    return _TABLES[max(fitting, key=lambda key: (len(key[0]) + len(key[1]), key))] if fitting else None


@dataclass(frozen=True)
class Explained:
    """An item of evidence with its explanation, or why there is none."""

    cause: int
    evidence: Evidence
    explanation: Explanation | None
    why_not: str = ""


def explain(evidence: Evidence, cause: Cause, judged: Judged, measures: Measures | None = None) -> Explanation:
    """Make *evidence* again.

    :raises Unexplained: nobody registered its metric, or what it was made from is not there.
    """
    table = registered(evidence)
    if table is None:
        raise Unexplained(f"nobody registered a table for {evidence.metric!r} of {evidence.rule!r}")
    return table(Item(evidence, cause, judged, measures or Measures(judged.frame, judged.settings, judged.past)))


def explain_verdict(judged: Judged) -> Iterator[Explained]:
    """All evidence of a verdict, in its order, also what was cut to keep the verdict small."""
    measures = Measures(judged.frame, judged.settings, judged.past)
    whole = whole_verdict(judged.frame, judged.judgement, judged.settings, judged.advice)
    for number_, cause in enumerate(whole.causes, 1):
        for evidence in cause.evidence:
            try:
                yield Explained(number_, evidence, explain(evidence, cause, judged, measures))
            except Unexplained as error:
                yield Explained(number_, evidence, None, str(error))


def number(value: float) -> str:
    """A figure in a table, four significant digits and the whole of large ones; a dash for what is unknown.

    >>> number(1234.567), number(0.0123456), number(float("nan")), number(3.0)
    ('1235', '0.01235', '–', '3')
    """
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 1e9 or 0 < abs(value) < 1e-6:
        return f"{value:.3e}"
    places = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
