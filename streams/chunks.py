"""A closed class becomes group messages below the size limit, coverage included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from eroica.schemas.codec import encode
from eroica.schemas.errors import MessageTooLarge
from eroica.schemas.groups import ClosedBy, GroupChunk
from eroica.schemas.ranks import RankRanges, format_ranks
from eroica.schemas.summaries import Expectation, StackEvidence, Summary, SummaryError
from eroica.streams.columns import stack_rows, summary_columns

MAX_ERRORS = 500
"""Ranks whose error is told word for word; each chunk repeats them."""
MAX_ERROR_CHARS = 300
MAX_MEMBER_BYTES = 150_000
"""A summary that takes more (packed) counts as an error: with the request it might not fit a message even alone."""

Member = Summary | SummaryError | StackEvidence


@dataclass(frozen=True, slots=True)
class ClosedClass:
    """What a class ended with. Invariant: ``members`` have one entry a rank, ascending, all of them expected."""

    expectation: Expectation
    expected: RankRanges
    closed_by: ClosedBy
    members: Sequence[Member]
    sizes: Sequence[int]
    """Bytes that each of ``members`` takes, packed."""
    offsets: tuple[int, ...]
    """Offsets in ``summaries`` of everything that went in, ascending."""
    partition: int


def chunk_messages(closed: ClosedClass, max_bytes: int) -> list[GroupChunk]:
    """The class as chunks in rank order, each encoded in at most *max_bytes* where more than one worker shares it.

    Deterministic: the same class gives the same bytes. At least one chunk, also when nobody answered.
    """
    members = [_bounded(member, size) for member, size in zip(closed.members, closed.sizes, strict=True)]
    frame = _frame(closed, members)
    parts: list[GroupChunk] = []
    rows = [(one, size) for one, size in zip(members, closed.sizes, strict=True) if not isinstance(one, SummaryError)]
    for slice_ in _packed(rows, max_bytes // 2):
        parts += _fitting(frame, slice_, max_bytes)
    if not parts:
        parts = [frame]
    return [msgspec.structs.replace(part, chunk=i, chunks=len(parts)) for i, part in enumerate(parts)]


def _frame(closed: ClosedClass, members: Sequence[Member]) -> GroupChunk:
    """A chunk without workers: identity and coverage."""
    expectation = closed.expectation
    failed = [m for m in members if isinstance(m, SummaryError)]
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
        received=format_ranks(m.who.rank for m in members if not isinstance(m, SummaryError)),
        late=format_ranks(m.who.rank for m in members if isinstance(m, Summary) and m.late_by_steps > 0),
        errors={str(m.who.rank): m.error[:MAX_ERROR_CHARS] for m in failed[:MAX_ERRORS]},
        inputs={f"summaries/{closed.partition}": format_ranks(closed.offsets)},
    )


def _bounded(member: Member, size: int) -> Member:
    """*member*, or the error that it is too large."""
    if size <= MAX_MEMBER_BYTES:
        return member
    error = f"its {type(member).__name__} takes {size} bytes, over the limit of {MAX_MEMBER_BYTES}"
    return SummaryError(who=member.who, error=error, ended_at_us=member.ended_at_us)


def _packed(rows: list[tuple[Summary | StackEvidence, int]], target_bytes: int) -> list[list[Summary | StackEvidence]]:
    """Split *rows* by the size of the single messages, a guess that ``_fitting`` corrects."""
    slices: list[list[Summary | StackEvidence]] = []
    used = 0
    for row, size in rows:
        if not slices or used + size > target_bytes:
            slices.append([])
            used = 0
        slices[-1].append(row)
        used += size
    return slices


def _fitting(frame: GroupChunk, rows: list[Summary | StackEvidence], max_bytes: int) -> list[GroupChunk]:
    """*rows* as one chunk, or halved until each fits."""
    stacks = [row for row in rows if isinstance(row, StackEvidence)]
    chunk = summary_columns(frame, [row for row in rows if isinstance(row, Summary)])
    chunk = msgspec.structs.replace(chunk, stacks=stack_rows(stacks))
    if len(rows) == 1 or _encoded_bytes(chunk) <= max_bytes:
        return [chunk]
    half = len(rows) // 2
    return _fitting(frame, rows[:half], max_bytes) + _fitting(frame, rows[half:], max_bytes)


def _encoded_bytes(chunk: GroupChunk) -> int:
    try:
        return len(encode(chunk))
    except MessageTooLarge:
        return 2**31
