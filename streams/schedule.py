"""When a job that nobody complains about is profiled: its healthy past, for later complaints to be held against."""

from __future__ import annotations

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
        self._every_us = 1_000 * settings.scheduled_every_ms
        self._after = max(settings.scheduled_after, settings.window)
        self._shift_us = zlib.crc32(f"{job}/{run_id}".encode()) * 1_000_003 % max(self._every_us, 1)
        self._calm = 0
        self._last_us: int | None = None

    def slot(self, now_us: int) -> int:
        """The slot of a time."""
        return (now_us + self._shift_us) // max(self._every_us, 1)

    def quiet(self) -> None:
        """An iteration went by without trouble."""
        self._calm += 1

    def trouble(self) -> None:
        """Something was slow, or somebody asked for a profile."""
        self._calm = 0

    def asked(self, at_us: int) -> None:
        """A scheduled profile was asked for then."""
        self._last_us = at_us if self._last_us is None else max(at_us, self._last_us)

    def due(self, now_us: int) -> bool:
        """Whether one is to be asked for now."""
        if not self._every_us or self._calm < self._after:
            return False
        last = self._last_us
        # A clock that was set back, so that the last one lies in the future, must not end the schedule.
        return last is None or (
            self.slot(now_us) != self.slot(last) and not -self._every_us < now_us - last < self._every_us // 2
        )

    def finding(self, mean_us: float) -> Finding:
        """What the request says of itself."""
        return Finding(
            figures={"observed_us": mean_us},
            detail=f"on schedule: {self._calm} iterations without trouble, {mean_us / 1e3:.1f} ms on average lately",
        )
