"""A worker's functions against those of its peers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.judgement import name_rows
from eroica.localizer.robust import median
from eroica.schemas.groups import FunctionName
from eroica.schemas.verdicts import Evidence

WAITING_CATEGORY = "collective"
LABEL_FRAMES = 3
"""Innermost frames that name a function to a person."""
OWN_FRAMES = "producers/hook/"
"""Frames of the hook itself, which stands between the loop and its loader: no news to anybody."""
_BUILT_IN = re.compile(r"^<built-in (?:function|method) ([^>]*)>$")
_WAITS = re.compile(r"^(?:cuda|hip|cu[A-Z]|#)|[Ww]ait|[Ss]ynchroni[sz]e|acquire|\bpoll\b|_local_scalar_dense|\bitem\b")
"""Host functions that take long because something else does, and annotations around others."""
SPECIFIC = {"python": 0, "compute": 1, "memory": 1, "collective": 2}
"""Whose name helps an engineer most: the user's own code first."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A function that takes longer on a worker than on its peers. Times in µs per step, on the critical path."""

    label: str
    category: str
    value_us: float
    usual_us: float
    hidden: bool = False
    """Self time, most of it at moments at which the device works."""

    @property
    def excess_us(self) -> float:
        """How much longer."""
        return self.value_us - self.usual_us


def exclusive_table(frame: Frame, rows: Ints, of: str = "exclusive_us") -> Floats:
    """Time on the critical path per step, or another of the patterns' times, shape (len(rows), functions), µs."""
    place = np.full(frame.size, -1, np.int64)
    place[rows] = np.arange(rows.size)
    table = frame.patterns.table(of, place, rows.size, len(frame.functions))
    table /= frame.steps_of[rows][:, None]
    return table


class _Usual:
    """Medians of functions over peers; their table is made when the first is asked for."""

    def __init__(self, frame: Frame, peers: Ints, of: str) -> None:
        self._frame, self._peers, self._of = frame, peers, of

    @cached_property
    def _table(self) -> Floats:
        return exclusive_table(self._frame, self._peers, self._of)

    def of(self, functions: list[int]) -> float:
        """What *functions* together take on the median peer, µs per step."""
        each = self._table[:, functions[0]] if len(functions) == 1 else self._table[:, functions].sum(axis=1)
        return median(each)


def grown_functions(frame: Frame, row: int, peers: Ints, least_us: float, most: int = 5) -> list[Grown]:
    """What *row* spends at least *least_us* µs a step more on than the median of *peers*, most excess first.

    Collectives are left out, since their time is waiting; among equals the user's own code comes first. Host functions that the
    device's work hides count by their self time: the host may launch the next collective late all the same.
    """
    if not frame.functions or peers.size == 0:
        return []
    own, spent = (exclusive_table(frame, np.array([row]), of)[0] for of in ("exclusive_us", "total_us"))
    others = _Usual(frame, peers, "exclusive_us")
    # Calls from several places that end in the same frames are one thing to a person.
    columns: dict[tuple[str, str], list[int]] = {}
    for i, function in enumerate(frame.functions):
        if function.category != WAITING_CATEGORY:
            columns.setdefault((function_label(function), function.category), []).append(i)
    # What takes less in all cannot have grown by so much: most functions need no look at the peers.
    found = [
        Grown(label, category, float(own[which].sum()), others.of(which))
        for (label, category), which in columns.items()
        if float(own[which].sum()) >= least_us
    ]
    found = [g for g in found if g.excess_us >= least_us]
    others = _Usual(frame, peers, "total_us")
    for (label, category), which in columns.items():
        on_path, whole = float(own[which].sum()), float(spent[which].sum())
        if category != "python" or whole < least_us or on_path >= whole / 2 or _WAITS.search(label):
            continue
        hidden = Grown(label, category, whole, others.of(which), True)
        if hidden.excess_us >= least_us:
            found = [g for g in found if (g.label, g.category) != (label, category)] + [hidden]
    found.sort(key=lambda g: (-round(g.excess_us, 3), SPECIFIC.get(g.category, 3), g.label))
    return found[:most]


def function_label(function: FunctionName) -> str:
    """Its name, and the innermost frames of its stack where it has one: ``sleep < job.py(66): read_sample < …``."""
    frames = [frame for frame in function.stack.split(";") if frame and OWN_FRAMES not in frame]
    name = _BUILT_IN.sub(r"\1", function.name)
    if frames and frames[-1] != function.name:
        frames.append(name)
    return " < ".join(reversed(frames[-LABEL_FRAMES:])) if frames else name


def function_evidence(frame: Frame, row: int, peers: Ints, grown: list[Grown], rule: str) -> list[Evidence]:
    """Each grown function as a comparison that a person can redo."""
    return [
        Evidence(
            kind="function",
            metric="self time per step, hidden by the device's work" if g.hidden else "exclusive time per step",
            subject=f"rank {int(frame.ranks[row])}: {g.label}",
            value=round(g.value_us / 1e3, 3),
            unit="ms",
            expected=round(g.usual_us / 1e3, 3),
            score=round(g.value_us / g.usual_us, 3) if g.usual_us > 0 else round(g.value_us / 1e3, 3),
            score_kind="ratio" if g.usual_us > 0 else "value",
            rule=rule,
            compared_with=name_rows(frame, peers),
        )
        for g in grown
    ]
