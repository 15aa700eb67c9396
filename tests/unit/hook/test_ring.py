"""Events through shared memory: all of them, once, in order, also to an agent that takes another's place."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ring_kit import NEEDS_MEMFD, PID, put, steps, take_all

from eroica.producers.agent.rings import Rings
from eroica.producers.hook import wire
from eroica.producers.hook.ring import BELL_WORD, Ring

pytestmark = [pytest.mark.unit, NEEDS_MEMFD]


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_all_events_come_in_order_round_and_round(ring: Ring) -> None:
    rings = Rings()
    assert rings.attach(os.dup(ring.fd)) == []
    heard: list[int] = []
    sent = 0
    while sent < 3 * wire.RING_SLOTS:
        sent += put(ring, sent, 777)
        heard += steps(rings.look())
    heard += take_all(rings)
    assert heard == list(range(sent))
    rings.close()


def test_an_event_is_taken_at_the_second_look_after_it(ring: Ring) -> None:
    rings = Rings()
    rings.attach(os.dup(ring.fd))
    put(ring, 0, 1)
    assert rings.look() == []
    put(ring, 1, 1)
    assert steps(rings.look()) == [0]
    assert steps(rings.look()) == [1]
    rings.close()


def test_an_event_that_cannot_be_told_leaves_no_gap(ring: Ring) -> None:
    rings = Rings()
    rings.attach(os.dup(ring.fd))
    put(ring, 0, 1)
    for step in (-1, 2**64, 1.5):
        with pytest.raises((TypeError, ValueError)):
            ring.put(wire.ITERATION, step, 1, 2, 3)  # type: ignore[arg-type]
    put(ring, 1, 1)
    assert take_all(rings) == [0, 1]
    rings.close()


def test_a_full_ring_refuses_until_there_is_room(ring: Ring) -> None:
    rings = Rings()
    rings.attach(os.dup(ring.fd))
    assert put(ring, 0, wire.RING_SLOTS + 5) == wire.RING_SLOTS
    assert ring.unread == wire.RING_SLOTS
    assert take_all(rings) == list(range(wire.RING_SLOTS))
    assert put(ring, 9_000, 1) == 1
    assert take_all(rings) == [9_000]
    rings.close()


def test_only_an_open_ring_takes_events() -> None:
    ring = Ring(PID)
    assert put(ring, 0, 1) == 0
    ring.open()
    assert put(ring, 0, 1) == 1
    for _ in range(2):
        ring.close()
        assert put(ring, 1, 1) == 0
    assert not ring.is_open


def test_an_agents_successor_goes_on_where_it_ended(ring: Ring) -> None:
    first = Rings()
    first.attach(os.dup(ring.fd))
    put(ring, 0, 10)
    first.look()
    put(ring, 10, 10)
    assert steps(first.look()) == list(range(10))
    # It is killed: nothing of it is closed in an orderly way.
    second = Rings()
    second.attach(os.dup(ring.fd))
    assert take_all(second) == list(range(10, 20))
    second.close()
    first.close()


def test_what_a_dead_process_left_is_read_to_the_end(ring: Ring) -> None:
    rings = Rings()
    rings.attach(os.dup(ring.fd))
    put(ring, 0, 3_000)
    ring.put(wire.GOODBYE, 3_000, 1, 2, 3)
    assert steps(rings.finish(PID)) == list(range(3_001))
    assert rings.pids() == []
    assert rings.finish(PID) == []


def test_the_same_ring_twice_is_one_and_another_takes_its_place(ring: Ring) -> None:
    rings = Rings()
    before = open_descriptors()
    rings.attach(os.dup(ring.fd))
    rings.attach(os.dup(ring.fd))
    assert open_descriptors() == before + 1
    put(ring, 0, 4)
    other = Ring(PID)
    other.open()
    put(other, 100, 2)
    assert steps(rings.attach(os.dup(other.fd))) == [0, 1, 2, 3]
    assert take_all(rings) == [100, 101]
    other.close()
    rings.close()
    assert open_descriptors() == before


def test_a_child_that_gives_its_copy_up_leaves_the_parents_alone(ring: Ring) -> None:
    rings = Rings()
    rings.attach(os.dup(ring.fd))
    put(ring, 0, 1)
    child = os.fork()
    if child == 0:
        ring.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    put(ring, 1, 1)
    assert take_all(rings) == [0, 1]
    rings.close()


def test_two_threads_of_the_agent_do_not_meet(ring: Ring) -> None:
    import threading

    rings = Rings()
    rings.attach(os.dup(ring.fd))
    ended = threading.Event()

    def ring_bells() -> None:
        while not ended.is_set():
            rings.ring_bell(PID)
            rings.ring_bell(PID + 1)

    thread = threading.Thread(target=ring_bells)
    thread.start()
    heard: list[int] = []
    deadline = time.monotonic() + 20
    sent = 0
    while sent < 10_000 and time.monotonic() < deadline:
        sent += put(ring, sent, 50)
        heard += steps(rings.look())
    ended.set()
    thread.join()
    assert heard + take_all(rings) == list(range(sent))
    assert ring.words[BELL_WORD]
    rings.close()
