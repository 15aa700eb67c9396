"""Which training processes still run, seen from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


class ProcessWatch:
    """Remembers each process by its start time, so that a pid used again is not taken for the old process.

    A process that cannot be seen (another pid namespace, as between containers) is judged by its hook's socket instead.
    """

    def __init__(self, listens: Callable[[int], bool], proc: Path = Path("/proc")) -> None:
        """:param listens: whether somebody holds the hook socket of a pid."""
        self._listens = listens
        self._proc = proc
        self._started: dict[int, int] = {}
        """Start time in clock ticks since boot; 0: never seen."""

    def met(self, pid: int) -> None:
        """A process said hello."""
        self._started[pid] = self._start_of(pid)

    def recall(self, pid: int, started: int) -> bool:
        """A former agent met process *pid*, *started* then as :meth:`started` says; whether it still runs."""
        self._started[pid] = started
        return self._runs(pid)

    def started(self, pid: int) -> int:
        """When process *pid* started, in clock ticks since boot; 0 where it cannot be seen."""
        return self._started.get(pid, 0)

    def gone(self, pids: Iterable[int]) -> list[int]:
        """Those of *pids* that run no more, in their order; the others of before are forgotten."""
        watched = list(pids)
        self._started = {pid: self._started[pid] if pid in self._started else self._start_of(pid) for pid in watched}
        return [pid for pid in watched if not self._runs(pid)]

    def _runs(self, pid: int) -> bool:
        started = self._started[pid]
        if started == 0:
            return self._listens(pid)
        return self._start_of(pid) == started

    def _start_of(self, pid: int) -> int:
        """Field 22 of ``/proc/PID/stat``; 0 for a process that is not there or is a zombie."""
        try:
            raw = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:
            return 0
        fields = raw.rpartition(b")")[2].split()
        return 0 if len(fields) < 20 or fields[0] in (b"Z", b"X") else int(fields[19])
