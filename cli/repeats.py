"""Lines of libraries that come again and again, a few of them."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

LIBRARIES = ("aiokafka", "eroica.bus.librdkafka", "faust", "mode")
"""Their clients report every failed try to connect, ten times a second and more."""
AGAIN_S = 30.0
"""So long lines of one kind are held back after one was shown."""
MAX_KINDS = 256
_NUMBER = re.compile(r"\d+")


class FewRepeats(logging.Filter):
    """Of the libraries' lines that differ in numbers at most one in ``AGAIN_S``; the next one tells how many were held back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}
        """When a kind was last shown, and how many were held back since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether *record* is shown."""
        if not record.name.startswith(LIBRARIES):
            return True
        text = record.getMessage()
        kind = (record.name, _NUMBER.sub("#", text[:80]))
        now = self._clock()
        with self._lock:
            shown_at, held = self._kinds.get(kind, (-AGAIN_S, 0))
            if now - shown_at < AGAIN_S:
                self._kinds[kind] = (shown_at, held + 1)
                return False
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            self._kinds[kind] = (now, 0)
        if held:
            record.msg, record.args = f"{text} ({held} more like it were held back)", ()
        return True
