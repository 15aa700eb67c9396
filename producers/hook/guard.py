"""Nothing of ours may reach the training: errors end here, counted."""

from __future__ import annotations

from types import TracebackType

MAX_FAILURES = 100
"""After so many failures the hook switches itself off: something is wrong that trying again will not mend."""


class Guard:
    """A context that swallows and counts errors. ``KeyboardInterrupt``, ``SystemExit`` and the like pass through."""

    __slots__ = ("failures", "last")

    def __init__(self) -> None:
        self.failures = 0
        self.last = ""
        """What failed last, for ``status()``."""

    @property
    def tripped(self) -> bool:
        """True once there were too many failures."""
        return self.failures >= MAX_FAILURES

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.failures += 1
        self.last = f"{type(error).__name__}: {error}"[:200]
        return True
