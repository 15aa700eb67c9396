"""The agent's ear: one owner a directory, and a thread that empties socket and rings faster than they can fill."""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import queue
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from eroica.producers.agent.rings import Rings
from eroica.producers.hook.wire import EVENT, GOODBYE, MAX_DATAGRAM_BYTES, Event, unpack
from eroica.schemas.errors import UsageError

RECEIVE_BUFFER_BYTES = 8 * 2**20
MAX_BATCH = 4_096
"""Datagrams handed over at once."""
MAX_SOCKET_PATH = 107
"""Linux's limit for the path of a Unix socket."""
WAKE_S = 0.2
LOOK_S = 0.05
"""The rings are looked into so often; an event is taken at the second look after it."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(4)
"""Room for one descriptor; the kernel closes what is too much."""


class Directory:
    """The runtime directory, owned by this process until :meth:`release` (or its end, however sudden).

    Made with mode 0700 where it is missing, since whoever can write there can command profiles.
    """

    def __init__(self, path: Path) -> None:
        """Take the directory.

        :raises UsageError: another agent lives there, it cannot be used, or it is not safe.
        """
        self.path = path
        if len(os.fsencode(path / "hook-4194304.sock")) > MAX_SOCKET_PATH:
            raise UsageError(
                "the path of the runtime directory is too long for a Unix socket",
                where=str(path),
                do="choose a shorter one with --runtime-dir or EROICA_RUNTIME_DIR",
            )
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found, link = path.stat(), path.lstat()
            self._lock = os.open(path / "agent.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UsageError(
                f"the runtime directory cannot be used ({error.strerror})", where=str(path), do="mend it, or give another"
            ) from error
        # A link of somebody else's would lead the agent's files wherever they like.
        if {found.st_uid, link.st_uid} - {0, os.getuid()} or found.st_mode & stat.S_IWOTH:
            os.close(self._lock)
            raise UsageError(
                "the runtime directory, or the link to it, belongs to somebody else or everybody may write there",
                where=str(path),
                do="use a directory of your own with mode 0700",
            )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise UsageError(
                f"another agent{f' (pid {owner})' if owner.isdigit() else ''} serves this directory",
                where=str(path),
                do="one agent a host is enough; for a second one give another --runtime-dir",
            ) from error
        with suppress(OSError):  # a full disk: then the next agent cannot be told our pid
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        self.swept = _sweep_sockets(path)
        """Sockets of dead processes that were removed."""

    def release(self) -> None:
        """Give the directory up."""
        os.close(self._lock)


class DatagramServer:
    """Receives the hooks' datagrams and events in a thread of its own and sends commands to them.

    The kernel queues few datagrams (``net.unix.max_dgram_qlen``, often 10), and a hook never waits: so the thread does nothing
    but receive and hand over. Events from a ring are handed over as the datagrams that they would be without one.
    """

    def __init__(self, directory: Path, deliver: Callable[[list[bytes]], None]) -> None:
        """Bind ``agent.sock`` in *directory*, over the socket that a dead agent left. The caller owns the directory.

        :param deliver: called from the thread with the datagrams, each process's in their order.
        :raises UsageError: the socket cannot be made.
        """
        self.directory = directory
        self._deliver = deliver
        self._path = directory / "agent.sock"
        self._stop = threading.Event()
        self._rings = Rings()
        self._look_at_s = 0.0
        self._farewells: queue.SimpleQueue[tuple[int, Callable[[], None]]] = queue.SimpleQueue()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        try:
            self._path.unlink(missing_ok=True)
            self._socket.bind(str(self._path))
            self._path.chmod(0o600)
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"the socket cannot be made ({error.strerror})", where=str(self._path), do="give another --runtime-dir"
            ) from error
        self._thread = threading.Thread(target=self._receive, name="eroica-datagrams", daemon=True)
        self._thread.start()

    def command(self, pid: int, message: dict[str, Any]) -> bool | None:
        """Send *message* to the hook of process *pid*: true if taken, false if full, ``None`` if nobody is there."""
        data = json.dumps(message, separators=(",", ":")).encode()
        try:
            self._socket.sendto(data, str(self.directory / f"hook-{pid}.sock"))
        except BlockingIOError:
            return False
        except OSError as error:
            return False if error.errno in (errno.ENOBUFS, errno.ENOMEM) else None
        self._rings.ring_bell(pid)
        return True

    def farewell(self, pid: int, then: Callable[[], None]) -> None:
        """Process *pid* runs no more: deliver what its ring still holds, then call *then*, from the thread."""
        self._farewells.put((pid, then))

    def ring_pids(self) -> list[int]:
        """Processes with a ring."""
        return self._rings.pids()

    @property
    def refused(self) -> int:
        """Descriptors that were no ring, or one too many."""
        return self._rings.refused

    def close(self) -> None:
        """Stop receiving and remove the socket; what had arrived has been delivered."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        with suppress(OSError):
            self._path.unlink()
        self._socket.close()
        if not self._thread.is_alive():
            self._rings.close()

    def _receive(self) -> None:
        while not self._stop.is_set():
            select.select([self._socket], [], [], LOOK_S if len(self._rings) else WAKE_S)
            self._hand_over(self._datagrams())
            if time.monotonic() >= self._look_at_s:
                self._look_at_s = time.monotonic() + LOOK_S
                self._hand_over(self._rings.look())
            self._part()
        # What is complete at one look is taken at the next.
        for _ in range(2):
            time.sleep(LOOK_S / 5)
            self._hand_over(self._rings.look())

    def _hand_over(self, batch: list[bytes]) -> None:
        if batch:
            self._deliver(batch)

    def _datagrams(self) -> list[bytes]:
        """What waits in the socket. A ring that comes with it is taken on; a goodbye comes after what its ring holds."""
        batch: list[bytes] = []
        try:
            while len(batch) < MAX_BATCH:
                data, ancillary, _, _ = self._socket.recvmsg(MAX_DATAGRAM_BYTES + 1, _ANCILLARY_BYTES)
                if ancillary:
                    batch += self._attach(ancillary)
                elif len(data) == EVENT.size:
                    event = unpack(data)
                    if isinstance(event, Event) and event.code == GOODBYE:
                        batch += self._rings.finish(event.pid)
                batch.append(data)
        except BlockingIOError:
            pass
        except OSError:
            if not self._stop.is_set():
                raise
        return batch

    def _attach(self, ancillary: list[tuple[int, int, bytes]]) -> list[bytes]:
        records: list[bytes] = []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                for descriptor in descriptors:
                    records += self._rings.attach(descriptor)
        return records

    def _part(self) -> None:
        with suppress(queue.Empty):
            while True:
                pid, then = self._farewells.get_nowait()
                self._hand_over(self._rings.finish(pid))
                then()


def _sweep_sockets(directory: Path) -> int:
    """Remove the sockets that processes left behind that were killed: of no living process here, and nobody answers on them."""
    removed = 0
    for entry in directory.glob("hook-*.sock"):
        pid = entry.name[len("hook-") : -len(".sock")]
        if not pid.isdigit() or len(pid) > 9 or _lives(int(pid)) or hook_listens(directory, int(pid)):
            continue
        with suppress(OSError):
            if stat.S_ISSOCK(entry.lstat().st_mode):
                entry.unlink()
                removed += 1
    return removed


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def hook_listens(directory: Path, pid: int) -> bool:
    """Whether somebody holds the socket of process *pid*: tells of processes that are in another pid namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(directory / f"hook-{pid}.sock"))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A hook's socket is connected to the agent's, so the kernel refuses everybody else (EPERM): it is there.
            return True
    return True
