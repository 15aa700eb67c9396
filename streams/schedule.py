"""When a job that nobody complains about is profiled: its healthy past, for later complaints to be held against."""

from __future__ import annotations

import sys
import zlib

from eroica.schemas.settings import DetectSettings
from eroica.streams.rules import Finding

RESERVED_REQUESTS = 2
"""Requests for which a scheduled profile leaves room in the budget, so that it holds back no alarm."""


class Schedule:
    """One profile a slot of ``scheduled_every_ms`` of event time, after ``scheduled_after`` iterations without trouble.

    Slots are counted from the epoch, shifted by the launch's name: jobs of a cluster are not all profiled in the same moment, and
    who has lost all memory comes to the same slot and thus to the same request. Two profiles lie half a slot apart at least.
    """

    def __init__(self, settings: DetectSettings, job: str, run_id: str) -> None:
        every_us = 1_000 * settings.scheduled_every_ms
        self._after = max(settings.scheduled_after, settings.window) if every_us else sys.maxsize
        self._every_us = max(every_us, 1)
        self._shift_us = zlib.crc32(f"{job}/{run_id}".encode()) * 1_000_003 % self._every_us
        self._calm = 0
        self._from_us = self._until_us = 0
        """None is due between these times."""

    def slot(self, now_us: int) -> int:
        """The slot of a time."""
        return (now_us + self._shift_us) // self._every_us

    def quiet(self, now_us: int) -> bool:
        """An iteration went by without trouble. Returns whether a profile is due."""
        self._calm += 1
        return self._calm >= self._after and not self._from_us < now_us < self._until_us

    def trouble(self) -> None:
        """Something was slow, or somebody asked for a profile."""
        self._calm = 0

    def asked(self, at_us: int) -> None:
        """A scheduled profile was asked for then. If that lies far ahead, a clock was set back, and it does not count."""
        next_slot_us = (self.slot(at_us) + 1) * self._every_us - self._shift_us
        self._from_us, self._until_us = at_us - self._every_us, max(next_slot_us, at_us + self._every_us // 2)

    def finding(self, mean_us: float) -> Finding:
        """What the request says of itself."""
        return Finding(
            figures={"observed_us": mean_us},
            detail=f"on schedule: {self._calm} iterations without trouble, {mean_us / 1e3:.1f} ms on average lately",
        )
