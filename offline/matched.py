"""Steps that numbers and clocks do not tell apart: matched by the collectives that ranks took part in together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from eroica.offline.align import renumbered
from eroica.producers.trace.pulse import Pulse
from eroica.producers.trace.samesteps import apart, shift_to
from eroica.schemas.ranks import format_ranks, say_ranks
from eroica.schemas.summaries import Summary

__all__ = ["match_steps"]

MAX_LENDERS = 16
"""Ranks whose steps are known that one is held against, the nearest first."""


def match_steps(summaries: Sequence[Summary], pulses: Sequence[Pulse]) -> tuple[list[Summary], list[str]]:
    """Number the steps alike where clocks differ by more than half a step, so that they do not tell which are the same.

    The numbering of most ranks counts. Who shares collectives with a rank whose steps are known has its steps told by them, and
    tells those of others in turn; whom nobody tells stays as it is.

    :param pulses: of each of *summaries*, with the trace's own numbers.
    :returns: the summaries, and what was renumbered.
    """
    out = list(summaries)
    moved = [_moved(s, p) for s, p in zip(summaries, pulses, strict=True)]
    known = _known(summaries, pulses, moved)
    left = [i for i, by in enumerate(moved) if by is not None and i not in known]
    shifted: dict[int, list[int]] = {}
    told = True
    while left and told:
        told = False
        for i in list(left):
            lenders = sorted(known, key=lambda k: abs(summaries[k].who.rank - summaries[i].who.rank))[:MAX_LENDERS]
            for k in lenders:
                by = shift_to(pulses[i], pulses[k])
                mine, theirs = moved[i], moved[k]
                if by is None or mine is None or theirs is None:
                    continue
                if (by := by + theirs - mine) != 0:
                    out[i], moved[i] = renumbered(out[i], by), mine + by
                    shifted.setdefault(by, []).append(summaries[i].who.rank)
                known.add(i)
                left.remove(i)
                told = True
                break
    return out, [_said(by, ranks) for by, ranks in sorted(shifted.items())]


def _known(summaries: Sequence[Summary], pulses: Sequence[Pulse], moved: Sequence[int | None]) -> set[int]:
    """The first rank that numbers its steps as most do, and all whose clocks agree with it on which steps are the same."""
    numbers = [tuple(step.step for step in s.steps) for s in summaries]
    usual = Counter(n for n, by in zip(numbers, moved, strict=True) if by is not None).most_common(1)
    if not usual:
        return set()
    first = next(i for i, n in enumerate(numbers) if n == usual[0][0] and moved[i] is not None)
    base = moved[first] or 0
    near = {i for i, by in enumerate(moved) if by is not None and not apart(pulses[i], pulses[first], by - base)}
    return {first, *near}


def _moved(summary: Summary, pulse: Pulse) -> int | None:
    """What was added to the trace's own numbers already; ``None`` if they are not those of *pulse*."""
    told, own = [step.step for step in summary.steps], pulse.steps.number.tolist()
    if not told or not own:
        return None
    by = told[0] - int(own[0])
    return by if set(told) <= {n + by for n in own} else None


def _said(by: int, ranks: list[int]) -> str:
    number, clock = ("numbers", "its clock does") if len(ranks) == 1 else ("number", "their clocks do")
    who, way = say_ranks(format_ranks(sorted(ranks)), 120), "lower" if by > 0 else "higher"
    told = "told by the collectives that they share"
    return f"{who} {number} the steps {abs(by)} {way} than others do, and {clock} not fit: {told}"
