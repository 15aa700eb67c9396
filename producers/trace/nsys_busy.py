"""Which threads drive the GPU, and when they are within a call of CUDA or NCCL; sixteen bytes a call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from eroica.producers.trace.columns import Ints


class BusyThreads:
    """Collects calls first, is asked afterwards. Times in ns as in the report."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[array[int], array[int]]] = {}
        self._sorted: dict[int, tuple[Ints, Ints]] = {}

    def saw(self, thread: int) -> None:
        """The thread belongs to the step."""
        if thread not in self._calls:
            self._calls[thread] = (array("q"), array("q"))

    def add(self, thread: int, start: int, end: int) -> None:
        """A call."""
        self.saw(thread)
        starts, ends = self._calls[thread]
        starts.append(start)
        ends.append(end)

    def knows(self, thread: int) -> bool:
        """Whether the thread belongs to the step."""
        return thread in self._calls

    def inside(self, moments: Sequence[tuple[int, int]]) -> list[bool]:
        """For each (thread, time): whether that thread is within a call then. No call may be added afterwards."""
        return [self._is_inside(thread, time) for thread, time in moments]

    def _is_inside(self, thread: int, time: int) -> bool:
        if thread not in self._sorted:
            starts, ends = (np.array(c, np.int64) for c in self._calls[thread])
            order = np.argsort(starts, kind="stable")
            self._sorted[thread] = starts[order], np.maximum.accumulate(ends[order])
        starts, reach = self._sorted[thread]
        before = int(np.searchsorted(starts, time, "right"))
        return before > 0 and time < int(reach[before - 1])
