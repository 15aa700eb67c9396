"""Which processes are followed and how far each is, on disk: an agent that takes over knows also those that stand still.

A process says hello to a new agent in its next iteration; one that hangs has none. Two files, for the hellos of a large job are
long and rarely change: ``processes`` (the hellos) and ``places`` (written with each batch).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from eroica.producers.agent.hello import Hello, parse_hello
from eroica.producers.agent.hoststate import HostState
from eroica.producers.agent.launches import Place, Run, Worker
from eroica.producers.agent.liveness import ProcessWatch
from eroica.schemas.errors import InvalidInput

T = TypeVar("T")

MAX_BYTES = 64 * 2**20
"""Of a file at a start; a larger one is passed over."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_Nat = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Process(msgspec.Struct, frozen=True, kw_only=True):
    hello: dict[str, Any]
    started: _Nat
    """As :meth:`ProcessWatch.started`."""
    launch_at_us: _Nat
    refused: bool


class _Processes(msgspec.Struct, frozen=True):
    boot: str
    processes: list[_Process]


class _Places(msgspec.Struct, frozen=True):
    places: list[Place]


class Remembered:
    """What the agent of this folder knows of processes. Losing it does no harm: those that run on say hello."""

    def __init__(self, directory: Path, boot: str | None = None) -> None:
        """:param boot: of this start of the machine, which times and process ids belong to; by default the kernel's own."""
        self._directory = directory
        self._boot = _boot_id() if boot is None else boot
        self._written: list[tuple[Hello, int, bool]] = []

    def take_over(self, state: HostState, watch: ProcessWatch, mono_ns: int) -> int:
        """Let *state* and *watch* follow what a former agent followed; answers how many processes of it still run.

        Launches of which no process runs any more are left out: whether they ended well is not known.
        """
        former = _read(self._directory / "processes", _Processes)
        if former is None or former.boot != self._boot:
            return 0
        found = _read(self._directory / "places", _Places)
        places = {place.pid: place for place in found.places} if found is not None else {}
        launches: dict[tuple[str, str], list[tuple[Hello, _Process, bool]]] = {}
        for process in former.processes:
            with suppress(InvalidInput):
                hello = parse_hello(process.hello)
                runs = watch.recall(hello.pid, process.started)
                launches.setdefault((hello.job, hello.run_id), []).append((hello, process, runs))
        alive = 0
        for processes in launches.values():
            if not any(runs for _, _, runs in processes):
                continue
            for hello, process, runs in processes:
                place = places.get(hello.pid) or Place(pid=hello.pid, last_step=-1, last_event="hello", event_mono_ns=mono_ns)
                if place.event_mono_ns > mono_ns:
                    place = msgspec.structs.replace(place, event_mono_ns=mono_ns)
                state.take_over(hello, process.launch_at_us, process.refused, place, mono_ns)
                alive += runs
        return alive

    def save(self, runs: Mapping[tuple[str, str], Run], watch: ProcessWatch) -> None:
        """Write down what is known now; a disk that takes nothing leaves what was written before."""
        workers = [(run, worker) for run in runs.values() for worker in run.workers.values()]
        known = [(worker.hello, run.started_at_us, run.refused) for run, worker in workers]
        if not _same(known, self._written):
            processes = [
                _Process(
                    hello=msgspec.to_builtins(worker.hello),
                    started=watch.started(worker.hello.pid),
                    launch_at_us=run.started_at_us,
                    refused=run.refused,
                )
                for run, worker in workers
            ]
            if self._write("processes", _Processes(self._boot, processes)):
                self._written = known
        if workers:
            self._write("places", _Places([_place_of(worker) for _, worker in workers]))

    def _write(self, name: str, content: msgspec.Struct) -> bool:
        part = self._directory / f"{name}.part"
        try:
            part.write_bytes(msgspec.json.encode(content))
            part.replace(self._directory / name)
        except OSError:
            return False
        return True


def _place_of(worker: Worker) -> Place:
    return Place(
        pid=worker.hello.pid,
        last_step=worker.last_step,
        last_event=worker.last_event,
        event_mono_ns=worker.event_mono_ns,
        mean_us=worker.mean_us,
        ended=worker.ended,
        gone=worker.gone,
    )


def _same(one: list[tuple[Hello, int, bool]], other: list[tuple[Hello, int, bool]]) -> bool:
    """Hellos are told by identity: comparing the groups of a large job would take longer than writing them."""
    return len(one) == len(other) and all(a[0] is b[0] and a[1:] == b[1:] for a, b in zip(one, other, strict=True))


def _read(path: Path, kind: type[T]) -> T | None:
    with suppress(OSError, msgspec.MsgspecError):
        if path.stat().st_size <= MAX_BYTES:
            return msgspec.json.decode(path.read_bytes(), type=kind)
    return None


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
