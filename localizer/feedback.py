"""What people said of remedies: votes in, counts out. Pure; which votes counted is written into the verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from eroica.schemas.control import ProfileRequest
from eroica.schemas.memory import Feedback
from eroica.schemas.outputs import InputRef

MAX_VOTES = 20_000
"""Votes kept of a partition; beyond, the oldest no longer count."""
MAX_AGE_US = 90 * 24 * 3_600_000_000
"""A vote counts for so long, by event time: as long as its topic keeps it."""
MAX_ID, MAX_NAME, MAX_COMMENT = 100, 100, 4_000
"""Characters of an id, an author and a comment; a longer vote is refused."""
PLACE = "feedback/"


@dataclass(frozen=True, slots=True)
class Heard:
    """The votes that count for a request."""

    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Remedy, or fault for the advice as a whole → how often it helped, and did not."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """``feedback/partition`` → first and last offset of what was read."""


Listener = Callable[[ProfileRequest], Heard]
"""What was heard when a request is judged."""


def nothing_heard(_: ProfileRequest) -> Heard:
    """Where nobody reads the topic."""
    return Heard()


class _Vote(NamedTuple):
    offset: int
    about: tuple[str, str, str]
    """Verdict, remedy, author: of several votes the last counts."""
    helped: bool
    event_time_us: int


class FeedbackTable:
    """Votes by partition, in the order of their offsets.

    Counts are a function of the offsets that were read and of a request's time. Votes come from whoever can write to the topic:
    memory is bounded, names of remedies that nobody knows are never looked up, and no vote decides anything but the counts that a
    verdict shows.
    """

    def __init__(self, max_votes: int = MAX_VOTES) -> None:
        self._max_votes = max_votes
        self._votes: dict[int, deque[_Vote]] = {}
        self._last: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self.refused = 0
        """Votes with a text that is too long."""

    def feed(self, vote: Feedback | None, ref: InputRef) -> None:
        """The message at *ref*; ``None`` for one that could not be read."""
        self._first.setdefault(ref.partition, ref.offset)
        self._last[ref.partition] = ref.offset
        if vote is None or not _fits(vote):
            self.refused += 1
            return
        kept = self._votes.setdefault(ref.partition, deque())
        about = (vote.verdict_id, vote.remedy or vote.fault, vote.author)
        kept.append(_Vote(ref.offset, about, vote.helped, vote.event_time_us))
        if len(kept) > self._max_votes:
            kept.popleft()
            self._first[ref.partition] = kept[0].offset

    def heard(self, issued_at_us: int, limits: Mapping[int, tuple[int, int]] | None = None) -> Heard:
        """The counts for a request of that time.

        :param limits: partition → first and last offset that counts; others count nothing. Without it all that was read.
        """
        last: dict[tuple[str, str, str], bool] = {}
        for partition in sorted(self._votes):
            low, high = (0, self._last[partition]) if limits is None else limits.get(partition, (0, -1))
            for vote in self._votes[partition]:
                if low <= vote.offset <= high and vote.event_time_us > issued_at_us - MAX_AGE_US:
                    last[vote.about] = vote.helped
        counts: dict[str, tuple[int, int]] = {}
        for (_, remedy, _), helped in sorted(last.items()):
            yes, no = counts.get(remedy, (0, 0))
            counts[remedy] = (yes + helped, no + (not helped))
        read = {p: (self._first[p], self._last[p]) for p in self._last} if limits is None else limits
        return Heard(counts, {f"{PLACE}{p}": f"{low}-{high}" for p, (low, high) in sorted(read.items())})

    def heard_until(self, time_us: int) -> Heard:
        """What people had said by *time_us*, where no verdict tells what was read."""
        limits = {p: (votes[0].offset, _until(votes, time_us)) for p, votes in self._votes.items() if votes}
        return self.heard(time_us, {p: (low, high) for p, (low, high) in limits.items() if high >= low})


def limits_of(inputs: Mapping[str, str]) -> dict[int, tuple[int, int]]:
    """The offsets of feedback among the inputs of a verdict; what cannot be read is left out."""
    found = {}
    for place, offsets in inputs.items():
        partition, (low, dash, high) = place.removeprefix(PLACE), offsets.partition("-")
        words = (partition, low, high)
        if place.startswith(PLACE) and dash and all(w.isascii() and w.isdigit() and len(w) < 19 for w in words):
            found[int(partition)] = (int(low), int(high))
    return found


def _until(votes: deque[_Vote], time_us: int) -> int:
    early = [vote.offset for vote in votes if vote.event_time_us <= time_us]
    return max(early, default=-1)


def _fits(vote: Feedback) -> bool:
    ids = (vote.verdict_id, vote.remedy, vote.fault)
    return all(len(i) <= MAX_ID for i in ids) and len(vote.author) <= MAX_NAME and len(vote.comment) <= MAX_COMMENT
