"""When a job is slower than it was: the rules on a job's own iterations, one at a time.

Times are integers in µs, so that sums are exact and a replay agrees to the last bit. Nothing here knows of messages.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from eroica.schemas.settings import DetectSettings

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation for a normal distribution ([G])."""
MIN_SLOW_SHARE = 0.25
"""Fewer slow iterations than this in a window are spikes; a level has not moved."""
ASKED_AT_MOST = 3
"""Requests about one slow level; after them it counts as usual, since nagging helps nobody."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule fired at an iteration."""

    figures: dict[str, float]
    detail: str


class Level:
    """Degradation ([P] §3): the mean of the last ``window`` iterations is above ``degradation_ratio`` × a reference.

    Reference: the lowest mean of a window, or the shortest single iteration, among the last ``recent`` iterations.
    The rule is checked at every iteration and is *confirmed* when it has held for ``(confirm_windows - 1) × window +
    1`` iterations in a row: then ``confirm_windows`` windows without common iterations agree, and a single long
    iteration cannot do it.

    Against noise the mean of a window must also exceed the reference by ``(min_shift_mads × √2 + √(2 ln k)) × s``,
    where s is the robust standard error of the reference window (1.4826 × MAD / √window), √2 since two means are
    compared, and the second term bounds how far the lowest of the k recent windows lies below their mean by chance.
    [P]'s own reference (``shortest_iteration``) is taken to the letter, without this term.

    On confirmation the reference is **pinned**: it no longer moves with the slow iterations that follow, until the
    mean is back under ``degradation_ratio`` × the pinned reference (recovered: the reference is learned anew from
    there), or until ``ASKED_AT_MOST`` requests were made about it (the slow level is the usual one from then on, and
    the last request says so).

    A level is *worse* than one that was asked about when the mean of a window is above ``cooldown_worse_ratio`` × that level,
    confirmed as the level itself is.
    """

    def __init__(self, settings: DetectSettings) -> None:
        self._settings = settings
        self._n = settings.window
        self._recent = max(settings.recent, (settings.confirm_windows + 2) * settings.window)
        self._needed = (settings.confirm_windows - 1) * settings.window + 1
        self._literal = settings.reference == "shortest_iteration"
        self._values: deque[int] = deque(maxlen=self._recent)
        self._restart()

    def _restart(self) -> None:
        self._count = 0
        self._sum = 0
        self._worse = 0
        self._minima: deque[tuple[int, int]] = deque()
        self._spread: tuple[int, float] = (-1, 0.0)
        self._above = 0
        self._pinned: tuple[float, float] | None = None
        self._asked = 0
        self._values.clear()

    @property
    def mean_us(self) -> float:
        """Mean of the last iterations, at most a window; 0 before the first."""
        held = min(self._count, self._n)
        return self._sum / held if held else 0.0

    @property
    def slow(self) -> bool:
        """Whether a slow level is confirmed and not recovered."""
        return self._pinned is not None

    @property
    def settled(self) -> bool:
        """Whether a window is full and nothing speaks for a slow level."""
        return self._count >= self._n and self._pinned is None and not self._above

    @property
    def worse(self) -> bool:
        """Whether the level is worse than the one that :meth:`feed` was told of, for long enough."""
        return self._worse >= self._needed

    def feed(self, value_us: int, asked_us: float | None = None) -> Finding | None:
        """Take in the next iteration; a finding as long as a confirmed slow level lasts.

        :param asked_us: the level that a request still cooling down was about; 0 for the usual one (it was about no level),
            ``None`` without such a request.
        """
        self._append(value_us)
        if self._count < self._n:
            return None
        threshold, reference = self._threshold()
        mean = self._sum / self._n
        self._above = self._above + 1 if mean > threshold and self._lasts(reference, self._settings.degradation_ratio) else 0
        much, known = self._settings.cooldown_worse_ratio, asked_us or reference
        self._worse = self._worse + 1 if asked_us is not None and mean > much * known and self._lasts(known, much) else 0
        if self._pinned is not None:
            if mean <= threshold:
                self._relearn()
                return None
        elif self._above >= self._needed:
            self._pinned = (threshold, reference)
        return self._finding(mean, reference, threshold) if self._pinned is not None and self._above else None

    def asked(self) -> bool:
        """A request went out about the level; true if it was the last one, after which the level counts as usual."""
        self._asked = 1 if self.worse else self._asked + 1
        self._worse = 0
        if self._asked < ASKED_AT_MOST:
            return False
        self._relearn()
        return True

    def _append(self, value_us: int) -> None:
        values = self._values
        index = self._count
        if len(values) >= self._n:
            self._sum -= values[-self._n]
        values.append(value_us)
        self._sum += value_us
        self._count += 1
        if self._literal:
            candidate, oldest = value_us, index - self._recent + 1
        elif self._count >= self._n:
            candidate, oldest = self._sum, index - self._recent + self._n
        else:
            return
        minima = self._minima
        while minima and minima[-1][0] >= candidate:
            minima.pop()
        minima.append((candidate, index))
        while minima[0][1] < oldest:
            minima.popleft()

    def _threshold(self) -> tuple[float, float]:
        """``(threshold, reference)`` in µs."""
        if self._pinned is not None:
            return self._pinned
        ratio = self._settings.degradation_ratio
        lowest, index = self._minima[0]
        if self._literal:
            return ratio * lowest, float(lowest)
        reference = lowest / self._n
        threshold = ratio * reference
        if self._settings.min_shift_mads and self._sum / self._n > threshold:
            windows = len(self._values) - self._n + 1
            factor = self._settings.min_shift_mads * math.sqrt(2.0) + math.sqrt(2.0 * math.log(windows))
            threshold = max(threshold, reference + factor * self._standard_error(index))
        return threshold, reference

    def _standard_error(self, index: int) -> float:
        if self._spread[0] != index:
            end = len(self._values) - (self._count - 1 - index)
            window = [self._values[i] for i in range(end - self._n, end)]
            middle = median(window)
            mad = median([abs(v - middle) for v in window])
            self._spread = (index, MAD_TO_SIGMA * mad / math.sqrt(self._n))
        return self._spread[1]

    def _lasts(self, reference_us: float, ratio: float) -> bool:
        """Whether enough iterations of the window are slow themselves, and its last quarter still is."""
        limit = ratio * reference_us
        quarter = max(1, self._n // 4)
        end = len(self._values)
        if sum(self._values[i] for i in range(end - quarter, end)) <= limit * quarter:
            return False
        return sum(self._values[i] > limit for i in range(end - self._n, end)) >= MIN_SLOW_SHARE * self._n

    def _relearn(self) -> None:
        """Forget all but the current window: the reference starts from it."""
        window = [self._values[i] for i in range(len(self._values) - self._n, len(self._values))]
        self._restart()
        for value in window:
            self._append(value)

    def _finding(self, mean: float, reference: float, threshold: float) -> Finding:
        what = "the shortest iteration" if self._literal else "the fastest window"
        return Finding(
            figures={
                "observed_us": mean,
                "baseline_us": reference,
                "threshold_us": threshold,
                "ratio": mean / max(reference, 1.0),
            },
            detail=(
                f"the last {self._n} iterations took {mean / 1e3:.1f} ms on average, {mean / max(reference, 1.0):.2f} times "
                f"{what} of the recent {self._recent} ({reference / 1e3:.1f} ms); limit {threshold / 1e3:.1f} ms"
            ),
        )


def blocked_after_us(settings: DetectSettings, mean_us: float, *, started: bool) -> int:
    """Idleness of every rank after which a job counts as blocked ([P] §3: 5 mean iterations), µs.

    Before the first iterations after warm-up a job loads and compiles, so the floor counts ten times.
    """
    floor = settings.blocked_floor_ms * 1_000
    if not started:
        return floor * 10
    return max(floor, math.ceil(settings.blocked_factor * mean_us))
