"""Event time of several speakers (hosts of a shard, shards of a job) of whom some may have a wrong clock.

Time is the furthest that any of them has come, but a clock that stands apart from the others moves it by its progress
only, never by its offset: one far-off clock can neither run the time away nor stop it.
"""

from __future__ import annotations

from typing import NamedTuple

BEHIND_FACTOR = 20
"""The frame is moved back when most speakers are further behind it than this many times the bound on leaps. A frame that stands
so far ahead is somebody's wrong clock; a backlog that is being caught up with is shorter."""
LATE_WORDS = 20
"""A speaker that was not among the last so many words for each speaker has no say in where the frame is."""


class Reading(NamedTuple):
    """What a speaker's word means for the time."""

    at_us: int
    """Its time, in the common frame; never ahead of the frame."""
    leap_us: int
    """The frame was moved by this, apart from the passing of time: moments remembered in it move along."""
    order: int
    """1: newer than what the speaker said before, 0: as old, -1: older (a repetition)."""


class _Speaker:
    __slots__ = ("apart_us", "offset_us", "raw_us", "word")

    def __init__(self) -> None:
        self.raw_us = -1
        self.offset_us = 0
        """Added to its clock; zero or negative."""
        self.apart_us = 0
        """How far its clock was ahead of the frame when it last spoke."""
        self.word = 0


class EventClock:
    """The common frame. A function of the words in their order; no clock of ours.

    - A leap ahead of at most *leap_us* is the passing of time.
    - A longer one is the speaker's own matter: its clock is counted from here on with an offset. When most of the speakers of
      late leapt (a pause of all, such as a broker that was away), the frame leaps with them. Alone, a speaker is most.
    - When most of the speakers of late stand far behind the frame, a wrong clock has led it: it is moved back to them.
    - A speaker whose clock is far behind its own last word has set it back; its words count anew.
    """

    def __init__(self, now_us: int, leap_us: int, max_speakers: int) -> None:
        self.now_us = now_us
        self._leap_us = leap_us
        self._behind_us = leap_us * BEHIND_FACTOR
        self._max_speakers = max_speakers
        self._speakers: dict[str | int, _Speaker] = {}
        self._odd = 0
        """Words out of the ordinary since the frame was last compared with all clocks."""
        self._offsets = False
        self._words = 0
        self._compared = 0

    def hear(self, name: str | int, raw_us: int) -> Reading:
        """Take in that speaker *name* says its clock is at *raw_us*.

        Speakers beyond *max_speakers* move nothing.
        """
        self._words += 1
        speaker = self._speakers.get(name)
        if speaker is None:
            if len(self._speakers) >= self._max_speakers:
                return Reading(min(raw_us, self.now_us), 0, 1)
            speaker = self._speakers[name] = _Speaker()
        order = (raw_us > speaker.raw_us) - (raw_us < speaker.raw_us)
        if order < 0:
            if speaker.raw_us - raw_us <= self._behind_us:
                return Reading(min(raw_us + speaker.offset_us, self.now_us), 0, order)
            order, speaker.offset_us = 1, 0
        at_us = raw_us + speaker.offset_us
        ahead = at_us - self.now_us
        if ahead > self._leap_us:
            speaker.offset_us -= ahead
            self._offsets, at_us = True, self.now_us
            self._odd += 1
        elif ahead > 0:
            self.now_us = at_us
        elif -ahead > self._behind_us:
            self._odd += 1
        speaker.raw_us, speaker.apart_us, speaker.word = raw_us, raw_us - self.now_us, self._words
        leap = self._compare() if self._odd or self._offsets else 0
        return Reading(min(raw_us + speaker.offset_us, self.now_us), leap, order)

    def _compare(self) -> int:
        """Move the frame to where most clocks are; how far.

        Looked at when so many words were odd that there may be a majority (so its cost is spread over them), and now and then
        as long as a clock is offset: speakers that are gone must not hold the frame for ever.
        """
        late = LATE_WORDS * len(self._speakers)
        if self._odd * 2 <= len(self._speakers) and self._words - self._compared < late:
            return 0
        self._odd, self._compared = 0, self._words
        apart = sorted(s.apart_us for s in self._speakers.values() if self._words - s.word <= late)
        ahead, behind = apart[(len(apart) - 1) // 2], apart[len(apart) // 2]
        if ahead > self._leap_us:
            leap = ahead
        elif -behind > self._behind_us:
            leap = behind
        else:
            return 0
        self.now_us += leap
        self._offsets = False
        for speaker in self._speakers.values():
            speaker.apart_us -= leap
            if speaker.offset_us:
                moved = speaker.offset_us + leap
                speaker.offset_us = moved if moved < -self._leap_us else 0
                self._offsets = self._offsets or speaker.offset_us < 0
        return leap
