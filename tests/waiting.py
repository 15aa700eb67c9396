"""Waiting for what happens elsewhere: in another thread, process or broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")
TIMEOUT_S = 200.0
"""For what takes seconds on a quiet machine."""


def until(
    condition: Callable[[], T],
    complaint: str | Callable[[], str] = "it did not happen in time",
    *,
    timeout_s: float = TIMEOUT_S,
    pause_s: float = 0.05,
) -> T:
    """The first true value of *condition*; fails with *complaint*, asked for only then, when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:g} s: {complaint if isinstance(complaint, str) else complaint()}")
        time.sleep(pause_s)
    return value
