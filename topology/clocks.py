"""Clocks of a recorded timeline: operations that end together in truth show which worker's clock is off, and by how much.

A send ends with its receive, and a collective ends for all its members at once. So the difference of their recorded ends is
that of their clocks. Where a transfer is kept in a buffer a send ends early, in both directions alike: the mean of both
cancels it, as NTP does with the two ways of a packet (RFC 5905, §8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from eroica.schemas.wording import say_share
from eroica.topology.stepgraph import FloatArray, StepGraph
from eroica.topology.timeline import POINT_TO_POINT, SYNCHRONISED, Meeting

__all__ = ["Aligned", "align_clocks"]

OFF_SHARE = 0.01
"""Share of the step from which a clock that is off changes what is found."""
OFF_S = (5e-4, 5e-3)
"""That limit is no less and no more than this: clocks of a published timeline agree to 3 ms."""
MENDED = 0.5
"""Share of what ends apart that may be left in a step for its clocks to be taken as off: else it was something else."""
APART_SHARE = 0.1
"""Share of the meetings that may end apart for the clocks to be trusted."""
MAX_NAMED = 5
ENDS_TOGETHER = frozenset({*POINT_TO_POINT, *SYNCHRONISED, "embedding-grads-all-reduce"})
"""Kinds whose members end at one moment. Clipping is several operations in one row and does not."""


@dataclass(frozen=True)
class Aligned:
    """Starts on one clock, and what was found of the clocks."""

    start_s: FloatArray
    """Shape (ops, lanes, steps)."""
    contradict: bool
    """Whether operations that end together still end apart: transfers and waits are then uncertain."""
    notes: tuple[str, ...] = ()


def align_clocks(graph: StepGraph, meetings: Sequence[Meeting], start: FloatArray, duration: FloatArray) -> Aligned:
    """Take off what each worker's clock is ahead of most others', step by step, where that is enough to matter.

    :param start: shape (ops, lanes, steps), in seconds; returned as it is where the clocks agree.
    :param duration: of the same shape.
    """
    met = [m for m in meetings if len(m.members) > 1 or (m.across and graph.lanes > 1)]
    sure = [m for m in met if _kinds(graph, m) <= ENDS_TOGETHER]
    if not met:
        return Aligned(start, False)
    end = start + duration
    limit = float(np.clip(OFF_SHARE * np.median(end.max(axis=(0, 1)) - start.min(axis=(0, 1))), *OFF_S))
    ahead = _ahead(graph, sure or met, end)
    off = np.abs(ahead) > limit
    notes = []
    shift = np.where(off, ahead, 0.0)
    before, after = (sum(_spread(m, e).mean(axis=0) for m in sure or met) for e in (end, end - shift[graph.stage]))
    off &= np.asarray(after) <= MENDED * np.asarray(before)
    if off.any():
        start = start - np.where(off, ahead, 0.0)[graph.stage]
        start = start - start.min(axis=(0, 1))
        end = start + duration
        notes.append(f"clocks are off: {_say_off(ahead, off)}; taken off, since what workers do together ends at one moment")
    apart = np.array([_spread(m, end) for m in sure]).reshape(-1)
    share = float((apart > limit).mean()) if apart.size else 0.0
    if share >= APART_SHARE:
        far = float(np.quantile(apart, 0.95))
        notes.append(
            f"the times contradict each other: {say_share(share)} of the operations that end together end apart, "
            f"by up to {_say_s(far)}: transfers, waits and what they cost are uncertain"
        )
    return Aligned(start, share >= APART_SHARE, tuple(notes))


def _kinds(graph: StepGraph, meeting: Meeting) -> set[str]:
    return {graph.kinds[graph.kind[i]] for i in meeting.members}


def _spread(meeting: Meeting, end: FloatArray) -> FloatArray:
    """By how much the members of each occurrence end apart, seconds; shape (lanes, steps), equal over lanes where all meet."""
    mine = end[list(meeting.members)]
    axes = (0, 1) if meeting.across else (0,)
    out = mine.max(axis=axes, keepdims=True) - mine.min(axis=axes, keepdims=True)
    return np.broadcast_to(out[0], mine.shape[1:])


def _ahead(graph: StepGraph, meetings: Sequence[Meeting], end: FloatArray) -> FloatArray:
    """By how much each clock is ahead of most others, shape (stages, lanes, steps)."""
    stages, (lanes, steps) = int(graph.stage.max()) + 1, end.shape[1:]
    pairs = _between_stages(graph, meetings, end)
    ahead = np.zeros((stages, lanes, steps))
    part = np.full(stages, -1, dtype=np.int64)
    for root in range(stages):
        waiting = [root] if part[root] < 0 else []
        part[waiting] = root
        while waiting:
            here = waiting.pop(0)
            for (a, b), by in pairs.items():
                if here in (a, b) and part[other := a + b - here] < 0:
                    part[other] = root
                    ahead[other] = ahead[here] + (by if other == b else -by)
                    waiting.append(other)
    for root in np.unique(part).tolist():
        mine = part == root
        ahead[mine] += _between_lanes([m for m in meetings if m.across and mine[graph.stage[m.members[0]]]], graph, ahead, end)
        workers = ahead[mine].reshape(-1, steps)
        usual = (workers.shape[0] - 1) // 2
        ahead[mine] -= np.partition(workers, usual, axis=0)[usual]
    return ahead


def _between_stages(graph: StepGraph, meetings: Sequence[Meeting], end: FloatArray) -> dict[tuple[int, int], FloatArray]:
    """How much later the second stage's clock shows the same moment than the first's, shape (lanes, steps) a pair.

    From transfers, the mean of both directions; from collectives only where a pair has no transfers.
    """
    found: dict[tuple[int, int], dict[str, list[FloatArray]]] = {}
    for meeting in meetings:
        members = sorted(meeting.members, key=lambda i: int(graph.stage[i]))
        for one, two in pairwise(members):
            pair = int(graph.stage[one]), int(graph.stage[two])
            if pair[0] == pair[1]:
                continue
            kind = graph.kinds[graph.kind[one]]
            way = f"{kind.split('-')[0]} {kind.endswith('send')}" if kind in POINT_TO_POINT else ""
            found.setdefault(pair, {}).setdefault(way, []).append(end[two] - end[one])
    out = {}
    for pair, ways in found.items():
        told = [np.median(np.stack(v), axis=0) for way, v in ways.items() if way or len(ways) == 1]
        out[pair] = np.mean(np.stack(told), axis=0)
    return out


def _between_lanes(meetings: Sequence[Meeting], graph: StepGraph, ahead: FloatArray, end: FloatArray) -> npt.NDArray[np.float64]:
    """How much later each lane's clock shows the same moment than the first lane's, shape (lanes, steps)."""
    told = [end[i] - ahead[graph.stage[i]] for m in meetings for i in m.members]
    if not told:
        return np.zeros(end.shape[1:])
    ends = np.stack(told)
    return np.asarray(np.median(ends - ends[:, :1], axis=0))


def _say_off(ahead: FloatArray, off: npt.NDArray[np.bool_]) -> str:
    """Whose clock is off by how much: whole replicas and stages by their name, the usual amount over the steps."""
    stages, lanes, steps = ahead.shape
    said, told = [], np.zeros((stages, lanes), dtype=bool)
    mine = np.where(off, ahead, 0.0)
    by = np.array([[np.median(mine[s, d][off[s, d]]) if off[s, d].any() else 0.0 for d in range(lanes)] for s in range(stages)])
    often = off.sum(axis=2)

    def say(who: str, amount: float, times: int) -> None:
        some = "" if times == steps else f" in {times} of {steps} steps"
        said.append(f"{who} {_say_s(abs(amount))} {'ahead' if amount > 0 else 'behind'}{some}")

    def alike(values: FloatArray) -> bool:
        return bool((values != 0).all() and np.ptp(values) <= max(2 * OFF_S[1], 0.05 * np.abs(values).max()))

    for d in range(lanes):
        if stages > 1 and alike(by[:, d]):
            say(f"dp {d}", float(np.median(by[:, d])), int(often[:, d].max()))
            told[:, d] = True
    for s in range(stages):
        if lanes > 1 and alike(by[s]) and not told[s].any():
            say(f"stage {s}", float(np.median(by[s])), int(often[s].max()))
            told[s] = True
    for s, d in np.argwhere((by != 0) & ~told).tolist():
        say(f"(dp {d}, stage {s})", float(by[s, d]), int(often[s, d]))
    return ", ".join(said[:MAX_NAMED]) + (f" and {len(said) - MAX_NAMED} more" if len(said) > MAX_NAMED else "")


def _say_s(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds:.2f} s"
