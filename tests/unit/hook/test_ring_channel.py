"""Sender and server with a ring between them, and where the ring cannot be."""

from __future__ import annotations

import queue
import socket
from pathlib import Path

import pytest
from ring_kit import NEEDS_MEMFD, PID, steps

from eroica.producers.agent.server import DatagramServer
from eroica.producers.hook import wire
from eroica.producers.hook.sender import RECONNECT_NS, UNATTENDED_NS, Sender

pytestmark = [pytest.mark.unit, NEEDS_MEMFD]


def heard_until(inbox: queue.SimpleQueue[list[bytes]], count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += inbox.get(timeout=300)
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
