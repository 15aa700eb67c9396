"""Who of a shard still speaks, how far each rank is, and for how long it has done nothing."""

from __future__ import annotations

from collections.abc import Iterable

from eroica.schemas.iterations import RankIterations
from eroica.schemas.ranks import format_ranks
from eroica.streams.eventclock import EventClock

NOBODY = 2**63 - 1
"""Step of a rank that holds nobody back (absent or ended); as the slowest rank's step: there is none."""
_CHECK_US = 1_000_000
"""Silence is looked for once per so much event time."""
MAX_EVENT_CHARS = 64
_SLACK_US = 100_000
"""Agents round; an idle time that grew by the time between two batches up to this is one and the same idleness."""


class Liveness:
    """Event time of a shard (:class:`EventClock` of its hosts' ``sent_at_us``), and the last word of each rank.

    Where the time leaps by more than half of the silence limit nobody spoke in between (the broker was away): the leap is
    taken out of everybody's silence. A host whose clock is wrong moves the time by its progress only.
    """

    def __init__(self, ranks: int, now_us: int, silence_us: int) -> None:
        self.now_us = now_us
        self._clock = EventClock(now_us, silence_us // 2, ranks)
        self._silence_us = silence_us
        self._checked_us = now_us
        self._heard_us = [now_us] * ranks
        self._alive_us = [now_us] * ranks
        """When the rank last did something, in the shard's event time."""
        self._idle_us = [0] * ranks
        self._sent_us = [0] * ranks
        self._event = [""] * ranks
        self._ended = bytearray(ranks)
        self._absent: set[int] = set()
        self._absent_text = ""
        self._step = [-1] * ranks
        self._holds = [-1] * ranks
        self._slowest, self._at_slowest = -1, ranks
        """The lowest of them, and how many ranks stand there; it is looked for anew when none does."""

    @property
    def all_ended(self) -> bool:
        """Whether every rank said goodbye."""
        return 0 not in self._ended

    def hear(self, host: str, sent_us: int) -> bool:
        """A batch came; false if it is a repetition or older than what the host said already (its idle times are history)."""
        heard = self._clock.hear(host, sent_us)
        leap = heard.leap_us
        if leap:
            self._heard_us = [t + leap for t in self._heard_us]
            self._alive_us = [t + leap for t in self._alive_us]
            self._checked_us += leap
        self.now_us = self._clock.now_us
        return heard.order > 0

    def reached(self, row: int, ranks: int, step: int) -> None:
        """So many ranks from *row* on have completed *step*."""
        steps, holds, slowest = self._step, self._holds, self._slowest
        for r in range(row, row + ranks):
            if step > steps[r]:
                steps[r] = step
            before = holds[r]
            if step > before:
                holds[r] = step
                if before == slowest:
                    self._at_slowest -= 1

    def words(self, ranks: Iterable[RankIterations], first_rank: int, sent_us: int) -> None:
        """A host's latest word about its ranks; row 0 is *first_rank*."""
        now_us, heard_us, alive_us = self.now_us, self._heard_us, self._alive_us
        before_us, idle_us, events, ended = self._sent_us, self._idle_us, self._event, self._ended
        for one in ranks:
            row = one.rank - first_rank
            heard_us[row] = now_us
            before, idle = before_us[row], one.idle_us
            same_idleness = (
                not one.duration_us and 0 < before <= sent_us and idle + _SLACK_US >= idle_us[row] + (sent_us - before)
            )
            if not same_idleness:
                alive_us[row] = now_us - idle
            before_us[row], idle_us[row] = sent_us, idle
            if one.last_event:
                events[row] = one.last_event
            if ended[row] != one.ended:
                ended[row] = one.ended
                self._hold(row, NOBODY if one.ended else self._step[row])
            if self._absent and row in self._absent:
                self._absent.discard(row)
                self._absent_text = ""
                self._hold(row, NOBODY if one.ended else self._step[row])

    def _hold(self, row: int, step: int) -> None:
        """From here on *row* holds the others back at *step*, further back or not."""
        self._holds[row] = step
        self._at_slowest = 0

    def find_silent(self) -> None:
        """Declare ranks absent whose host said nothing for the limit while others went on."""
        if self.now_us - self._checked_us < _CHECK_US:
            return
        self._checked_us = self.now_us
        limit = self.now_us - self._silence_us
        if min(self._heard_us) > limit:
            return
        for row, heard in enumerate(self._heard_us):
            if heard <= limit and not self._ended[row] and row not in self._absent:
                self._absent.add(row)
                self._absent_text = ""
                self._hold(row, NOBODY)

    def slowest(self) -> int:
        """Last step of the slowest rank that still counts; ``NOBODY`` when there is none."""
        if self._at_slowest <= 0:
            self._slowest = min(self._holds)
            self._at_slowest = self._holds.count(self._slowest)
        return self._slowest

    def idle(self) -> tuple[int, int, str]:
        """``(row, idle_us, last_event)``: how long *every* rank that has not ended has done nothing, and who has for longest.

        ``(-1, 0, "")`` when all have ended.
        """
        if not any(self._ended):
            youngest, oldest = max(self._alive_us), min(self._alive_us)
            row = self._alive_us.index(oldest)
        else:
            rows = [row for row, ended in enumerate(self._ended) if not ended]
            if not rows:
                return -1, 0, ""
            youngest = max(self._alive_us[row] for row in rows)
            row = min(rows, key=lambda r: (self._alive_us[r], r))
        return row, max(0, self.now_us - youngest), self._event[row][:MAX_EVENT_CHARS]

    def absent_ranks(self, first_rank: int) -> str:
        """Absent ranks as ranges."""
        if self._absent and not self._absent_text:
            self._absent_text = format_ranks(row + first_rank for row in self._absent)
        return self._absent_text if self._absent else ""
