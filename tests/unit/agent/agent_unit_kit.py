"""Short ways to make hellos, events and requests, and a full disk."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eroica.producers.agent.hello import Hello, parse_hello
from eroica.producers.hook.wire import ITERATION, WIRE_VERSION, Event
from eroica.schemas.control import ProfileRequest

NOW_US = 1_800_000_000_000_000
MONO_NS = 5_000_000_000_000


def hello_message(pid: int = 100, rank: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "kind": "hello", "v": WIRE_VERSION, "pid": pid, "rank": rank, "world_size": 4, "local_rank": rank, "host": "h",
        "job": "job", "run_id": "run-1", "device": "cpu", "framework": "ddp", "coords": {"dp": rank}, "backend": "gloo",
        "launcher": "torchrun", "python": "3.11", "torch": "2.15", "hook": "dataloader+optimizer", "socket": "/x",
        "groups": [{"name": "0", "desc": "default_pg", "backend": "gloo", "ranks": [0, 1, 2, 3]}], **fields,
    }  # fmt: skip


def hello(pid: int = 100, rank: int = 0, **fields: Any) -> Hello:
    return parse_hello(hello_message(pid, rank, **fields))


def iteration(pid: int, step: int, duration_us: int = 1_000, mono_ns: int = MONO_NS) -> Event:
    return Event(ITERATION, pid, step, mono_ns, NOW_US * 1_000 + step, duration_us * 1_000)


def request(**fields: Any) -> ProfileRequest:
    values: dict[str, Any] = {
        "request": "req-1", "job": "job", "run_id": "run-1", "reason": "manual", "steps": 3, "world_size": 4,
        "classes": {"all": "0-3"}, "issued_at_us": NOW_US, "deadline_ms": 60_000, **fields,
    }  # fmt: skip
    return ProfileRequest(**values)


@contextmanager
def disk_full_at(size: int) -> Iterator[None]:
    """No file may grow beyond *size* bytes: a write is cut there, and the next one refused, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
