"""Keeps out of the way of the program's own torch profilers: torch allows one at a time, and the user's comes first."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from eroica.producers.hook.guard import Guard


class UserProfilers:
    """Knows the profilers that the program itself has prepared or started, and says when one is about to start."""

    def __init__(self, guard: Guard) -> None:
        self.on_start: Callable[[], None] = _nothing
        self._guard = guard
        self._ours = 0
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._enabled: Callable[[], bool] = _never

    def install(self, torch: Any) -> None:
        """Wrap the two methods of ``torch.autograd.profiler.profile`` through which every torch profiler starts and ends."""
        module = torch.autograd.profiler
        self._enabled = torch.autograd._profiler_enabled
        prepare, leave = module.profile._prepare_trace, module.profile.__exit__

        @functools.wraps(prepare)
        def prepare_trace(profiler: Any) -> Any:
            if not self._ours:
                with self._guard:
                    self.on_start()
                    self._alive.add(profiler)
            return prepare(profiler)

        @functools.wraps(leave)
        def exit_trace(profiler: Any, *args: Any) -> Any:
            self._alive.discard(profiler)
            return leave(profiler, *args)

        module.profile._prepare_trace, module.profile.__exit__ = prepare_trace, exit_trace
        for name in ("emit_nvtx", "emit_itt"):
            self._wrap_enter(getattr(module, name, None))

    def running(self) -> bool:
        """True if a profiler that is not ours collects or is warming up."""
        return bool(self._enabled()) or len(self._alive) > 0

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What is started or stopped inside is our own profiler."""
        self._ours += 1
        try:
            yield
        finally:
            self._ours -= 1

    def _wrap_enter(self, kind: Any) -> None:
        if kind is None:
            return
        enter = kind.__enter__

        @functools.wraps(enter)
        def wrapped(profiler: Any) -> Any:
            with self._guard:
                self.on_start()
            return enter(profiler)

        kind.__enter__ = wrapped


def _nothing() -> None:
    """Before anyone listens."""


def _never() -> bool:
    """Before torch is known."""
    return False
