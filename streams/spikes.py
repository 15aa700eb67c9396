"""When a job stutters: single slow iterations, and those that only keep a beat."""

from __future__ import annotations

from collections import deque
from statistics import median

from eroica.schemas.settings import DetectSettings
from eroica.streams.rules import MAD_TO_SIGMA, Finding

MAX_SPIKE_RUN = 10
"""Consecutive slow iterations that may still be one spike; more is a level."""
MAD_FLOOR_RATIO = 0.10
"""Spread is taken as at least this share of the median (Megatron's sniff test, Greyhound)."""
PERIODS_REMEMBERED = 5
"""A period that failed to show so many times in a row is forgotten."""


class Spikes:
    """Single slow iterations ([G]): robust z > ``spike_z`` over the last ``spike_window`` and ≥ ``spike_ratio`` × their mean.

    A spike is a run of at most ``MAX_SPIKE_RUN`` such iterations that has ended; a longer one is a level and joins the history.
    ``spike_confirm`` spikes that began within ``spike_window`` iterations are a finding. Three equally spaced spikes are a period
    (checkpoint, evaluation, synchronisation): later ones at its beat are innocent until it fails to show.
    """

    def __init__(self, settings: DetectSettings) -> None:
        self._settings = settings
        self._history: deque[int] = deque(maxlen=settings.spike_window)
        self._sum = 0
        self._run: list[int] = []
        self._run_start = 0
        self._starts: deque[int] = deque(maxlen=3)
        self._guilty: deque[int] = deque(maxlen=settings.spike_confirm)
        self._period = 0
        self._anchor = 0
        self._worst = 0

    def pending(self, step: int) -> bool:
        """Whether a spike is under way at *step*, or lies so little back that more would make a finding."""
        return bool(self._run) or (bool(self._guilty) and step - self._guilty[-1] <= self._settings.spike_window)

    def feed(self, step: int, value_us: int) -> tuple[bool, Finding | None]:
        """Take in the next iteration; ``(innocent, finding)``: innocent means that it lies on a learned period."""
        if self._is_spike(value_us):
            if not self._run:
                self._run_start = step
            self._run.append(value_us)
            if len(self._run) > MAX_SPIKE_RUN:
                for value in self._run:
                    self._learn(value)
                self._run.clear()
                return False, None
            return self._on_beat(self._run_start), None
        finding = self._end_run(step) if self._run else None
        self._learn(value_us)
        return False, finding

    def _is_spike(self, value_us: int) -> bool:
        held = len(self._history)
        if held < self._settings.spike_min_history or value_us * held < self._settings.spike_ratio * self._sum:
            return False
        middle = median(self._history)
        spread = MAD_TO_SIGMA * median([abs(v - middle) for v in self._history])
        return value_us - middle > self._settings.spike_z * max(spread, MAD_FLOOR_RATIO * middle)

    def _learn(self, value_us: int) -> None:
        if len(self._history) == self._history.maxlen:
            self._sum -= self._history[0]
        self._history.append(value_us)
        self._sum += value_us

    def _end_run(self, step: int) -> Finding | None:
        start, worst = self._run_start, max(self._run)
        self._run.clear()
        if self._on_beat(start):
            self._anchor = start
            return None
        self._starts.append(start)
        if self._learn_period():
            self._guilty.clear()
            return None
        self._guilty.append(start)
        if len(self._guilty) < self._settings.spike_confirm or step - self._guilty[0] > self._settings.spike_window:
            return None
        self._guilty.clear()
        mean = self._sum / len(self._history)
        return Finding(
            figures={"observed_us": float(worst), "baseline_us": mean, "ratio": worst / max(mean, 1.0)},
            detail=(
                f"{self._settings.spike_confirm} spikes within {self._settings.spike_window} iterations, "
                f"the last {worst / 1e3:.1f} ms, {worst / max(mean, 1.0):.1f} times the average of {mean / 1e3:.1f} ms"
            ),
        )

    def _learn_period(self) -> bool:
        if len(self._starts) < 3:
            return False
        a, b, c = self._starts
        period = c - b
        if period < 2 or abs((b - a) - period) > _tolerance(period):
            return False
        self._period, self._anchor = period, c
        return True

    def _on_beat(self, start: int) -> bool:
        if not self._period:
            return False
        beats = round((start - self._anchor) / self._period)
        if beats > PERIODS_REMEMBERED:
            self._period = 0
            return False
        return beats >= 1 and abs(start - self._anchor - beats * self._period) <= beats * _tolerance(self._period)


def _tolerance(period: int) -> int:
    """Steps by which a period may jitter: none for a short one, where chance would hit it too often."""
    if period < 20:
        return 0
    return max(1, period // 50)
