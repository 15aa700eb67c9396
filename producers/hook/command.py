"""A profile command as it came from the socket, checked: it is input from outside the process. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, NamedTuple

from eroica.producers.hook.wire import WIRE_VERSION

MAX_STEPS = 1_000
MAX_DURATION_MS = 120_000
"""No profile lasts longer, whatever was asked: a trace grows with every step, and so does the pause at its end."""
MAX_STEP = 1 << 53
MAX_EXPIRES_MS = 3_600_000
EXPIRES_MS = 600_000
"""A command whose first step does not come is given up after this, unless the agent says otherwise."""
MAX_ATTEMPT = 8


class ProfileCommand(NamedTuple):
    """Profile ``steps`` iterations, or ``duration_ms`` to the next boundary, from ``start_step`` on."""

    request: str
    start_step: int
    steps: int
    duration_ms: int
    max_duration_ms: int
    with_stack: bool
    directory: str
    expires_ms: int = EXPIRES_MS
    """So long the first step is waited for."""
    max_trace_bytes: int = 0
    """A larger trace with stacks is thrown away and the profile repeated without; 0: no limit."""
    attempt: int = 1
    """The agent asks again for the same request where it could do nothing with the first answer."""


def parse_profile(message: dict[str, Any]) -> ProfileCommand:
    """Check a ``profile`` message of wire.py.

    :raises ValueError: says which field is wrong.
    """
    if message.get("v") != WIRE_VERSION:
        raise ValueError(f"wire version {message.get('v')!r} is not {WIRE_VERSION}: agent and hook must be of one release")
    steps = _integer(message, "steps", MAX_STEPS)
    duration_ms = _integer(message, "duration_ms", MAX_DURATION_MS)
    if (steps > 0) == (duration_ms > 0):
        raise ValueError("exactly one of steps and duration_ms must be positive")
    directory = message.get("directory")
    if not isinstance(directory, str) or "\0" in directory or not PurePosixPath(directory).is_absolute():
        raise ValueError("directory must be an absolute path")
    return ProfileCommand(
        request=request_id(message),
        start_step=_integer(message, "start_step", MAX_STEP),
        steps=steps,
        duration_ms=duration_ms,
        max_duration_ms=_integer(message, "max_duration_ms", MAX_DURATION_MS) or MAX_DURATION_MS,
        with_stack=message.get("with_stack") is True,
        directory=directory,
        expires_ms=_integer(message, "expires_ms", MAX_EXPIRES_MS) or EXPIRES_MS,
        max_trace_bytes=_integer(message, "max_trace_bytes", MAX_STEP),
        attempt=_integer(message, "attempt", MAX_ATTEMPT) or 1,
    )


def request_id(message: dict[str, Any]) -> str:
    """The request's id.

    :raises ValueError: if there is none, or none that could be one.
    """
    request = message.get("request")
    if not isinstance(request, str) or not 0 < len(request) <= 256:
        raise ValueError("request must be a string of 1 to 256 characters")
    return request


def _integer(message: dict[str, Any], name: str, highest: int) -> int:
    value = message.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number, zero or more")
    return min(value, highest)
