"""Nothing of ours may reach the training: errors end here, counted."""

from __future__ import annotations

from types import TracebackType

MAX_FAILURES = 100
"""After so many failures the hook switches itself off: something is wrong that trying again will not mend."""


class Guard:
    """A context that swallows and counts errors. ``KeyboardInterrupt``, ``SystemExit`` and the like pass through.

    The hot paths catch ``Exception`` themselves and call :meth:`note`: entering a context costs as much as telling an event.
    """

    __slots__ = ("failures", "last", "tripped")

    def __init__(self) -> None:
        self.failures = 0
        self.last = ""
        """What failed last, for ``status()``."""
        self.tripped = False
        """True once there were too many failures."""

    def note(self, error: Exception) -> None:
        """Count an error that was swallowed."""
        self.failures += 1
        self.tripped = self.failures >= MAX_FAILURES
        self.last = f"{type(error).__name__}: {error}"[:200]

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.note(error)
        return True
