"""Cutting a summary to its size: the least important goes first, and the summary says what went."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from eroica.producers.trace.settings import SummarySettings
from eroica.schemas.errors import MessageTooLarge
from eroica.schemas.summaries import FunctionPattern, Summary

IMPORTANT_BETA = 0.01
"""[P]: functions below 1 % of the window decide nothing."""
ZSTD_LEVEL = 3
"""What the producer compresses with by default."""


def fit(summary: Summary, settings: SummarySettings) -> Summary:
    """Cut until the summary is within ``settings.wire_bytes`` compressed, if functions under 1 % can bring that about, and within
    ``settings.max_bytes`` in any case.

    Order of sacrifice: sketches of functions under 1 %; these functions; totals of slots; all sketches; half of the functions,
    again and again; steps' phases; traffic; half of the receive waits,
    the shorter ones first, again and again; slots' start and exposed columns; half of the slots, again and again. Communicators
    keep their first and last slot longest, since waits are found by them.

    :raises MessageTooLarge: not even the bare summary fits (a hostile name or list).
    """
    for first in (_small_sketches, _small_functions):
        if wire_bytes(summary) > settings.wire_bytes:
            summary = first(summary) or summary
    rounds = 0
    while json_bytes(summary) > settings.max_bytes:
        cut = next((c for c in _CUTS if (smaller := c(summary)) is not None), None)
        smaller = cut(summary) if cut is not None else None
        if smaller is None or rounds > 100:
            raise MessageTooLarge(f"a summary cannot be cut below {settings.max_bytes} bytes", where=f"rank {summary.who.rank}")
        summary, rounds = smaller, rounds + 1
    return summary


def json_bytes(summary: Summary) -> int:
    """Size as encoded."""
    return len(msgspec.json.encode(summary))


def wire_bytes(summary: Summary) -> int:
    """Size as it travels (zstd)."""
    import zstandard  # 0.3 MB that a summary which is not cut to size does without

    return len(zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(msgspec.json.encode(summary)))


def _keep_functions(summary: Summary, functions: list[FunctionPattern]) -> Summary:
    """Keep these functions and the stacks that they use."""
    used = sorted({f.stack for f in functions if f.stack >= 0})
    place = {old: new for new, old in enumerate(used)}
    return _lose(
        msgspec.structs.replace(
            summary,
            functions=[msgspec.structs.replace(f, stack=place.get(f.stack, -1)) for f in functions],
            stacks=[summary.stacks[i] for i in used],
        ),
        "functions_cut",
        len(summary.functions) - len(functions),
    )


def _lose(summary: Summary, what: str, count: int) -> Summary:
    if not count:
        return summary
    return msgspec.structs.replace(summary, lost={**summary.lost, what: summary.lost.get(what, 0) + count})


def _important(summary: Summary, function: FunctionPattern) -> bool:
    long = function.category == "python" and function.total_us >= IMPORTANT_BETA * summary.window_us
    return function.beta >= IMPORTANT_BETA or long


def _small_sketches(summary: Summary) -> Summary | None:
    gone = [f.sketch is not None and not _important(summary, f) for f in summary.functions]
    if not any(gone):
        return None
    functions = [msgspec.structs.replace(f, sketch=None) if go else f for f, go in zip(summary.functions, gone, strict=True)]
    return _lose(msgspec.structs.replace(summary, functions=functions), "sketches_cut", sum(gone))


def _sketches(summary: Summary) -> Summary | None:
    lost = sum(f.sketch is not None for f in summary.functions)
    lost += sum(t.sketch is not None for c in summary.communicators for t in c.traffic)
    if not lost:
        return None
    groups = [
        msgspec.structs.replace(c, traffic=[msgspec.structs.replace(t, sketch=None) for t in c.traffic])
        for c in summary.communicators
    ]
    functions = [msgspec.structs.replace(f, sketch=None) for f in summary.functions]
    return _lose(msgspec.structs.replace(summary, functions=functions, communicators=groups), "sketches_cut", lost)


def _traffic(summary: Summary) -> Summary | None:
    lost = sum(len(c.traffic) for c in summary.communicators)
    if not lost:
        return None
    groups = [msgspec.structs.replace(c, traffic=[]) for c in summary.communicators]
    return _lose(msgspec.structs.replace(summary, communicators=groups), "traffic_cut", lost)


def _small_functions(summary: Summary) -> Summary | None:
    kept = [f for f in summary.functions if _important(summary, f)]
    return _keep_functions(summary, kept) if len(kept) < len(summary.functions) else None


def _half_of_functions(summary: Summary) -> Summary | None:
    return _keep_functions(summary, summary.functions[: len(summary.functions) // 2]) if len(summary.functions) > 10 else None


def _slot_totals(summary: Summary) -> Summary | None:
    totals = sum(s.index < 0 for c in summary.communicators for s in c.slots)
    if not totals:
        return None
    groups = [msgspec.structs.replace(c, slots=[s for s in c.slots if s.index >= 0]) for c in summary.communicators]
    return _lose(msgspec.structs.replace(summary, communicators=groups), "slot_totals_cut", totals)


def _phases(summary: Summary) -> Summary | None:
    if not any(s.phases_us for s in summary.steps):
        return None
    steps = [msgspec.structs.replace(s, phases_us={}) for s in summary.steps]
    return _lose(msgspec.structs.replace(summary, steps=steps), "step_phases_cut", len(steps))


def _columns(summary: Summary) -> Summary | None:
    slots = sum(bool(s.exposed_us or s.seq) for c in summary.communicators for s in c.slots)
    if not slots:
        return None
    groups = [
        msgspec.structs.replace(c, slots=[msgspec.structs.replace(s, exposed_us=[], seq=[]) for s in c.slots])
        for c in summary.communicators
    ]
    return _lose(msgspec.structs.replace(summary, communicators=groups), "slot_columns_cut", slots)


def _half_of_receive_waits(summary: Summary) -> Summary | None:
    told = summary.receive_waits
    if not told:
        return None
    longest = sorted(range(len(told)), key=lambda i: (-sum(told[i].total_us), i))[: len(told) // 2]
    kept = [told[i] for i in sorted(longest)]
    return _lose(msgspec.structs.replace(summary, receive_waits=kept), "receive_waits_cut", len(told) - len(kept))


def _half_of_slots(summary: Summary) -> Summary | None:
    groups, lost = [], 0
    for group in summary.communicators:
        last = len(group.slots) - 1
        kept = [s for i, s in enumerate(group.slots) if i % 2 == 0 or i == last] if last > 1 else group.slots
        lost += len(group.slots) - len(kept)
        groups.append(msgspec.structs.replace(group, slots=kept))
    return _lose(msgspec.structs.replace(summary, communicators=groups), "slots_cut", lost) if lost else None


def _half_of_communicators(summary: Summary) -> Summary | None:
    kept = sorted(summary.communicators, key=lambda c: -sum(s.total_us for s in c.slots))[: len(summary.communicators) // 2]
    if len(kept) < 1:
        return None
    return _lose(
        msgspec.structs.replace(summary, communicators=sorted(kept, key=lambda c: c.name)),
        "communicators_cut",
        len(summary.communicators) - len(kept),
    )


def _half_of_steps(summary: Summary) -> Summary | None:
    if len(summary.steps) < 2:
        return None
    kept = summary.steps[len(summary.steps) // 2 :]
    return _lose(msgspec.structs.replace(summary, steps=kept), "steps_cut", len(summary.steps) - len(kept))


_CUTS: tuple[Callable[[Summary], Summary | None], ...] = (
    _small_functions, _slot_totals, _sketches, _half_of_functions, _phases, _traffic,
    _half_of_receive_waits, _columns, _half_of_slots, _half_of_communicators, _half_of_steps,
)  # fmt: skip
