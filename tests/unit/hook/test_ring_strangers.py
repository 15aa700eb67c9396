"""What lies in a ring or is sent as one comes from another process: neither end can be hurt by it."""

from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_kit import NEEDS_MEMFD, PID, put, steps

from eroica.producers.agent.rings import BadRing, Rings
from eroica.producers.agent.rings import Ring as ReadRing
from eroica.producers.hook import wire
from eroica.producers.hook.ring import Ring

pytestmark = [pytest.mark.unit, NEEDS_MEMFD]


def test_nobody_can_take_the_memory_away(ring: Ring) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(ring.fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(ring.fd, 2 * wire.RING_BYTES)


@pytest.mark.parametrize("taken", [2**64 - 1, 2**63, wire.RING_SLOTS + 1])
def test_a_senseless_agent_cannot_make_the_hook_overwrite_or_fail(ring: Ring, taken: int) -> None:
    put(ring, 0, wire.RING_SLOTS)
    os.pwrite(ring.fd, wire.RING_STATE.pack(taken, 7), wire.RING_STATE_AT)
    assert put(ring, 0, 10) == 0
    assert 0 <= ring.unread <= wire.RING_SLOTS


def sealed(content: bytes, size: int = wire.RING_BYTES, seals: bool = True) -> int:
    import fcntl

    made = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(made, size)
    os.pwrite(made, content, 0)
    if seals:
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return made


HEAD = wire.RING_HEAD.pack(wire.RING_MAGIC, wire.WIRE_VERSION, 0, PID, wire.RING_SLOTS)
NO_RINGS = {
    "unsealed": lambda: sealed(HEAD, seals=False),
    "short": lambda: sealed(HEAD, size=4_096),
    "no head": lambda: sealed(b""),
    "another release": lambda: sealed(wire.RING_HEAD.pack(wire.RING_MAGIC, 99, 0, PID, wire.RING_SLOTS)),
    "another size": lambda: sealed(wire.RING_HEAD.pack(wire.RING_MAGIC, wire.WIRE_VERSION, 0, PID, 2**31)),
    "a pipe": lambda: os.pipe()[0],
    "a folder": lambda: os.open("/", os.O_RDONLY),
    "a device": lambda: os.open("/dev/zero", os.O_RDONLY),
    "a file": lambda: os.open(__file__, os.O_RDONLY),
    "read only": lambda: os.open(f"/proc/self/fd/{sealed(HEAD)}", os.O_RDONLY),
}


@pytest.mark.parametrize("kind", NO_RINGS)
def test_what_is_no_ring_is_refused_and_closed(kind: str) -> None:
    rings = Rings()
    descriptor = NO_RINGS[kind]()
    assert rings.attach(descriptor) == []
    assert (rings.refused, len(rings)) == (1, 0)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)
    with pytest.raises(BadRing):
        ReadRing(NO_RINGS[kind]())


SLOT_CONTENT = st.builds(
    wire.SLOT.pack,
    st.sampled_from([wire.EVENT_MAGIC, 0]),
    st.integers(0, 255),
    st.just(0),
    st.sampled_from([PID, PID + 1]),
    *[st.integers(0, 2**64 - 1)] * 4,
    st.integers(0, 9) | st.integers(0, 3).map(lambda n: n + wire.RING_SLOTS) | st.integers(0, 2**64 - 1),
)


@settings(max_examples=60)
@given(
    st.lists(st.lists(SLOT_CONTENT, max_size=8), max_size=6),
    st.binary(min_size=16, max_size=16) | st.integers(0, 5).map(lambda n: wire.RING_STATE.pack(n, 0)),
)
def test_whatever_lies_in_a_ring_the_agent_lives_and_takes_little(rounds: list[list[bytes]], state: bytes) -> None:
    descriptor = sealed(HEAD)
    os.pwrite(descriptor, state, wire.RING_STATE_AT)
    rings = Rings()
    rings.attach(os.dup(descriptor))
    for slots in rounds:
        os.pwrite(descriptor, b"".join(slots), wire.RING_HEADER_BYTES)
        for record in rings.look():
            event = wire.unpack(record)
            assert record == b"" or (isinstance(event, wire.Event) and event.pid == PID)
    assert len(rings.finish(PID)) <= 2 * wire.RING_SLOTS
    os.close(descriptor)


def test_a_writer_that_came_round_too_early_is_followed_again(ring: Ring) -> None:
    rings = Rings()
    rings.attach(os.dup(ring.fd))
    put(ring, 0, 100)
    memory = mmap.mmap(ring.fd, wire.RING_BYTES)
    for number in range(wire.RING_SLOTS, wire.RING_SLOTS + 3):
        at = wire.RING_HEADER_BYTES + (number - wire.RING_SLOTS) * wire.SLOT.size
        wire.SLOT.pack_into(memory, at, wire.EVENT_MAGIC, wire.ITERATION, 0, PID, number, 1, 2, 3, number + 1)
    memory.close()
    heard = [record for _ in range(4) for record in rings.look()]
    assert heard[0] == b"", "what was lost is counted"
    assert steps(heard[1:]) == [wire.RING_SLOTS + n for n in range(3)]
    rings.close()
