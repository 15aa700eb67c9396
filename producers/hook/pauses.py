"""What stands still while a profile runs and is not in the trace: Python's garbage collector."""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from typing import Any


class GcPauses:
    """Times garbage collections between :meth:`start` and :meth:`stop`; outside of them it costs nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0
        self._began_ns = 0

    def start(self) -> None:
        """Begin to listen."""
        gc.callbacks.append(self._on_gc)

    def stop(self) -> None:
        """End listening; may be called more than once."""
        with suppress(ValueError):
            gc.callbacks.remove(self._on_gc)

    def summary(self) -> dict[str, Any]:
        """The pauses as written beside the trace, in microseconds."""
        return {
            "kind": "gc",
            "count": self.count,
            "total_us": round(self.total_ns / 1e3, 1),
            "max_us": round(self.max_ns / 1e3, 1),
        }

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._began_ns = now_ns
        elif self._began_ns:
            pause_ns = now_ns - self._began_ns
            self.count += 1
            self.total_ns += pause_ns
            self.max_ns = max(self.max_ns, pause_ns)
            self._began_ns = 0
