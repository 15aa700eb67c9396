"""What a worker of an open class said, held in little memory until the class is closed."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from eroica.schemas.summaries import StackEvidence, Summary, SummaryError

Member = Summary | SummaryError | StackEvidence

MAX_MEMBER_BYTES = 150_000
"""A summary that takes more (packed) counts as an error: with the request it might not fit a message even alone."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Summary | StackEvidence).decode


@dataclass(frozen=True, slots=True)
class Held:
    """A member of a class; what coverage needs of it lies open."""

    rank: int
    packed: bytes
    """The message, a tenth of the memory of its objects; empty for an error."""
    size: int
    """Bytes that count for it."""
    late: bool
    error: SummaryError | None

    def open(self) -> Summary | StackEvidence:
        """The message itself. Only of a member without an error."""
        return _unpack(self.packed)


def hold(member: Member) -> Held:
    """*member*, packed; an error in place of one that is too large."""
    packed = _pack(member)
    size = len(packed)
    late = isinstance(member, Summary) and member.late_by_steps > 0
    if isinstance(member, SummaryError):
        return Held(member.who.rank, b"", size, late, member)
    if size > MAX_MEMBER_BYTES:
        text = f"its {type(member).__name__} takes {size} bytes, over the limit of {MAX_MEMBER_BYTES}"
        return Held(member.who.rank, b"", size, late, SummaryError(who=member.who, error=text, ended_at_us=member.ended_at_us))
    return Held(member.who.rank, packed, size, late, None)
