"""A chunk of a group as arrays: what is kept of it until all of a request is here, in a tenth of the memory of its lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from eroica.localizer.tables import Coords, Floats, Ints, Names, Pauses, Readings, coded
from eroica.schemas.groups import (
    CommunicatorName,
    ExecutionColumns,
    FunctionName,
    GroupChunk,
    MetricColumns,
    PatternColumns,
    PauseColumns,
    StepColumns,
)

PATTERN_FLOATS = ("beta", "mu", "sigma", "total_us", "exclusive_us", "p50_us", "p99_us", "max_us")


@dataclass(frozen=True, slots=True)
class Workers:
    """One entry a worker of the chunk."""

    ranks: Ints
    hosts: Names
    devices: Names
    coords: Coords
    late: npt.NDArray[np.bool_]
    """Whether its profile started late."""
    ended_at_us: Ints
    """Event time of the end of its window."""
    launch_bound: Floats
    """Share of its kernels that found the device waiting; 0 where its profile does not tell."""


@dataclass(frozen=True, slots=True)
class PackedSlots:
    """One entry a slot; ``communicator`` counts those of the chunk."""

    communicator: Ints
    op: Ints
    """Index into ``ops``."""
    ops: list[str]
    index: Ints
    bytes: Ints


@dataclass(slots=True)
class PackedExecutions:
    """As in the chunk, in the order of worker, step and start. Times in µs."""

    row: Ints
    slot: Ints
    step: Ints
    occurrence: Ints
    start_us: Floats
    duration_us: Floats
    exposed_us: Floats


@dataclass(slots=True)
class PackedChunk:
    """The tables of a chunk as columns; ``row`` counts its workers. ``head`` is the chunk without its tables."""

    head: GroupChunk
    workers: Workers
    functions: list[FunctionName]
    pattern_row: Ints
    pattern_function: Ints
    pattern: dict[str, Floats]
    step_row: Ints
    step: Ints
    step_us: Floats
    step_start_us: Floats
    phases_us: dict[str, Floats]
    communicators: list[CommunicatorName]
    slots: PackedSlots
    executions: PackedExecutions
    pauses: Pauses
    readings: Readings


def pack(chunk: GroupChunk) -> PackedChunk:
    """*chunk*, whose columns were checked, as arrays."""
    w, p, s, e, u, m = chunk.workers, chunk.patterns, chunk.steps, chunk.executions, chunk.pauses, chunk.metrics
    row, step = _ints(e.row), _ints(e.step)
    start, duration = _floats(e.start_us), _floats(e.duration_us)
    exposed = _floats(e.exposed_us) if len(e.exposed_us) == len(e.row) else duration
    order = np.lexsort((start, step, row))
    return PackedChunk(
        head=msgspec.structs.replace(
            chunk,
            workers=[],
            functions=[],
            patterns=PatternColumns(),
            steps=StepColumns(),
            communicators=[],
            slots=[],
            executions=ExecutionColumns(),
            pauses=PauseColumns(),
            metrics=MetricColumns(),
        ),
        workers=Workers(
            ranks=_ints([one.rank for one in w]),
            hosts=Names.of([one.host for one in w]),
            devices=Names.of([one.device for one in w]),
            coords=Coords.of([one.coords for one in w]),
            late=np.array([one.late_by_steps > 0 for one in w], dtype=np.bool_),
            ended_at_us=_ints([one.ended_at_us for one in w]),
            launch_bound=_floats([one.figures.get("launch_bound_share", 0.0) for one in w]),
        ),
        functions=chunk.functions,
        pattern_row=_ints(p.row),
        pattern_function=_ints(p.function),
        pattern={name: _floats(getattr(p, name)) for name in PATTERN_FLOATS},
        step_row=_ints(s.row),
        step=_ints(s.step),
        step_us=_floats(s.duration_us),
        step_start_us=_floats(s.start_us),
        phases_us={name: _floats(column) for name, column in s.phases_us.items()},
        communicators=chunk.communicators,
        slots=PackedSlots(
            _ints([slot.communicator for slot in chunk.slots]),
            *coded([slot.op for slot in chunk.slots]),
            _ints([slot.index for slot in chunk.slots]),
            _ints([slot.bytes for slot in chunk.slots]),
        ),
        executions=PackedExecutions(
            row=row[order],
            slot=_ints(e.slot)[order],
            step=step[order],
            occurrence=_ints(e.occurrence)[order],
            start_us=start[order],
            duration_us=duration[order],
            exposed_us=exposed[order],
        ),
        pauses=Pauses(_ints(u.row), *coded(u.what), _ints(u.count), _floats(u.total_us), _floats(u.max_us)),
        readings=Readings(_ints(m.row), *coded(m.name), _floats(m.mean)),
    )


def _ints(column: Iterable[int]) -> Ints:
    return np.array(column, dtype=np.int64)


def _floats(column: Iterable[float]) -> Floats:
    return np.array(column, dtype=np.float64)
