"""Workers whose summary cannot be held against the others': they count as missing, and the verdict says why."""

from __future__ import annotations

import numpy as np

from eroica.localizer.frame import Frame, Ints
from eroica.localizer.numbering import distinct
from eroica.schemas.ranks import format_ranks

MOST = 0.75
"""Steps that so many workers share are those of the profile; who has none of them is left out."""
DEAF = 0.25
"""Who tells of fewer collectives than this share of what its peers do has a trace without them: its waiting looks like work."""


def left_out(frame: Frame, collectives: Ints) -> dict[int, str]:
    """Rank → why it is left out.

    :param collectives: how many executions of collectives each worker tells of, shape (n,).
    """
    return _other_steps(frame) | _deaf(frame, collectives)


def _other_steps(frame: Frame) -> dict[int, str]:
    """Those that keep all the others from having a step in common."""
    if frame.size < 2 or frame.step_table()[0].size:
        return {}
    steps, number = distinct(frame.step)
    if steps.size == 0:
        return {}
    counts = np.bincount(number)
    shared = np.flatnonzero(counts == counts.max())
    have = np.bincount(frame.step_row[np.isin(number, shared)], minlength=frame.size)
    out = np.flatnonzero(have < shared.size)
    if out.size > (1 - MOST) * frame.size:
        return {}
    told = f"the others profiled {_steps(steps[shared])}"
    return {
        int(frame.ranks[row]): f"left out: it profiled {_steps(steps[np.unique(number[frame.step_row == row])])}, {told}"
        for row in out.tolist()
    }


def _steps(steps: Ints) -> str:
    if steps.size == 0:
        return "no steps"
    return f"step{'s' if steps.size > 1 else ''} {format_ranks(steps) if steps.min() >= 0 else steps.tolist()}"


def _deaf(frame: Frame, collectives: Ints) -> dict[int, str]:
    """Those that tell of far fewer collectives than their peers."""
    out: dict[int, str] = {}
    for role in frame.roles:
        rows = np.flatnonzero(frame.cls == role)
        usual = float(np.median(collectives[rows]))
        for row in rows[collectives[rows] < DEAF * usual].tolist():
            few = int(collectives[row])
            out[int(frame.ranks[row])] = (
                f"left out: its trace tells of {few or 'no'} collective{'' if few == 1 else 's'}, those of its peers of "
                f"{usual:.0f}; it may lack the device's events"
            )
    return out
