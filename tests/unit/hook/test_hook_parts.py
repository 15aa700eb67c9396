"""The hook's small pure parts: commands, tokens, the guard, the wire, the environment of a launch."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eroica.producers.hook import wire
from eroica.producers.hook.command import MAX_DURATION_MS, parse_profile
from eroica.producers.hook.guard import Guard
from eroica.producers.hook.launch import STARTUP, environment
from eroica.producers.hook.pauses import GcPauses
from eroica.producers.hook.profiling import Profiling
from eroica.producers.hook.receive import ReceiveWaits
from eroica.producers.hook.registry import Registry
from eroica.producers.hook.sender import RECONNECT_NS, Sender
from eroica.producers.hook.userprofiler import UserProfilers

pytestmark = pytest.mark.unit

GOOD: dict[str, Any] = {
    "kind": "profile",
    "v": 1,
    "request": "r",
    "start_step": 7,
    "steps": 3,
    "duration_ms": 0,
    "with_stack": True,
    "directory": "/dev/shm/x",
    "max_duration_ms": 1000,
}


def test_a_good_command_is_read() -> None:
    command = parse_profile(GOOD)
    assert (command.request, command.start_step, command.steps, command.with_stack) == ("r", 7, 3, True)


BAD: list[dict[str, Any]] = [
    {"v": 2},
    {"request": ""},
    {"request": 3},
    {"request": "x" * 300},
    {"steps": 0},
    {"duration_ms": 5},
    {"steps": -1},
    {"steps": "3"},
    {"steps": True},
    {"directory": "relative"},
    {"directory": None},
    {"directory": "/a\0b"},
    {"start_step": 1.5},
]


@pytest.mark.parametrize("change", BAD, ids=str)
def test_a_bad_command_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_profile({**GOOD, **change})


def test_nothing_lasts_longer_than_the_bound() -> None:
    command = parse_profile({**GOOD, "steps": 0, "duration_ms": 10**12, "max_duration_ms": 10**12})
    assert command.duration_ms == command.max_duration_ms == MAX_DURATION_MS


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), st.none() | st.integers() | st.text() | st.lists(st.integers())))
def test_any_command_is_read_or_refused(change: dict[str, Any]) -> None:
    try:
        parse_profile({**GOOD, **change})
    except ValueError:
        assert change


@given(st.binary(max_size=60))
def test_any_datagram_is_decoded_or_passed_over(data: bytes) -> None:
    assert wire.unpack(data) is None or data[:1] in (b"{", bytes([wire.EVENT_MAGIC]))


def test_an_event_survives_the_wire() -> None:
    event = wire.Event(wire.ITERATION, 2**32 - 1, 2**63, 1, 2, 3)
    assert wire.unpack(wire.pack_event(*event)) == event


class Thing:
    pass


def test_an_object_keeps_its_number_and_a_like_one_inherits_it() -> None:
    registry = Registry()
    first, second = Thing(), Thing()
    assert registry.token(first, "train") == registry.token(first, "train") == 0
    assert registry.token(second, "train") == 1
    del first
    gc.collect()
    third, other = Thing(), Thing()
    assert registry.token(other, "eval") == 2
    assert registry.token(third, "train") == 0
    assert registry.token(second, "train") == 1


def test_objects_without_end_do_not_grow_the_table() -> None:
    registry = Registry()
    for _ in range(10_000):
        registry.token(Thing(), "x")
    assert len(registry._by_id) <= 4096


def test_the_guard_swallows_errors_but_no_interrupt() -> None:
    guard = Guard()
    for _ in range(100):
        assert not guard.tripped
        with guard:
            raise ValueError("x")
    assert guard.tripped
    assert guard.last == "ValueError: x"
    with pytest.raises(KeyboardInterrupt), guard:
        raise KeyboardInterrupt


def test_collections_are_timed_only_while_asked() -> None:
    pauses = GcPauses()
    pauses.start()
    gc.collect()
    pauses.stop()
    gc.collect()
    summary = pauses.summary()
    assert summary["kind"] == "gc"
    assert summary["count"] == 1
    assert 0 < summary["max_us"] <= summary["total_us"]


def agent(directory: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound.bind(str(directory / "agent.sock"))
    bound.setblocking(False)
    return bound


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Short, for a Unix socket's path has about a hundred characters.
    return tmp_path_factory.mktemp("h")


def test_without_an_agent_events_are_counted_and_it_is_looked_for_once_a_second(directory: Path) -> None:
    sender = Sender(1, directory, use_ring=False)
    assert not sender.event(wire.ITERATION, 0, 5, 5, 5)
    with agent(directory) as bound:
        assert not sender.event(wire.ITERATION, 0, 6, 6, 6)
        assert sender.event(wire.ITERATION, 1, 5 + RECONNECT_NS, 7, 7)
        assert wire.unpack(bound.recv(100)) == wire.Event(wire.ITERATION, 1, 1, 5 + RECONNECT_NS, 7, 7)
    assert sender.dropped == 2
    sender.close()
    assert not Path(sender.address).exists()


def test_a_full_agent_blocks_nothing_and_a_new_one_is_found(directory: Path) -> None:
    sender = Sender(1, directory, use_ring=False)
    with agent(directory):
        sent = [sender.event(wire.LOADER_EXIT, i, i, i, i) for i in range(20_000)]
    assert sent[0]
    assert not sent[-1]
    assert sender.dropped == sent.count(False)
    assert not sender.event(wire.ITERATION, 0, 10**9, 0, 0)
    Path(directory / "agent.sock").unlink()
    with agent(directory) as bound:
        assert sender.event(wire.ITERATION, 0, 10**9 + RECONNECT_NS, 0, 0)
        assert sender.connections == 2
        bound.sendto(b'{"kind":"profile"}', sender.address)
        assert sender.receive() == {"kind": "profile"}
        bound.sendto(b"\xff\xfe nonsense", sender.address)
        assert sender.receive() is None
        assert sender.receive() is None
    sender.close()


def test_iterations_and_answers_wait_in_order_for_a_full_agent(directory: Path) -> None:
    sender = Sender(1, directory, use_ring=False)
    with agent(directory) as bound:
        while sender.event(wire.LOADER_EXIT, 0, 1, 1, 1):
            pass
        kept = [sender.event(wire.ITERATION, i, 1, 1, 1) for i in range(300)]
        assert kept == [True] * 256 + [False] * 44
        assert not sender.message({"kind": "profiled"}, 1, keep=True)
        heard: list[object] = []
        while len(heard) < 10_000:
            try:
                heard.append(wire.unpack(bound.recv(100)))
            except BlockingIOError:
                sender.drain(1)
                if not sender._backlog:
                    break
        steps = [event.step for event in heard if isinstance(event, wire.Event) and event.code == wire.ITERATION]
        steps += [event.step for event in everything(bound) if event.code == wire.ITERATION]
        assert steps == list(range(256))
    sender.close()


def everything(bound: socket.socket) -> list[wire.Event]:
    found = []
    while True:
        try:
            event = wire.unpack(bound.recv(100))
        except BlockingIOError:
            return found
        assert isinstance(event, wire.Event)
        found.append(event)


def test_only_the_agents_own_socket_may_send_commands(directory: Path) -> None:
    sender = Sender(1, directory)
    with agent(directory), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        assert sender.event(wire.ITERATION, 0, 1, 1, 1)
        with pytest.raises(PermissionError):
            stranger.sendto(b'{"kind":"profile"}', sender.address)
    sender.close()


def test_a_default_folder_open_to_others_is_not_trusted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(wire.ENV_RUNTIME_DIR, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    sender = Sender(1)
    sender.directory.mkdir(mode=0o700)
    sender.directory.chmod(0o777)
    with agent(sender.directory):
        assert not sender.event(wire.ITERATION, 0, 1, 1, 1)
        sender.directory.chmod(0o700)
        assert sender.event(wire.ITERATION, 0, 1 + RECONNECT_NS, 1, 1)
    sender.close()


def test_a_message_too_large_is_dropped(directory: Path) -> None:
    sender = Sender(1, directory)
    with agent(directory):
        assert not sender.message({"x": "y" * 70_000}, 1)
    assert sender.dropped == 1
    sender.close()


def test_the_environment_of_a_launch() -> None:
    env = environment({"PYTHONPATH": f"/a{os.pathsep}/b", "X": "1"}, job="j", runtime_dir="/r")
    assert env["PYTHONPATH"].split(os.pathsep) == [str(STARTUP), "/a", "/b"]
    assert (env["EROICA_JOB"], env["EROICA_RUNTIME_DIR"], env["X"]) == ("j", "/r", "1")
    assert environment(env, job="j", runtime_dir="/r") == env
    assert "EROICA_JOB" not in environment({})
    assert environment({"KINETO_LOG_LEVEL": "0"})["KINETO_LOG_LEVEL"] == "0"
    assert (STARTUP / "sitecustomize.py").is_file()


def test_receive_waits_add_up_by_source() -> None:
    waits = ReceiveWaits()
    waits.add("ep", [4, 0, 2], [3, 1, 2.0])
    waits.add("ep", (4, 0, 2), torch.tensor([30, 10, 20]))
    assert waits.summary() == [
        {"group": "ep", "ranks": [0, 2, 4], "count": 2, "total_us": [11.0, 22.0, 33.0], "max_us": [10.0, 20.0, 30.0]}
    ]


def test_what_a_function_tells_first_came_before_the_profile() -> None:
    waits, told = ReceiveWaits(), iter([[900, 900], [1, 2], [3, 4]])
    waits.add("ep", [0, 1], lambda: next(told))
    assert waits.summary() == []
    waits.add("ep", [0, 1], lambda: next(told))
    waits.add("ep", [0, 1], lambda: next(told))
    assert waits.summary()[0]["total_us"] == [4.0, 6.0]


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([0, 1], [1.0]),
        ([0, 0], [1.0, 1.0]),
        ([0, -1], [1.0, 1.0]),
        ([0, 1], [1.0, -1.0]),
        ([0, 1], [1.0, float("nan")]),
        ([0, 1], [1.0, float("inf")]),
        ([0, 1], None),
        ([0, 1], ["x", 1]),
        (range(5000), [0.0] * 5000),
    ],
)
def test_waits_that_cannot_be_end_the_collecting(ranks: Any, told: Any) -> None:
    waits = ReceiveWaits()
    waits.add("fine", [0, 1], [1.0, 2.0])
    with pytest.raises((ValueError, TypeError)):
        waits.add("ep", ranks, told)
    waits.add("ep", ranks, told)
    waits.add("fine", [0, 1], [1.0, 2.0])
    assert [(one["group"], one["count"]) for one in waits.summary()] == [("fine", 1)]


def test_exchanges_without_end_are_bounded() -> None:
    waits = ReceiveWaits()
    for number in range(100):
        waits.add(f"exchange {number}", [0, 1], [1.0, 2.0])
    assert len(waits.summary()) == 8
    assert waits.left_out == 92


def test_without_a_profile_nothing_is_looked_at() -> None:
    def told() -> list[float]:
        raise AssertionError("called")

    profiling = Profiling(lambda fields: None, UserProfilers(Guard()), lambda: 0)
    profiling.receive_waits("ep", [0], told)
