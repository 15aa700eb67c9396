"""Slots (places in the step) and traffic of every communicator, in the form in which members' executions can be matched."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from eroica.producers.trace.collectives import POINT_TO_POINT, Communication, Operation
from eroica.producers.trace.steps import Steps
from eroica.producers.trace.traffic import traffic
from eroica.schemas.ranks import format_ranks
from eroica.schemas.summaries import Communicator, Slot


def communicators(communication: Communication, steps: Steps, max_values: int) -> list[Communicator]:
    """Slots by communicator. All members choose the same slots: the rule knows only places and counts that they share.

    Rule: every slot if slots × steps ≤ *max_values*; else the first and last of the step and every k-th place, k = ⌈slots ×
    steps / max_values⌉. What is not chosen remains as totals under index -1, and so does all of a name that stands for several
    groups: their slots are no one's. Between two ranks, sends and receives are numbered
    apart: the k-th sent at one end is the k-th received at the other.
    """
    by_group: dict[str, list[Operation]] = defaultdict(list)
    for operation in communication.operations:
        by_group[operation.group].append(operation)
    found = []
    for name, operations in sorted(by_group.items()):
        known = communication.groups.get(name, {})
        ranks = known.get("ranks") or []
        size = max([known.get("size", 0), *(o.size for o in operations)])
        found.append(
            Communicator(
                name=name,
                kind=known.get("desc", ""),
                backend=operations[0].backend,
                ranks=format_ranks(ranks) if len(ranks) == size else "",
                size=size,
                slots=_totals(operations)
                if name in communication.mixed
                else _slots(_numbered(operations, known.get("size") == 2), steps, max_values),
                traffic=traffic(operations),
            )
        )
    return found


def _numbered(operations: list[Operation], pair: bool) -> dict[str, list[tuple[int, Operation]]]:
    """Operations with their places: all together, or for a pair of ranks each direction by itself."""
    if not pair or any(o.op not in POINT_TO_POINT for o in operations):
        return {"": _placed(operations)}
    return {op: _placed(mine) for op in POINT_TO_POINT if (mine := [o for o in operations if o.op == op])}


def _placed(operations: list[Operation]) -> list[tuple[int, Operation]]:
    """Number a communicator's operations within their steps.

    Steps of the usual length count from their start. One that lost operations counts by sequence numbers where the trace has
    them; else the first step, which lost its beginning to the window's edge, counts so that its end matches the others' end.
    """
    per_step: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        per_step[operation.step].append(operation)
    lengths = [len(v) for v in per_step.values()]
    usual = max(set(lengths), key=lambda n: (lengths.count(n), n))
    first = min(per_step)
    placed: list[tuple[int, Operation]] = []
    for step, members in per_step.items():
        if len(members) < usual and (places := _by_sequence(per_step, usual, step)):
            placed.extend(zip(places, members, strict=True))
            continue
        missing = usual - len(members) if step == first and len(per_step) > 1 and len(members) < usual else 0
        placed.extend((missing + i, operation) for i, operation in enumerate(members))
    return placed


def _by_sequence(per_step: dict[int, list[Operation]], usual: int, step: int) -> list[int]:
    """Places of a short step's operations by their distance from whole steps' numbers; empty where that is not sure: numbers are
    missing, or whole steps do not follow each other at one distance and alike.
    """
    whole = [s for s in sorted(per_step) if len(per_step[s]) == usual]
    if len(whole) < 2 or any(o.seq < 0 for s in (*whole, step) for o in per_step[s]):
        return []
    begun = {s: per_step[s][0].seq for s in whole}
    shapes = {tuple(o.seq - begun[s] for o in per_step[s]) for s in whole}
    far = {divmod(begun[b] - begun[a], b - a) for a, b in pairwise(whole)}
    stride, uneven = far.pop()
    if far or uneven or len(shapes) > 1 or stride <= 0:
        return []
    place = {number: i for i, number in enumerate(shapes.pop())}
    expected = begun[whole[0]] + stride * (step - whole[0])
    places = [place.get(o.seq - expected, -1) for o in per_step[step]]
    return places if min(places) >= 0 and len(set(places)) == len(places) else []


def _slots(numbered: dict[str, list[tuple[int, Operation]]], steps: Steps, max_values: int) -> list[Slot]:
    counts = {way: max(i for i, _ in placed) + 1 for way, placed in numbered.items()}
    values = sum(counts.values()) * len({o.step for placed in numbered.values() for _, o in placed})
    every = -(-values // max_values) if values > max_values else 1
    slots, rest = [], defaultdict(list)
    for way, placed in numbered.items():
        table: dict[tuple[int, str], list[Operation]] = defaultdict(list)
        for index, operation in placed:
            table[index, operation.op].append(operation)
        for (index, op), members in sorted(table.items()):
            if index % every == 0 or index == counts[way] - 1:
                slots.append(_slot(index, op, members, steps))
            else:
                rest[op].extend(members)
    return slots + _totals([o for members in rest.values() for o in members])


def _totals(operations: list[Operation]) -> list[Slot]:
    """What is not numbered, by kind."""
    by_op: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_op[operation.op].append(operation)
    return [
        Slot(op=op, index=-1, count=len(m), total_us=_round(sum(o.duration_us for o in m)), bytes=max(o.bytes for o in m))
        for op, m in sorted(by_op.items())
    ]


def _slot(index: int, op: str, members: list[Operation], steps: Steps) -> Slot:
    hidden = any(o.exposed_us < o.duration_us - 0.5 for o in members)
    return Slot(
        op=op,
        index=index,
        bytes=max(o.bytes for o in members),
        dtype=members[0].dtype,
        count=len(members),
        total_us=_round(sum(o.duration_us for o in members)),
        step=[int(steps.number[o.step]) for o in members],
        start_us=[_round(o.start_us - float(steps.start_us[o.step])) for o in members],
        duration_us=[_round(o.duration_us) for o in members],
        seq=[o.seq for o in members] if all(o.seq >= 0 for o in members) else [],
        exposed_us=[_round(o.exposed_us) for o in members] if hidden else [],
    )


def _round(value: float) -> float:
    return round(value, 1)
