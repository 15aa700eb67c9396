"""Writing events into a ring, and reading what the agent took."""

from __future__ import annotations

import os

import pytest

from eroica.producers.agent.rings import Rings
from eroica.producers.hook import wire
from eroica.producers.hook.ring import Ring

NEEDS_MEMFD = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd: events go as datagrams")
PID = 4242


def put(ring: Ring, first: int, count: int) -> int:
    """How many of *count* events with ascending steps from *first* on found room."""
    return sum(ring.put(wire.ITERATION, step, 1, 2, 3) for step in range(first, first + count))


def steps(records: list[bytes]) -> list[int]:
    events = [wire.unpack(record) for record in records]
    assert all(isinstance(event, wire.Event) and event.pid == PID for event in events)
    return [event.step for event in events if isinstance(event, wire.Event)]


def take_all(rings: Rings) -> list[int]:
    """Look until two looks in a row give nothing."""
    found: list[int] = []
    empty = 0
    while empty < 2:
        records = steps(rings.look())
        found += records
        empty = 0 if records else empty + 1
    return found
