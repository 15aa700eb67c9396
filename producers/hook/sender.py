"""The hook's way to the agent, ring and datagrams: never blocks, never raises for a missing, slow or dead agent."""

from __future__ import annotations

import array
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

from eroica.producers.hook.ring import BELL_WORD, Ring
from eroica.producers.hook.wire import (
    ENV_RUNTIME_DIR,
    GOODBYE,
    ITERATION,
    MAX_DATAGRAM_BYTES,
    PROBE,
    pack_event,
    runtime_dir,
    unpack,
)

RECONNECT_NS = 1_000_000_000
"""An absent agent is looked for once a second at most; so often the hook asks whether its agent still reads the ring."""
UNATTENDED_NS = 3_000_000_000
"""An agent that has had the ring for so long and never looked into it cannot: events go as datagrams then."""
SEND_BUFFER_BYTES = 1 << 20
"""Room for the larger hello of a job with many process groups."""
BACKLOG = 256
"""Iterations kept while the agent's queue is full (10 datagrams by default on older kernels), until later events find room."""
LAST_FLUSH_S = 0.1
"""At exit the backlog gets so long to leave."""


class Sender:
    """Events into the ring, messages through a non-blocking datagram socket that is bound, so that the agent can answer.

    Used from the training thread, and by the export thread for one message; each datagram is one system call, and only the
    training thread takes from the backlog, so they do not mix.
    Every method returns quickly whatever the agent does. Since the socket is connected, the kernel lets only the agent's own
    socket (``agent.sock``) send commands to it. Times are passed in (monotonic nanoseconds).
    """

    def __init__(self, pid: int, directory: Path | None = None, *, use_ring: bool = True) -> None:
        self.pid = pid
        self._trusted = directory is not None or bool(os.environ.get(ENV_RUNTIME_DIR))
        self.directory = runtime_dir() if directory is None else directory
        self.address = str(self.directory / f"hook-{pid}.sock")
        self.dropped = 0
        """Events and datagrams that the agent will never see: it was absent, ring or queue was full, or they were too large."""
        self.connections = 0
        """How often an agent was found; a change means that it knows nothing of us yet."""
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._connected = False
        self._look_at_ns = 0
        self.ring = Ring(pid)
        """Always the same one. Where its ``put``, the short way of :meth:`event`, answers false, :meth:`event` must be called."""
        self._backlog: deque[bytes] = deque()
        self._use_ring = use_ring
        self._pulse = 0
        self._attended = False
        """The agent of this connection reads the ring."""
        self._offered_ns = 0

    @property
    def channel(self) -> str:
        """How events travel now: ``none``, ``ring`` or ``datagrams``."""
        return "none" if not self._connected else "ring" if self.ring.is_open else "datagrams"

    def event(self, code: int, step: int, mono_ns: int, wall_ns: int, duration_ns: int) -> bool:
        """Tell of one event; false if it was dropped. Iterations that find the datagram queue full go with a later event."""
        if mono_ns >= self._look_at_ns:
            self._look(mono_ns)
        ring = self.ring
        if ring.is_open:
            waits = bool(self._backlog) and not self._flush(mono_ns)
            ring.alarm_ns = self._look_at_ns
            # What an agent has not read stays for its successor, as far as there is room.
            told = ring.put(code, step, mono_ns, wall_ns, duration_ns)
            if waits:
                ring.alarm_ns = 0
            if told:
                return True
        elif self._connected:
            data = pack_event(code, self.pid, step, mono_ns, wall_ns, duration_ns)
            sent = None if self._backlog and not self._flush(mono_ns) else self._attempt(data, mono_ns)
            return bool(sent) or self._keep(data, sent, code == ITERATION)
        self.dropped += 1
        return False

    def hello(self, message: dict[str, Any], mono_ns: int) -> bool:
        """Send one JSON message with the ring's descriptor; false if it was dropped."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > MAX_DATAGRAM_BYTES or not self._connected:
            self.dropped += 1
            return False
        sent = self._attempt(data, mono_ns, self.ring if self.ring.is_open else None)
        if sent and not self._offered_ns:
            self._offered_ns = mono_ns
        return bool(sent) or self._keep(data, sent, False)

    def message(self, message: dict[str, Any], mono_ns: int, *, keep: bool = False) -> bool:
        """Send one JSON message; false if it was dropped. With *keep* it waits for room as iterations do."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if mono_ns >= self._look_at_ns:
            self._look(mono_ns)
        if len(data) > MAX_DATAGRAM_BYTES or not self._connected:
            self.dropped += 1
            return False
        sent = self._attempt(data, mono_ns)
        return bool(sent) or self._keep(data, sent, keep)

    def goodbye(self, step: int, mono_ns: int, wall_ns: int) -> None:
        """The last event, also as a datagram: then the agent knows at once, and reads what is left in the ring first."""
        self.event(GOODBYE, step, mono_ns, wall_ns, 0)
        if self.ring.is_open and self._connected:
            self._attempt(pack_event(GOODBYE, self.pid, step, mono_ns, wall_ns, 0), mono_ns)

    def drain(self, mono_ns: int) -> None:
        """Before the process ends: give what waits a last, short chance. The one method that may sleep."""
        deadline_s = time.monotonic() + LAST_FLUSH_S
        while self._backlog and not self._flush(mono_ns) and time.monotonic() < deadline_s:
            time.sleep(0.001)

    def receive(self) -> dict[str, Any] | None:
        """The next command that waits on the socket, or ``None``; whatever is no JSON object is passed over."""
        ring = self.ring
        bell = ring.words[BELL_WORD]
        if bell == ring.heard or self._socket is None:
            return None
        # Asking first costs a third of the exception that an empty socket raises, and it nearly always is empty.
        if not self._poll.poll(0):
            if self._attended:
                ring.heard = bell
            return None
        try:
            message = unpack(self._socket.recv(MAX_DATAGRAM_BYTES + 1))
        except OSError:
            return None
        return message if isinstance(message, dict) else None

    def close(self, *, unlink: bool = True) -> None:
        """Close socket and ring; a forked child passes ``unlink=False``, for the address belongs to its parent."""
        self._connected = False
        self._look_at_ns = 1 << 63
        self._drop_ring()
        if self._socket is not None and unlink:
            with suppress(OSError):
                Path(self.address).unlink()
        self._close_socket()

    def _attempt(self, data: bytes, mono_ns: int, ring: Ring | None = None) -> bool | None:
        """True: sent. ``None``: the agent's queue is full. False: the agent is gone."""
        if self._socket is None:
            return False
        try:
            if ring is None:
                self._socket.send(data)
            else:
                self._socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ring.fd]))])
        except BlockingIOError:
            return None
        except OSError:
            # ECONNREFUSED from a socket that nobody reads any more. A new agent would not know what the backlog is about.
            self._connected = False
            self._look_at_ns = mono_ns + RECONNECT_NS
            self.dropped += len(self._backlog)
            self._backlog.clear()
            return False
        return True

    def _keep(self, data: bytes, sent: bool | None, wanted: bool) -> bool:
        if sent is None and wanted and len(self._backlog) < BACKLOG:
            self._backlog.append(data)
            self.ring.alarm_ns = 0
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

    def _close_socket(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None

    def _look(self, mono_ns: int) -> None:
        """Once a second: look for an agent, or ask whether the one that was found is still there."""
        self._look_at_ns = mono_ns + RECONNECT_NS
        ring = self.ring
        if self._connected and ring.is_open:
            pulse = ring.pulse
            # Whatever became of the bell, once a second the socket itself is asked for commands.
            ring.heard = -1
            if pulse != self._pulse:
                self._pulse = pulse
                self._attended = True
            elif (
                self._attempt(pack_event(PROBE, self.pid, 0, mono_ns, 0, 0), mono_ns) is not False
                and not self._attended
                and self._offered_ns
                and mono_ns - self._offered_ns >= UNATTENDED_NS
            ):
                self._use_ring = False
                self._drop_ring()
        if not self._connected:
            self._connect()

    def _connect(self) -> None:
        try:
            if not self._trustworthy():
                return
            if self._socket is None or not Path(self.address).exists():
                self._bind()
            if self._socket is not None:
                self._socket.connect(str(self.directory / "agent.sock"))
        except OSError:
            return
        self._connected = True
        self.connections += 1
        self._attended = False
        self._offered_ns = 0
        ring = self.ring
        ring.heard = -1
        if self._use_ring and not ring.is_open:
            try:
                ring.open()
            except (OSError, AttributeError):
                self._use_ring = False
        self._pulse = ring.pulse if ring.is_open else 0

    def _drop_ring(self) -> None:
        self._attended = False
        if self.ring.is_open:
            self.dropped += self.ring.unread
            self.ring.close()

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
        self._close_socket()
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
