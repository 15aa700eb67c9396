from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from eroica.producers.agent.rings import Rings
from eroica.producers.hook import wire

LOOPS = Path(__file__).with_name("hooked_loops.py")


IDLE_S = 60.0
"""Between two looks at nothing: many agents wait beside each other, and their processor time is missing elsewhere."""


class FakeAgent:
    """The agent's ear: keeps what it hears and answers each first hello with a profile command, if told one.

    A process that waits for the file ``told-PID`` (``told-again-PID`` for :attr:`follow`) has the command before its next step.
    """

    def __init__(self, directory: Path, command: dict[str, Any] | None = None, *, awaited: bool = False) -> None:
        """:param awaited: the loop stands still until it has the command."""
        directory.mkdir(exist_ok=True)
        if awaited:
            (directory / "awaits").touch()
        self.directory = directory
        self.command = command
        self.follow: dict[str, Any] | None = None
        """Sent once, when the first answer to a profile command comes."""
        self.events: list[wire.Event] = []
        self.messages: list[dict[str, Any]] = []
        self.strange = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / "agent.sock"))
        self._rings = Rings()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
                bell.sendto(b"", str(self.directory / "agent.sock"))
            self._thread.join()
            self._socket.close()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["kind"] == kind]

    def codes(self, code: int) -> list[wire.Event]:
        return [event for event in self.events if event.code == code]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return found

    def _run(self) -> None:
        while True:
            self._socket.settimeout(0.02 if self._rings.pids() or self._ended.is_set() else IDLE_S)
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, wire.MAX_DATAGRAM_BYTES + 1, 1)
            except TimeoutError:
                self._hear(self._rings.look())
                if self._ended.is_set():
                    for pid in self._rings.pids():
                        self._hear(self._rings.finish(pid))
                    return
                continue
            if not data:
                continue
            for descriptor in descriptors:
                self._rings.attach(descriptor)
            message = wire.unpack(data)
            if isinstance(message, wire.Event) and message.code == wire.GOODBYE:
                self._hear(self._rings.finish(message.pid))
            self._hear([data])

    def _hear(self, datagrams: list[bytes]) -> None:
        for data in datagrams:
            message = wire.unpack(data)
            if isinstance(message, wire.Event):
                self.events.append(message)
            elif message is None:
                self.strange += 1
            else:
                self.messages.append(message)
                if message["kind"] == "hello" and self.command is not None:
                    self._tell(self.command, message["socket"], message["pid"], "told")
                if message["kind"] == "profiled" and self.follow is not None:
                    self._tell(self.follow, str(self.directory / f"hook-{message['pid']}.sock"), message["pid"], "told-again")
                    self.follow = None

    def _tell(self, command: dict[str, Any], address: str, pid: int, mark: str) -> None:
        self._socket.sendto(json.dumps(command).encode(), address)
        self._rings.ring_bell(pid)
        (self.directory / f"{mark}-{pid}").touch()


def profile_command(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "profile",
        "v": 1,
        "request": "req-1",
        "start_step": 40,
        "steps": 3,
        "duration_ms": 0,
        "with_stack": True,
        "directory": str(folder),
        "max_duration_ms": 60_000,
        **changes,
    }


def environ(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("EROICA_", "SLURM_", "OMPI_"))}
    return {**kept, "KINETO_LOG_LEVEL": "5", "OMP_NUM_THREADS": "1", **more}


def run_loops(root: Path, names: list[str], script: Path = LOOPS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), str(root), *names],
        env=environ(EROICA_JOB="loops"),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


class Helpers:
    """What tests of this folder share; a fixture, for test folders are no packages."""

    FakeAgent = FakeAgent
    until = staticmethod(until)
    profile_command = staticmethod(profile_command)
    environ = staticmethod(environ)
    run_loops = staticmethod(run_loops)


@pytest.fixture(scope="session")
def helpers() -> type[Helpers]:
    return Helpers


@pytest.fixture(scope="session")
def short_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose path leaves room for a Unix socket's name."""
    yield tmp_path_factory.mktemp("k")
