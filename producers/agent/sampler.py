"""Sampling hardware and host while somebody is being profiled, in threads of its own: a driver that hangs costs its own figures
and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from eroica.producers.agent.hostmetrics import Family, HostMetrics
from eroica.producers.agent.readings import Absent, Moments, Source, moment
from eroica.schemas.summaries import Metric

_log = logging.getLogger(__name__)

WANTED_S = 2.0
"""Sampling goes on for so long after the last call of :meth:`Sampler.want`."""
AGAIN_S = 600.0
"""An absent source is looked for again after this, for it may have been started since; it is said once."""
HANG_S = 10.0
MAX_FAILURES = 20
"""In a row; then the source rests."""
MakeSource = Callable[[], Source]


class Sampled:
    """One source in its own thread, which starts with the first call of :meth:`want` and sleeps when nobody wants figures."""

    def __init__(self, name: str, interval_s: float, now_us: Callable[[], int]) -> None:
        self.name = name
        self.failures = 0
        """Reads that failed, all together."""
        self._interval_s, self._now_us = interval_s, now_us
        self._pids: frozenset[int] = frozenset()
        self._until = 0.0
        self._busy_since = 0.0
        self._go, self._soon, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def want(self, pids: frozenset[int]) -> None:
        """Sample for the next :data:`WANTED_S`. Never blocks."""
        if self._closed.is_set():
            return
        self._pids = pids
        self._until = time.monotonic() + WANTED_S
        self._go.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"eroica-sample-{self.name}", daemon=True)
            self._thread.start()
        busy = self._busy_since
        if busy and time.monotonic() - busy > HANG_S:
            self._say("hang", "does not answer: the summaries go without it")

    def at_once(self) -> None:
        """Take the next sample now."""
        self._soon.set()

    def close(self) -> None:
        """End the thread; one that hangs ends with the process."""
        self._closed.set()
        self._go.set()
        self._soon.set()

    @property
    def last_us(self) -> int:
        """When the last sample was taken; 0 before."""
        raise NotImplementedError

    @property
    def silent(self) -> bool:
        """Whether nothing can be expected of it now: it rests, hangs or is absent."""
        raise NotImplementedError

    def metrics(self, start_us: int, end_us: int) -> list[Metric]:
        """The window's figures."""
        raise NotImplementedError

    def _sample(self, pids: frozenset[int]) -> float:
        """Take one sample; returns for how long to rest, 0 for not at all."""
        raise NotImplementedError

    def _run(self) -> None:
        in_a_row = 0
        while not self._closed.is_set():
            self._go.wait()
            if self._closed.is_set():
                return
            if time.monotonic() >= self._until:
                self._go.clear()
                continue
            rest_s = 0.0
            self._busy_since = time.monotonic()
            try:
                rest_s = self._sample(self._pids)
                in_a_row = 0
            except Exception as error:  # noqa: BLE001 - whatever a driver, its binding or a page does: the thread goes on
                self.failures += 1
                in_a_row += 1
                self._say("failed", f"could not be read ({type(error).__name__}: {error})"[:300])
                rest_s = AGAIN_S if in_a_row >= MAX_FAILURES else 0.0
            finally:
                self._busy_since = 0.0
            if rest_s:
                in_a_row = 0
                self._rest(rest_s)
            else:
                self._soon.wait(self._interval_s)
                self._soon.clear()

    def _rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._closed.is_set() and (left := end - time.monotonic()) > 0:
            self._soon.wait(left)
            self._soon.clear()

    def _say(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            _log.info("%s: %s", self.name, text)


class SampledSource(Sampled):
    """A source of :class:`~eroica.producers.agent.readings.Reading`."""

    def __init__(self, name: str, make: MakeSource, interval_s: float, now_us: Callable[[], int]) -> None:
        super().__init__(name, interval_s, now_us)
        self._make = make
        self._source: Source | None = None
        self._absent = False
        self._family = Family()
        self.moments = Moments()

    @property
    def last_us(self) -> int:
        """When the last sample was taken; 0 before."""
        return self.moments.last_us

    @property
    def silent(self) -> bool:
        """Whether it is absent, or hangs."""
        return self._absent or bool(self._busy_since and time.monotonic() - self._busy_since > 1.0)

    @property
    def owners(self) -> Mapping[int, frozenset[int]]:
        """GPU → processes on it, where the source tells."""
        return getattr(self._source, "owners", {})

    def metrics(self, start_us: int, end_us: int) -> list[Metric]:
        """The window's figures."""
        return self.moments.metrics(start_us, end_us)

    def _sample(self, pids: frozenset[int]) -> float:
        try:
            if self._source is None:
                self._source = self._make()
                self._absent = False
            at_us = self._now_us()
            self.moments.add(moment(at_us, self._source.read(frozenset(self._family.of(at_us, pids)))))
        except Absent as error:
            self._source, self._absent = None, True
            self._say("absent", f"absent on this host: {error}"[:300])
            return AGAIN_S
        return 0.0


class SampledHost(Sampled):
    """The host's own figures."""

    def __init__(self, interval_s: float, now_us: Callable[[], int], metrics: HostMetrics | None = None) -> None:
        super().__init__("host", interval_s, now_us)
        self._metrics = metrics or HostMetrics()
        self._finish = False

    @property
    def last_us(self) -> int:
        """When the last sample was taken; 0 before."""
        return self._metrics.last_us

    @property
    def silent(self) -> bool:
        """Whether it hangs."""
        return bool(self._busy_since and time.monotonic() - self._busy_since > 1.0)

    def at_once(self) -> None:
        """Take the next sample now, even if the last is not long ago."""
        self._finish = True
        super().at_once()

    def metrics(self, start_us: int, end_us: int) -> list[Metric]:
        """The window's figures."""
        return list(self._metrics.window(start_us, end_us))

    def _sample(self, pids: frozenset[int]) -> float:
        at_end, self._finish = self._finish, False
        self._metrics.sample(self._now_us(), sorted(pids), at_end=at_end)
        return 0.0


def wait_for(sampled: Iterable[Sampled], end_us: int, longest_s: float) -> None:
    """Wait, in a thread that may, until every source has a sample after *end_us*, or none can be expected of it."""
    deadline = time.monotonic() + longest_s
    for one in sampled:
        while one.last_us < end_us and not one.silent and time.monotonic() < deadline:
            time.sleep(0.01)
