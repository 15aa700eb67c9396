"""Child processes that never outlive us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from eroica.schemas.errors import BrokerError

_PR_SET_PDEATHSIG = 1
_LOG_TAIL_BYTES = 4_096
_ATTEMPTS = 3


def launch_or_stop(launch: Callable[[], None], stop: Callable[[], None], *, again: bool) -> None:
    """Call *launch*; if it fails, *stop*.

    :param again: try up to three times: a free port can be taken between choosing and listening. Not for the caller's own choice.
    :raises BrokerError: of the last try.
    """
    for attempt in range(_ATTEMPTS):
        try:
            launch()
        except BrokerError:
            stop()
            if not again or attempt == _ATTEMPTS - 1:
                raise
        except BaseException:
            stop()
            raise
        else:
            return


class Child:
    """A server process of ours: writes to a log file and is stopped within a bound.

    On Linux the kernel ends it when the **thread** that started it ends, so start it from one that lives as long as it should.
    """

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        parent = os.getpid()
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
                preexec_fn=_die_with(parent) if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def end(self) -> str:
        """How it ended, with its last words; empty while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        how = f"signal {-code} ended it" if code < 0 else f"exit code {code}"
        words = self.log_tail()
        return f"{self.name} is gone ({how}{'; ' if words else ''}{words})"

    def wait_listening(self, port: int, timeout_s: float, ready: Callable[[], bool] = lambda: True) -> None:
        """Return when **this** child listens on *port* and *ready* holds: another server on the same port does not count.

        :raises BrokerError: it ended, or is not ready within *timeout_s*; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.alive:
                raise BrokerError(
                    f"{self.name} ended at once with code {self._process.returncode}", where=str(self.log), do=self.log_tail()
                )
            if self._listens(port) and ready():
                return
            time.sleep(0.02)
        raise BrokerError(f"{self.name} was not ready within {timeout_s:g} s", where=str(self.log), do=self.log_tail())

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it: SIGTERM, then SIGKILL after *timeout_s*."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL it and reap it."""
        if self.alive:
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        with contextlib.suppress(OSError):
            data = self.log.read_bytes()[-_LOG_TAIL_BYTES:]
            lines = data.decode("utf-8", "replace").strip().splitlines()
            return "its last words: " + " | ".join(line.strip()[:200] for line in lines[-3:]) if lines else ""
        return ""

    def _listens(self, port: int) -> bool:
        try:
            connections = psutil.Process(self.pid).net_connections("tcp")
        except psutil.Error:
            return False
        return any(c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port for c in connections)


def _die_with(parent: int) -> Callable[[], None]:
    """Code for the child between fork and exec: have the kernel end it with its parent."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        os.setsid()  # Ctrl-C in the terminal is ours to handle, in our order
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the kernel knew of the wish

    return prepare
