"""What the host was doing while its ranks were profiled: CPU, steal, memory pressure, load, and work of strangers."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from eroica.schemas.summaries import Metric

_log = logging.getLogger(__name__)

SAMPLES = 2_400
"""Samples kept: ten minutes at four a second."""
SAMPLE_INTERVAL_US = 250_000
SHORTEST_US = 40_000
"""Below it the kernel's own ticks (10 ms) are too coarse."""
UNITS = {
    "cpu_busy": "share",
    "cpu_steal": "share",
    "cpu_foreign": "cores",
    "load1": "processes",
    "mem_available": "share",
    "cpu_pressure": "share",
    "mem_pressure": "share",
    "io_pressure": "share",
}
"""Shares are of all CPUs, of the memory, or of the time in which some task stood still (PSI "some")."""
FAMILY_US = 2_000_000
MAX_PROCESSES = 512
"""Of the job, whose CPU time is told apart from the strangers'."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Readings over the time since the sample before."""

    since_us: int
    at_us: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Raw:
    """Counters as the system gives them; seconds of CPU time over all CPUs, µs of stalls."""

    at_us: int
    busy_s: float
    total_s: float
    steal_s: float | None
    own_s: float
    load1: float
    mem_available: float
    stalled_us: dict[str, int]


class HostMetrics:
    """Samples while it is asked to, and answers for a window. An absent source is said once and leaves its metric out."""

    def __init__(self, read: Callable[[int, list[int]], Raw] | None = None) -> None:
        self._read = read or _Reader().read
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._former: Raw | None = None

    def sample(self, now_us: int, pids: Iterable[int], *, at_end: bool = False) -> None:
        """Take a sample if one is due.

        :param pids: the training processes; theirs and their children's work is the job's own.
        :param at_end: a window has just ended: a sample is due sooner, so that a short one gets one at all.
        """
        former = self._former
        if former is not None and now_us - former.at_us < (SHORTEST_US if at_end else SAMPLE_INTERVAL_US):
            return
        raw = self._read(now_us, list(pids))
        self._former = raw
        # After a long pause the difference would blur what came before the profile into it.
        if former is not None and raw.at_us - former.at_us < 20 * SAMPLE_INTERVAL_US:
            self._samples.append(Sample(former.at_us, raw.at_us, difference(former, raw)))

    @property
    def last_us(self) -> int:
        """When the last sample was taken; 0 before."""
        return self._former.at_us if self._former is not None else 0

    def window(self, start_us: int, end_us: int) -> tuple[Metric, ...]:
        """Mean, lowest and highest of the samples that overlap the window, in the order of ``UNITS``; none without samples."""
        inside = [s for s in list(self._samples) if s.at_us > start_us and s.since_us < end_us]
        found = []
        for name, unit in UNITS.items():
            values = [s.values[name] for s in inside if name in s.values]
            if values:
                mean = sum(values) / len(values)
                found.append(Metric(name=name, unit=unit, mean=mean, min=min(values), max=max(values)))
        return tuple(found)


def difference(former: Raw, latter: Raw) -> dict[str, float]:
    """Readings between two states of the counters. Pure."""
    elapsed_us = max(1, latter.at_us - former.at_us)
    total_s = latter.total_s - former.total_s
    values = {"load1": latter.load1, "mem_available": latter.mem_available}
    if total_s > 0:
        busy_s = latter.busy_s - former.busy_s
        values["cpu_busy"] = _share(busy_s / total_s)
        if latter.steal_s is not None and former.steal_s is not None:
            values["cpu_steal"] = _share((latter.steal_s - former.steal_s) / total_s)
        own_s = max(0.0, latter.own_s - former.own_s)
        values["cpu_foreign"] = max(0.0, (busy_s - own_s) / (elapsed_us / 1e6))
    for name, stalled_us in latter.stalled_us.items():
        if name in former.stalled_us:
            values[f"{name}_pressure"] = _share((stalled_us - former.stalled_us[name]) / elapsed_us)
    return values


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


class Family:
    """Training processes with all their descendants, looked up every two seconds, for it means a pass over all processes."""

    def __init__(self) -> None:
        self._known: tuple[int, list[int], list[int]] = (0, [], [])

    def of(self, now_us: int, pids: Iterable[int]) -> list[int]:
        """*pids* and their descendants, at most :data:`MAX_PROCESSES`, ascending."""
        wanted = sorted(pids)
        at_us, of, family = self._known
        if of != wanted or now_us - at_us > FAMILY_US:
            found = set(wanted)
            # A parent's pid is nearly always below its children's;
            for process in sorted(psutil.process_iter(["ppid"]), key=lambda one: one.pid):
                if process.info["ppid"] in found:
                    found.add(process.pid)
            family = sorted(found)[:MAX_PROCESSES]
            self._known = (now_us, wanted, family)
        return family


class _Reader:
    """Reads the system's counters."""

    def __init__(self) -> None:
        self._absent: set[str] = set()
        self._family = Family()

    def read(self, now_us: int, pids: list[int]) -> Raw:
        cpu = psutil.cpu_times()
        total = sum(cpu) - getattr(cpu, "guest", 0.0) - getattr(cpu, "guest_nice", 0.0)
        memory = psutil.virtual_memory()
        return Raw(
            at_us=now_us,
            busy_s=total - cpu.idle - getattr(cpu, "iowait", 0.0),
            total_s=total,
            steal_s=getattr(cpu, "steal", None),
            own_s=sum(_cpu_seconds(pid) for pid in self._family.of(now_us, pids)),
            load1=os.getloadavg()[0],
            mem_available=memory.available / max(1, memory.total),
            stalled_us=self._pressure(),
        )

    def _pressure(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, file in (("cpu", "cpu"), ("mem", "memory"), ("io", "io")):
            try:
                line = (Path("/proc/pressure") / file).read_text(encoding="ascii").splitlines()[0]
                found[name] = int(line.rpartition("total=")[2])
            except (OSError, ValueError, IndexError):
                if name not in self._absent:
                    self._absent.add(name)
                    _log.info("no %s pressure on this host (/proc/pressure/%s): summaries go without it", name, file)
        return found


def _cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
