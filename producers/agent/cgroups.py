"""What the kernel's control groups hold the training processes down to: CPU quota, memory limit, pressure within the group.

A container's limits do not show in the host's figures: a job whose loaders are throttled by their quota sees idle CPUs. Control
groups come in two versions, often both at once, and a container may see its own group as the root; whatever cannot be read is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from eroica.producers.agent.readings import Absent, Reading
from eroica.producers.agent.sysfs import number_of, text_of

MAX_GROUPS = 16
"""Distinct groups of the training processes of a host."""
MAX_PROCESSES = 256
"""Processes whose group is looked up."""
UNLIMITED = 2**60
"""Version 1 writes "no limit" as a number near 2^63."""


class CgroupSource:
    """The groups of the job's processes; ``device`` is the group's last name, with a number from the second on."""

    def __init__(self, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> None:
        """Look for control groups.

        :raises Absent: the host shows none.
        """
        if not root.is_dir():
            raise Absent(f"{root} is not there")
        self._proc, self._root = proc, root

    def read(self, pids: frozenset[int]) -> Iterator[Reading]:
        """See :class:`~eroica.producers.agent.readings.Source`."""
        groups = dict.fromkeys(
            entry for pid in sorted(pids)[:MAX_PROCESSES] for entry in groups_of(text_of(self._proc / str(pid) / "cgroup"))
        )
        names: dict[str, str] = {}
        for controllers, path in list(groups)[: 4 * MAX_GROUPS]:
            known = names.setdefault(path, f"{PurePosixPath(path).name[:40] or 'root'}{f'.{len(names)}' if names else ''}")
            yield from self._version2(path, known) if not controllers else self._version1(controllers, path, known)

    def _folder(self, controllers: str, path: str) -> Path | None:
        """Where a group's files are. In a container the path may be the host's while the group is mounted as the root."""
        # Version 2 is mounted as the root itself, or beside version 1 as "unified".
        bases = [controllers] if controllers else ["", "unified"]
        for base in bases:
            for place in (self._root / base / path.lstrip("/"), self._root / base):
                if (place / "cgroup.procs").exists():
                    return place
        return None

    def _version2(self, path: str, device: str) -> Iterator[Reading]:
        folder = self._folder("", path)
        if folder is None:
            return
        stat = _table(folder / "cpu.stat")
        if "throttled_usec" in stat:
            yield Reading("cpu_throttled", "cores", stat["throttled_usec"] / 1e6, device, "counter")
        yield from _used(number_of(folder / "memory.current"), number_of(folder / "memory.max"), device)
        for file, name in (("cpu", "job_cpu_pressure"), ("memory", "job_mem_pressure"), ("io", "job_io_pressure")):
            first = text_of(folder / f"{file}.pressure").split("\n")[0]
            total = first.rpartition("total=")[2]
            if first.startswith("some") and total.isdigit():
                yield Reading(name, "share", int(total) / 1e6, device, "counter")

    def _version1(self, controllers: str, path: str, device: str) -> Iterator[Reading]:
        folder = self._folder(controllers, path)
        if folder is None:
            return
        if "cpu" in controllers.split(","):
            stat = _table(folder / "cpu.stat")
            if "throttled_time" in stat:
                yield Reading("cpu_throttled", "cores", stat["throttled_time"] / 1e9, device, "counter")
        if "memory" in controllers.split(","):
            yield from _used(number_of(folder / "memory.usage_in_bytes"), number_of(folder / "memory.limit_in_bytes"), device)


def groups_of(text: str) -> list[tuple[str, str]]:
    r"""Controllers and path of each group in ``/proc/PID/cgroup``; no controllers for version 2.

    >>> groups_of("4:cpu,cpuacct:/job\\\\n0::/user")
    [('cpu,cpuacct', '/job'), ('', '/user')]
    """
    out = []
    for line in text.split("\n"):
        _, colon, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        # ".." leads out of what a container may see.
        if colon and second and path.startswith("/") and ".." not in path and not controllers.startswith("name="):
            out.append((controllers, path))
    return out


def _table(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in text_of(path).split("\n"))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _used(current: float | None, limit: float | None, device: str) -> Iterator[Reading]:
    if current is not None and limit is not None and 0 < limit < UNLIMITED:
        yield Reading("job_mem_used", "share", min(1.0, current / limit), device)
