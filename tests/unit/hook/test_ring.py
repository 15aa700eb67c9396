"""Events through shared memory: the hook's end, the agent's end, and what neither may do to the other."""

from __future__ import annotations

import mmap
import os
import queue
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.producers.agent.rings import BadRing, Rings
from eroica.producers.agent.rings import Ring as ReadRing
from eroica.producers.agent.server import DatagramServer
from eroica.producers.hook import wire
from eroica.producers.hook.ring import BELL_WORD, Ring
from eroica.producers.hook.sender import RECONNECT_NS, UNATTENDED_NS, Sender

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd: events go as datagrams"),
]
PID = 4242


@pytest.fixture
def folder() -> Iterator[Path]:
    # Short, for a Unix socket's path has about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="ring") as path:
        yield Path(path)


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring(PID)
    made.open()
    yield made
    made.close()


def put(ring: Ring, first: int, count: int) -> int:
    """How many of *count* events with ascending steps from *first* on found room."""
    return sum(ring.put(wire.ITERATION, step, 1, 2, 3) for step in range(first, first + count))


def steps(records: list[bytes]) -> list[int]:
    events = [wire.unpack(record) for record in records]
    assert all(isinstance(event, wire.Event) and event.pid == PID for event in events)
    return [event.step for event in events if isinstance(event, wire.Event)]


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def take_all(rings: Rings) -> list[int]:
    """Look until two looks in a row give nothing."""
    found: list[int] = []
    empty = 0
    while empty < 2:
        records = steps(rings.look())
        found += records
        empty = 0 if records else empty + 1
    return found


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


def heard_until(inbox: queue.SimpleQueue[list[bytes]], count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += inbox.get(timeout=10)
    return found


def test_sender_and_server_use_the_ring_and_the_bell(folder: Path) -> None:
    inbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
    server = DatagramServer(folder, inbox.put)
    sender = Sender(PID, folder)
    assert all(sender.event(wire.ITERATION, step, 1, 2, 3) for step in range(300))
    assert sender.hello({"kind": "hello"}, 1)
    heard = heard_until(inbox, 301)
    assert heard[0] == b'{"kind":"hello"}'
    assert steps(heard[1:]) == list(range(300))
    sender.event(wire.ITERATION, 300, RECONNECT_NS + 2, 2, 3)
    assert sender.channel == "ring"
    assert sender.receive() is None
    for number in range(2):
        assert server.command(PID, {"kind": "profile", "n": number})
    assert [sender.receive() for _ in range(3)] == [{"kind": "profile", "n": 0}, {"kind": "profile", "n": 1}, None]
    sender.goodbye(301, RECONNECT_NS + 3, 2)
    sender.close()
    said = heard_until(inbox, 3)
    assert steps(said) == [300, 301, 301], "the ring first, then the datagram that tells of the end"
    assert server.ring_pids() == []
    server.close()


def test_what_a_stopping_agent_has_not_heard_its_successor_hears(folder: Path) -> None:
    inbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
    server = DatagramServer(folder, inbox.put)
    sender = Sender(PID, folder)
    sender.event(wire.ITERATION, 0, 1, 2, 3)
    sender.hello({}, 1)
    heard_until(inbox, 2)
    server.close()
    now = 1
    for step in range(1, 50):
        assert sender.event(wire.ITERATION, step, now, 2, 3), "there is room for what happens meanwhile"
    server = DatagramServer(folder, inbox.put)
    while sender.connections < 2:
        now += RECONNECT_NS + 1
        sender.event(wire.LOADER_EXIT, 50, now, 2, 3)
    sender.hello({}, now)
    heard = [record for record in heard_until(inbox, 51) if record[:1] != b"{"]
    assert steps(heard)[:49] == list(range(1, 50))
    assert sender.dropped == 0
    sender.close()
    server.close()


def test_an_agent_that_cannot_read_the_ring_gets_datagrams(folder: Path) -> None:
    sender = Sender(PID, folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(folder / "agent.sock"))
        deaf.setblocking(False)
        sender.event(wire.ITERATION, 0, 1, 2, 3)
        sender.hello({}, 1)
        assert sender.channel == "ring"
        now = 1
        while now < UNATTENDED_NS + 2 * RECONNECT_NS:
            now += RECONNECT_NS + 1
            sender.event(wire.ITERATION, now, now, 2, 3)
        assert sender.channel == "datagrams"
        assert sender.dropped > 0, "what was in the ring is lost, and counted"
        heard = []
        while True:
            try:
                heard.append(wire.unpack(deaf.recv(100)))
            except BlockingIOError:
                break
        assert any(isinstance(event, wire.Event) and event.code == wire.ITERATION for event in heard)
    sender.close()


def test_the_farewell_of_a_process_comes_after_its_last_events(folder: Path) -> None:
    said: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
    server = DatagramServer(folder, said.put)
    sender = Sender(PID, folder)
    sender.event(wire.ITERATION, 0, 1, 2, 3)
    sender.hello({}, 1)
    heard_until(said, 2)
    for step in range(1, 6):
        sender.event(wire.ITERATION, step, 1, 2, 3)
    server.farewell(PID, lambda: said.put([b"gone"]))
    heard = heard_until(said, 6)
    assert steps(heard[:-1]) == [1, 2, 3, 4, 5]
    assert heard[-1] == b"gone"
    sender.close()
    server.close()


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
