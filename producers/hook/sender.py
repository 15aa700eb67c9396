"""The hook's end of the datagram socket: never blocks, never raises for a missing, slow or dead agent."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from eroica.producers.hook.wire import (
    ENV_RUNTIME_DIR,
    EVENT,
    EVENT_MAGIC,
    ITERATION,
    MAX_DATAGRAM_BYTES,
    runtime_dir,
    unpack,
)

RECONNECT_NS = 1_000_000_000
"""An absent agent is looked for once a second at most."""
SEND_BUFFER_BYTES = 1 << 20
"""Room for the larger hello of a job with many process groups."""
BACKLOG = 256
"""Iterations kept while the agent's queue is full (10 datagrams by default on older kernels), until later events find room."""
LAST_FLUSH_S = 0.1
"""At exit the backlog gets so long to leave."""


class Sender:
    """A non-blocking datagram socket to the host's agent, bound so that the agent can answer.

    Used from the training thread, and by the export thread for one message; each datagram is one system call, and only the
    training thread takes from the backlog, so they do not mix.
    Every method returns quickly whatever the agent does. Since the socket is connected, the kernel lets only the agent's own
    socket (``agent.sock``) send commands to it. Times are passed in (monotonic nanoseconds).
    """

    def __init__(self, pid: int, directory: Path | None = None) -> None:
        self.pid = pid
        self._trusted = directory is not None or bool(os.environ.get(ENV_RUNTIME_DIR))
        self.directory = runtime_dir() if directory is None else directory
        self.address = str(self.directory / f"hook-{pid}.sock")
        self.dropped = 0
        """Datagrams that the agent will never see: it was absent, its queue was full, or they were too large."""
        self.connections = 0
        """How often an agent was found; a change means that it knows nothing of us yet."""
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._connected = False
        self._retry_at_ns = 0
        self._backlog: deque[bytes] = deque()

    def event(self, code: int, step: int, mono_ns: int, wall_ns: int, duration_ns: int) -> bool:
        """Send one event record; false if it was dropped. Iterations that find the queue full go with a later event."""
        if not self._connected and not self._connect(mono_ns):
            self.dropped += 1
            return False
        data = EVENT.pack(EVENT_MAGIC, code, 0, self.pid, step, mono_ns, wall_ns, duration_ns)
        sent = None if self._backlog and not self._flush(mono_ns) else self._attempt(data, mono_ns)
        return bool(sent) or self._keep(data, sent, code == ITERATION)

    def message(self, message: dict[str, Any], mono_ns: int, *, keep: bool = False) -> bool:
        """Send one JSON message; false if it was dropped. With *keep* it waits for room as iterations do."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > MAX_DATAGRAM_BYTES or (not self._connected and not self._connect(mono_ns)):
            self.dropped += 1
            return False
        sent = self._attempt(data, mono_ns)
        return bool(sent) or self._keep(data, sent, keep)

    def drain(self, mono_ns: int) -> None:
        """Before the process ends: give what waits a last, short chance. The one method that may sleep."""
        deadline_s = time.monotonic() + LAST_FLUSH_S
        while self._backlog and not self._flush(mono_ns) and time.monotonic() < deadline_s:
            time.sleep(0.001)

    def receive(self) -> dict[str, Any] | None:
        """The next command that waits on the socket, or ``None``; whatever is no JSON object is passed over."""
        # Asking first costs a third of the exception that an empty socket raises, and it nearly always is empty.
        if self._socket is None or not self._poll.poll(0):
            return None
        try:
            message = unpack(self._socket.recv(MAX_DATAGRAM_BYTES + 1))
        except OSError:
            return None
        return message if isinstance(message, dict) else None

    def close(self, *, unlink: bool = True) -> None:
        """Close the socket; a forked child passes ``unlink=False``, for the address belongs to its parent."""
        self._connected = False
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None
            if unlink:
                with suppress(OSError):
                    Path(self.address).unlink()

    def _attempt(self, data: bytes, mono_ns: int) -> bool | None:
        """True: sent. ``None``: the agent's queue is full. False: the agent is gone."""
        if self._socket is None:
            return False
        try:
            self._socket.send(data)
        except BlockingIOError:
            return None
        except OSError:
            # ECONNREFUSED from a socket that nobody reads any more. A new agent would not know what the backlog is about.
            self._connected = False
            self._retry_at_ns = mono_ns + RECONNECT_NS
            self.dropped += len(self._backlog)
            self._backlog.clear()
            return False
        return True

    def _keep(self, data: bytes, sent: bool | None, wanted: bool) -> bool:
        if sent is None and wanted and len(self._backlog) < BACKLOG:
            self._backlog.append(data)
            return True
        self.dropped += 1
        return False

    def _flush(self, mono_ns: int) -> bool:
        """Send what waits, oldest first; true if nothing waits any more. Only the training thread takes from the backlog."""
        while self._backlog:
            if not self._attempt(self._backlog[0], mono_ns):
                return not self._backlog
            self._backlog.popleft()
        return True

    def _connect(self, mono_ns: int) -> bool:
        if mono_ns < self._retry_at_ns:
            return False
        self._retry_at_ns = mono_ns + RECONNECT_NS
        try:
            if not self._trustworthy():
                return False
            if self._socket is None or not Path(self.address).exists():
                self._bind()
            if self._socket is not None:
                self._socket.connect(str(self.directory / "agent.sock"))
        except OSError:
            return False
        self._connected = True
        self.connections += 1
        return True

    def _trustworthy(self) -> bool:
        """A folder in the shared temporary directory must be ours and closed to others, for its owner may command profiles."""
        if self._trusted:
            return self.directory.is_dir()
        try:
            found = self.directory.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.getuid()) and not found.st_mode & stat.S_IWOTH

    def _bind(self) -> None:
        self.close()
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            fresh.setblocking(False)
            with suppress(OSError):
                fresh.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            with suppress(FileNotFoundError):
                Path(self.address).unlink()
            fresh.bind(self.address)
        except OSError:
            fresh.close()
            raise
        self._poll = select.poll()
        self._poll.register(fresh, select.POLLIN)
        self._socket = fresh
