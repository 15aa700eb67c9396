"""Ctrl-C and SIGTERM as a wish that is read between two steps, and not as an exception wherever the program stands.

An exception out of a handler can get lost: what is called at a fork, by a destructor or by a C library drops it.
"""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Hears both signals while it is entered, if that is in the main thread; a second one has nothing to add."""

    def __init__(self) -> None:
        self._number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            with suppress(TypeError):  # a handler that was not set from Python cannot be put back
                signal.signal(number, handler)

    @property
    def wished(self) -> bool:
        """Whether a signal came."""
        return self._number > 0

    def check(self) -> None:
        """End the run if a signal came.

        :raises KeyboardInterrupt: on Ctrl-C.
        :raises SystemExit: on SIGTERM, with the exit code of a shell.
        """
        if self._number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._number:
            raise SystemExit(128 + self._number)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._number = self._number or number
