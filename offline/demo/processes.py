"""The demo's processes: started with a log each, watched, and ended with everything below them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from eroica.bus.local.children import Child
from eroica.schemas.errors import EroicaError

STOP_S = 6.0
"""What a process gets between SIGTERM and SIGKILL, all of them at once."""


class Processes:
    """A set of child processes that live and end together. To be used from one thread, which must outlive it."""

    def __init__(self, logs: Path, check: Callable[[], None] = lambda: None) -> None:
        """:param check: called before each start; raises where none is wanted any more."""
        self._logs, self._check = logs, check
        self._children: dict[str, Child] = {}

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start *command*; it ends with us, whatever becomes of us."""
        self._check()
        self._children[name] = Child(name, command, log=self._logs / f"{name}.log", env=env)

    def log(self, name: str) -> str:
        """What *name* has written so far."""
        with contextlib.suppress(OSError):
            return (self._logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return ""

    def require_alive(self) -> None:
        """Check that nothing has ended.

        :raises EroicaError: names the process and its last words.
        """
        for name, child in self._children.items():
            if not child.alive:
                raise EroicaError(f"{name} ended too early", where=str(child.log), do=child.log_tail())

    def tails(self) -> dict[str, str]:
        """The last words of each process."""
        return {name: child.log_tail() for name, child in self._children.items()}

    def stop(self) -> None:
        """End all, the last started first, with everything that they started; returns within a bound."""
        tree = _tree([child.pid for child in self._children.values()])
        for child in reversed(self._children.values()):
            if child.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, 15)
        _, alive = psutil.wait_procs(tree, timeout=STOP_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=2.0)
        for child in self._children.values():
            child.kill()
        self._children.clear()


def _tree(pids: list[int]) -> list[psutil.Process]:
    """The processes *pids* and all below them, as long as they can be seen: once a parent is gone its children are not."""
    found: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found
