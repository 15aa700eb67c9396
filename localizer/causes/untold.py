"""Whether workers may hold different stages of a pipeline that nothing tells of: a heavy stage then looks like a slow machine."""

from __future__ import annotations

import numpy as np

from eroica.localizer.frame import Frame, Ints
from eroica.schemas.ranks import parse_ranks
from eroica.topology.pipelines import pipelines

DOUBT = 0.6
"""Taken off the confidence in a worker: heavy stages are far more frequent than slow machines ([OSDI '25]: 39 % of the jobs that
straggle against 1.7 %)."""
WHY = "it may be a heavy stage of a pipeline, since no layout is told (eroica diagnose --topology)"
_OPEN = frozenset({"send_recv", "coalesced", "unknown"})
"""Operations that may be transfers between two ranks, and may be all-to-all."""
UNEQUAL = 0.75
"""All members of a collective tell of as many; of transfers the ends of a pipeline have fewer than those between."""


def untold_stages(frame: Frame) -> bool:
    """Whether workers that are compared with each other hand work along as stages do, and no layout says what they are."""
    if frame.collectives.size == 0 or _told(frame):
        return False
    slots = frame.collectives.slots
    directed, open_ = _counts(frame, [_kind_of(op) for op in slots.ops])
    if 2 * np.count_nonzero(directed) >= frame.size:
        sends = _sends(frame)
        return not sends or bool(pipelines(sends))
    return bool(open_.max() > 0 and open_.min() < UNEQUAL * open_.max())


def _told(frame: Frame) -> bool:
    """Whether coordinates tell the stage, or give every worker a place of its own by more than its number."""
    axes = {axis for known in frame.coords.axes for axis in known}
    if "pp" in axes or len(frame.roles) > 1:
        return True
    places = np.unique(np.column_stack((frame.coords.code, frame.coords.values)), axis=0)
    return bool(axes - {"dp"}) and places.shape[0] == frame.size


def _kind_of(op: str) -> int:
    """0 for a transfer, 1 for what may be one, 2 for others."""
    return 0 if op in ("send", "recv", "send up", "send down") else 1 if op in _OPEN else 2


def _counts(frame: Frame, kinds: list[int]) -> tuple[Ints, Ints]:
    """Transfers of each worker, and executions that may be some."""
    of_op = np.array(kinds, dtype=np.int64)
    all_ = frame.collectives
    found = np.zeros((3, frame.size), dtype=np.int64)
    for block in all_.blocks():
        kind = of_op[all_.slots.op[all_.slot(block)]]
        for one in (0, 1):
            found[one] += np.bincount(block.row[kind == one], minlength=frame.size)
    return found[0], found[1]


def _sends(frame: Frame) -> list[tuple[int, int]]:
    """Sender and receiver of the transfers whose two ends are told."""
    slots, communicators = frame.collectives.slots, frame.communicators
    sends = []
    for way in ("send up", "send down"):
        if way not in slots.ops:
            continue
        for number in np.unique(slots.communicator[slots.op == slots.ops.index(way)]).tolist():
            low, high = sorted(parse_ranks(communicators[number].ranks).tolist())
            sends.append((low, high) if way == "send up" else (high, low))
    return sends
