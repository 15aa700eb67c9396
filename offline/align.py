"""Steps that ranks number differently, and what a folder lacks: what is said of it, and what is mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone

import msgspec
import numpy as np
import numpy.typing as npt

from eroica.schemas.ranks import format_ranks, say_ranks
from eroica.schemas.summaries import Communicator, Slot, Summary

EPOCH_US = 10**15
"""Times below it (2001) are no time of day."""
LAST_US = 2**53
"""Nor are those above it (2255)."""
MAX_NOTES = 5

Match = Callable[[Sequence[Summary]], tuple[list[Summary], list[str]]]
Floats = npt.NDArray[np.float64]


def align_steps(summaries: Sequence[Summary], match: Match | None = None) -> tuple[list[Summary], list[str]]:
    """Number the steps alike where ranks count them from different starts; say what was done, and what cannot be compared.

    The numbering of most ranks counts. Another rank's is shifted only if it has as many steps, and either the clocks say that
    its steps were the others' under the shift and not without, or there are no usable clocks and not one number is shared.
    Ranks that really profiled other steps are left as they are.

    :param match: renumbers what clocks do not tell, and says what it did.
    """
    numbers = [tuple(step.step for step in s.steps) for s in summaries]
    out, notes = list(summaries), list[str]()
    if len(set(numbers)) > 1:
        out, notes = _by_clocks(summaries, numbers)
    if match is not None:
        out, said = match(out)
        notes += _short(said)
    return out, notes + _unequal(out)


def _by_clocks(summaries: Sequence[Summary], numbers: list[tuple[int, ...]]) -> tuple[list[Summary], list[str]]:
    usual = max(Counter(numbers).items(), key=lambda item: (item[1], -numbers.index(item[0])))[0]
    reference = next(s for s, n in zip(summaries, numbers, strict=True) if n == usual)
    out, shifted = list[Summary](), dict[tuple[str, str], list[int]]()
    for summary, own in zip(summaries, numbers, strict=True):
        by = _shift(reference, summary) if own != usual else 0
        if by:
            shifted.setdefault((_span(own), _span(usual)), []).append(summary.who.rank)
        out.append(renumbered(summary, by) if by else summary)
    notes = [
        f"{_ranks(ranks)} number{'s' if len(ranks) == 1 else ''} the steps {own} that others number {their}: taken as the same"
        for (own, their), ranks in shifted.items()
    ]
    return out, _short(notes)


def _unequal(summaries: Sequence[Summary]) -> list[str]:
    by_span: dict[tuple[int, ...], list[int]] = {}
    for s in summaries:
        by_span.setdefault(tuple(step.step for step in s.steps), []).append(s.who.rank)
    if len(by_span) <= 1:
        return []
    shared = set.intersection(*(set(span) for span in by_span))
    told = "; ".join(f"{_ranks(ranks)} {_span(span)}" for span, ranks in list(by_span.items())[:MAX_NOTES])
    more = f"; and {len(by_span) - MAX_NOTES} other sets" if len(by_span) > MAX_NOTES else ""
    common = f"all share {_span(tuple(sorted(shared)))}" if shared else "no step is shared by all"
    return [f"not every rank holds the same steps ({told}{more}): {common}"]


def _shift(reference: Summary, summary: Summary) -> int:
    """What to add to the numbers of *summary*; 0 to leave them."""
    if len(reference.steps) != len(summary.steps) or not summary.steps:
        return 0
    offsets = {a.step - b.step for a, b in zip(reference.steps, summary.steps, strict=True)}
    if len(offsets) != 1:
        return 0
    by = offsets.pop()
    if min(reference.ended_at_us, summary.ended_at_us) < EPOCH_US:
        shared = {s.step for s in reference.steps} & {s.step for s in summary.steps}
        return 0 if shared else by
    theirs, ours = _starts(reference), _starts(summary)
    length = float(np.median([s.duration_us for s in reference.steps]))
    as_told = _apart(reference, summary, theirs, ours)
    moved = float(np.median(np.abs(theirs - ours)))
    return by if moved < length / 2 and not as_told < length / 2 else 0


def _apart(reference: Summary, summary: Summary, theirs: Floats, ours: Floats) -> float:
    """Median distance of the steps with one number, µs; infinite without one."""
    place = {s.step: i for i, s in enumerate(reference.steps)}
    pairs = [(place[s.step], i) for i, s in enumerate(summary.steps) if s.step in place]
    return float(np.median([abs(theirs[a] - ours[b]) for a, b in pairs])) if pairs else float("inf")


def _starts(summary: Summary) -> Floats:
    """Start of each step on the clock, µs since the epoch."""
    begun = summary.ended_at_us - summary.window_us
    return np.array([begun + step.start_us for step in summary.steps])


def renumbered(summary: Summary, by: int) -> Summary:
    """*summary* with *by* added to the numbers of its steps."""

    def slot(one: Slot) -> Slot:
        return msgspec.structs.replace(one, step=[n + by for n in one.step])

    def group(one: Communicator) -> Communicator:
        return msgspec.structs.replace(one, slots=[slot(s) for s in one.slots])

    return msgspec.structs.replace(
        summary,
        first_step=summary.first_step + by,
        last_step=summary.last_step + by,
        steps=[msgspec.structs.replace(s, step=s.step + by) for s in summary.steps],
        communicators=[group(c) for c in summary.communicators],
    )


def when(time_us: float) -> str:
    """A time of day as a verdict tells it, RFC 3339, UTC; empty if the files count from a start of their own."""
    if not EPOCH_US <= time_us < LAST_US:
        return ""
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=round(time_us))).isoformat(timespec="milliseconds")


def missing_note(ranks: Sequence[int], world: int) -> list[str]:
    """Who was not there."""
    there = set(ranks)
    absent = [rank for rank in range(world) if rank not in there]
    if not absent:
        return []
    return [f"{_ranks(absent)} of {world} {'was' if len(absent) == 1 else 'were'} not in the folder"]


def run_notes(ranks: Sequence[int], worlds: Sequence[int], times_us: Sequence[tuple[float, float]]) -> list[str]:
    """What speaks against traces being of one run.

    :param worlds: number of ranks that each trace tells, 0 for none.
    :param times_us: when each begins and ends.
    """
    notes = []
    sizes = sorted({world for world in worlds if world > 0})
    if len(sizes) > 1:
        notes.append(f"the traces tell worlds of {' and '.join(map(str, sizes[:4]))} ranks: they may be of several runs")
    beyond = [rank for rank, world in zip(ranks, worlds, strict=True) if 0 < world <= rank]
    if beyond:
        notes.append(f"{_ranks(beyond)} cannot be in a world of {max(sizes)}: a rank is wrong, or a trace is of another run")
    if len(ranks) > 2:
        first, last = (np.array(column) for column in zip(*times_us, strict=True))
        # The trace with which most others overlap shows when the run was.
        with_it = [int(((first <= b) & (last >= a)).sum()) for a, b in times_us]
        begin, end = times_us[int(np.argmax(with_it))]
        apart = [rank for rank, (a, b) in zip(ranks, times_us, strict=True) if b < begin or a > end]
        if apart:
            who = f"{_ranks(apart)} and the others" if max(with_it) > 1 else "the ranks"
            notes.append(f"{who} were profiled at different times: clocks are off, or runs are mixed")
    return notes


def pair_notes(summaries: Sequence[Summary], world: int) -> list[str]:
    """Two workers are too few to tell who is unusual, but not to tell who waits: each one's time in what they alone do together.

    Both end an operation together, so whoever spends less in it came later. Of a group with members that nobody saw nothing is
    said: the last to come may be one of them.
    """
    if len(summaries) != 2:
        return []
    notes = []
    one, two = summaries
    other = {c.name: c for c in two.communicators}
    for c in one.communicators:
        if c.name not in other or (max(c.size, other[c.name].size) or world) != 2:
            continue
        counts = [sum(s.count for s in g.slots) for g in (c, other[c.name])]
        total = [sum(s.total_us for s in g.slots) / 1e3 for g in (c, other[c.name])]
        if counts[0] != counts[1] or not min(total) > 0 or max(total) < 1.1 * min(total):
            continue
        waits, late = (one, two) if total[0] > total[1] else (two, one)
        ops = ", ".join(sorted({s.op for s in c.slots})[:3])
        notes.append(
            f"rank {waits.who.rank} spent {max(total):.1f} ms in {counts[0]} {ops} of {c.kind or c.name}, rank {late.who.rank} "
            f"{min(total):.1f} ms: rank {late.who.rank} came late to them, rank {waits.who.rank} waited"
        )
    return _short(notes)


def _ranks(ranks: Sequence[int]) -> str:
    return say_ranks(format_ranks(sorted(ranks)), 120)


def _span(steps: tuple[int, ...]) -> str:
    if not steps:
        return "none"
    if len(steps) > 1 and steps == tuple(range(steps[0], steps[-1] + 1)):
        return f"{steps[0]}–{steps[-1]}"
    return ", ".join(str(n) for n in steps[:8]) + (", …" if len(steps) > 8 else "")


def _short(notes: list[str]) -> list[str]:
    return notes if len(notes) <= MAX_NOTES else [*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more of this kind"]
