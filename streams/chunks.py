"""A closed class becomes group messages below the size limit, coverage included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from eroica.schemas.codec import encode
from eroica.schemas.errors import MessageTooLarge
from eroica.schemas.groups import ClosedBy, GroupChunk
from eroica.schemas.ranks import RankRanges, format_ranks
from eroica.schemas.summaries import Expectation, StackEvidence, Summary
from eroica.streams.columns import stack_rows, summary_columns
from eroica.streams.held import Held

MAX_ERRORS = 500
"""Ranks whose error is told word for word; each chunk repeats them."""
MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class ClosedClass:
    """What a class ended with. Invariant: ``members`` have one entry a rank, ascending, all of them expected."""

    expectation: Expectation
    expected: RankRanges
    closed_by: ClosedBy
    members: Sequence[Held]
    offsets: tuple[int, ...]
    """Offsets in ``summaries`` of everything that went in, ascending."""
    partition: int


def chunk_messages(closed: ClosedClass, max_bytes: int) -> list[tuple[GroupChunk, bytes]]:
    """The class as chunks in rank order, each encoded in at most *max_bytes* where more than one worker shares it.

    Deterministic: the same class gives the same bytes. At least one chunk, also when nobody answered.

    :returns: each chunk with its bytes; these are empty where it does not fit a message.
    """
    frame = _frame(closed)
    parts: list[tuple[GroupChunk, bytes]] = []
    slices = _packed([one for one in closed.members if one.error is None], max_bytes // 2) or [[]]
    for i, slice_ in enumerate(slices):
        # Opened slice by slice: the messages of a large class are hundreds of MB of objects.
        numbered = msgspec.structs.replace(frame, chunk=i, chunks=len(slices))
        parts += _fitting(numbered, [one.open() for one in slice_], max_bytes)
    if len(parts) == len(slices):
        return parts
    chunks = [msgspec.structs.replace(part, chunk=i, chunks=len(parts)) for i, (part, _) in enumerate(parts)]
    return [(chunk, _encoded(chunk)) for chunk in chunks]


def _frame(closed: ClosedClass) -> GroupChunk:
    """A chunk without workers: identity and coverage."""
    expectation = closed.expectation
    failed = [one.error for one in closed.members if one.error is not None]
    return GroupChunk(
        job=expectation.request.job,
        run_id=expectation.request.run_id,
        request=expectation.request,
        cls=expectation.cls,
        classes=expectation.classes,
        chunk=0,
        chunks=1,
        closed_by=closed.closed_by,
        expected=str(closed.expected),
        received=format_ranks(one.rank for one in closed.members if one.error is None),
        late=format_ranks(one.rank for one in closed.members if one.late and one.error is None),
        errors={str(m.who.rank): m.error[:MAX_ERROR_CHARS] for m in failed[:MAX_ERRORS]},
        inputs={f"summaries/{closed.partition}": format_ranks(closed.offsets)},
    )


def _packed(members: Sequence[Held], target_bytes: int) -> list[list[Held]]:
    """Split *members* by the size of the single messages, a guess that ``_fitting`` corrects."""
    slices: list[list[Held]] = []
    used = 0
    for one in members:
        if not slices or used + one.size > target_bytes:
            slices.append([])
            used = 0
        slices[-1].append(one)
        used += one.size
    return slices


def _fitting(frame: GroupChunk, rows: list[Summary | StackEvidence], max_bytes: int) -> list[tuple[GroupChunk, bytes]]:
    """*rows* as one chunk, or halved until each fits."""
    stacks = [row for row in rows if isinstance(row, StackEvidence)]
    chunk = summary_columns(frame, [row for row in rows if isinstance(row, Summary)])
    chunk = msgspec.structs.replace(chunk, stacks=stack_rows(stacks))
    encoded = _encoded(chunk)
    if len(rows) <= 1 or 0 < len(encoded) <= max_bytes:
        return [(chunk, encoded)]
    half = len(rows) // 2
    return _fitting(frame, rows[:half], max_bytes) + _fitting(frame, rows[half:], max_bytes)


def _encoded(chunk: GroupChunk) -> bytes:
    """Its bytes; none if they are too many for a message."""
    try:
        return encode(chunk)
    except MessageTooLarge:
        return b""
