"""The agent's socket: one owner a directory, and a thread that empties it faster than it can fill."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from eroica.producers.hook.wire import MAX_DATAGRAM_BYTES
from eroica.schemas.errors import UsageError

RECEIVE_BUFFER_BYTES = 8 * 2**20
MAX_BATCH = 4_096
"""Datagrams handed over at once."""
MAX_SOCKET_PATH = 107
"""Linux's limit for the path of a Unix socket."""
WAKE_S = 0.2


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
            found = path.stat()
            self._lock = os.open(path / "agent.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UsageError(
                f"the runtime directory cannot be used ({error.strerror})", where=str(path), do="mend it, or give another"
            ) from error
        if found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH:
            os.close(self._lock)
            raise UsageError(
                "the runtime directory belongs to somebody else or everybody may write there",
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
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Give the directory up."""
        os.close(self._lock)


class DatagramServer:
    """Receives the hooks' datagrams in a thread of its own and sends commands to them.

    The kernel queues few datagrams (``net.unix.max_dgram_qlen``, often 10), and a hook never waits: so the thread does nothing
    but receive and hand over.
    """

    def __init__(self, directory: Path, deliver: Callable[[list[bytes]], None]) -> None:
        """Bind ``agent.sock`` in *directory*, over the socket that a dead agent left. The caller owns the directory.

        :param deliver: called from the thread with the datagrams in their order.
        :raises UsageError: the socket cannot be made.
        """
        self._directory = directory
        self._deliver = deliver
        self._path = directory / "agent.sock"
        self._stop = threading.Event()
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
            self._socket.sendto(data, str(self._directory / f"hook-{pid}.sock"))
        except BlockingIOError:
            return False
        except OSError as error:
            return False if error.errno in (errno.ENOBUFS, errno.ENOMEM) else None
        return True

    def close(self) -> None:
        """Stop receiving and remove the socket; what had arrived has been delivered."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        with suppress(OSError):
            self._path.unlink()
        self._socket.close()

    def _receive(self) -> None:
        receive, size = self._socket.recv, MAX_DATAGRAM_BYTES + 1
        while not self._stop.is_set():
            select.select([self._socket], [], [], WAKE_S)
            batch: list[bytes] = []
            try:
                while len(batch) < MAX_BATCH:
                    batch.append(receive(size))
            except BlockingIOError:
                pass
            except OSError:
                if not self._stop.is_set():
                    raise
            if batch:
                self._deliver(batch)


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
