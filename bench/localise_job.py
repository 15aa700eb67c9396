"""The profiled steps of a large job with one slow rank, straight as the columns that its group messages would give.

Five stages of tensor parallel groups of eight, a host each, and data parallel groups across them. In a step a worker makes two
collectives in its tensor group and two in its data group; all members of each end together. Times in µs.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from eroica.localizer.frame import Floats, Ints, Pauses, Readings
from eroica.localizer.packed import PATTERN_FLOATS, PackedChunk, PackedExecutions, PackedSlots, Workers
from eroica.localizer.tables import Coords, Names
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import (
    CommunicatorName,
    ExecutionColumns,
    FunctionName,
    GroupChunk,
    MetricColumns,
    PatternColumns,
    PauseColumns,
    SlotName,
    StepColumns,
    Worker,
)

STAGES, TENSOR, STEPS = 5, 8, 5
CHUNK = 16 * TENSOR
"""Workers a message: some 600 KB."""
FUNCTIONS = 20
SLOW = 1.3
"""The slow rank takes so many times as long."""
NOISE = 0.004
"""Spread of a worker's time from step to step."""
SEGMENTS_US = (400_000.0, 380_000.0, 30_000.0, 20_000.0)
"""Own time before each of the four collectives."""
TRANSFERS_US = (4_000.0, 4_000.0, 25_000.0, 25_000.0)
PHASES = ("data", "forward", "backward", "optimizer", "comm_wait")
READINGS = {
    "cpu_load[1]": 20.0, "gpu:power[W]": 600.0, "gpu:sm_clock[MHz]": 1_900.0, "gpu:temperature[C]": 60.0, "mem_used[GB]": 400.0,
    "nic0:rate[Gbps]": 400.0,
}  # fmt: skip
"""Healthy values, by name; ascending."""
_NAMES = [FunctionName(name=f"kernel_{i}<128, 256>", category="compute", resource="sm") for i in range(12)]
_NAMES += [FunctionName(name=f"copy_{i}", category="memory", resource="pcie") for i in range(2)]
_NAMES += [FunctionName(name=f"load_{i}", category="python", stack=f"train.py(9): loop;data.py({i}): load_{i}") for i in range(3)]
_NAMES += [FunctionName(name=f"nccl_{i}", category="collective", resource="nic") for i in range(3)]


def job(workers: int, seed: int = 1, slow: float = SLOW) -> list[PackedChunk]:
    """All parts of the request of a job of *workers*, a multiple of 40, by class and rank; one takes *slow* times as long."""
    if workers % (STAGES * TENSOR) or workers < 2 * STAGES * TENSOR:
        raise SystemExit(
            f"{workers} workers do not make {STAGES} stages of groups of {TENSOR}: take a multiple of 40, at least 80"
        )
    rng = np.random.default_rng(seed)
    names = [f"pp{stage}" for stage in range(STAGES)]
    each = workers // STAGES
    request = ProfileRequest(
        request="bench", job="bench", run_id="bench", reason="degradation", start_step=100, steps=STEPS, world_size=workers,
        classes={name: f"{s * each}-{(s + 1) * each - 1}" for s, name in enumerate(names)}, topology_source="coordinates",
        issued_at_us=1_700_000_000_000_000, deadline_ms=60_000,
    )  # fmt: skip
    blank = GroupChunk(
        job="bench", run_id="bench", request=request, cls="", classes=names, chunk=0, chunks=-(-each // CHUNK),
        closed_by="complete", expected="", received="",
    )  # fmt: skip
    stages = [_steps(rng, each, workers // 3 - s * each, slow) for s in range(STAGES)]
    ends = np.max([step_end for *_, step_end in stages], axis=0)
    return [part for s, (start, took, own, _) in enumerate(stages) for part in _stage(rng, blank, s, start, took, own, ends)]


def _steps(rng: np.random.Generator, each: int, at: int, slow: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Start within the step and duration of the collectives, shape (workers, steps, 4), own times and the steps' lengths."""
    start, took = np.empty((each, STEPS, 4)), np.empty((each, STEPS, 4))
    lengths, owns = np.empty(STEPS), np.empty((each, STEPS))
    for step in range(STEPS):
        now, owns[:, step] = np.zeros(each), 0.0
        for place, (segment, transfer) in enumerate(zip(SEGMENTS_US, TRANSFERS_US, strict=True)):
            own = segment * (1 + NOISE * rng.standard_normal(each))
            if 0 <= at < each:
                own[at] *= slow
            owns[:, step] += own
            arrive = (now + own).reshape(-1, TENSOR)
            last = arrive.max(axis=1, keepdims=True) if place < 2 else arrive.max(axis=0, keepdims=True)
            end = (np.broadcast_to(last, arrive.shape) + transfer * (1 + 0.02 * rng.random())).reshape(-1)
            start[:, step, place], took[:, step, place] = now + own, end - now - own
            now = end
        lengths[step] = now.max()
    return start.round(1), took.round(1), owns.round(1), lengths


def _stage(
    rng: np.random.Generator, blank: GroupChunk, stage: int, start: Floats, took: Floats, own: Floats, ends: Floats
) -> Iterator[PackedChunk]:
    each = own.shape[0]
    first = stage * each
    for number, at in enumerate(range(0, each, CHUNK)):
        rows = slice(at, min(at + CHUNK, each))
        n = rows.stop - rows.start
        ranks = np.arange(first + rows.start, first + rows.stop, dtype=np.int64)
        yield PackedChunk(
            head=msgspec.structs.replace(
                blank, cls=f"pp{stage}", chunk=number, expected=f"{first}-{first + each - 1}",
                received=f"{first}-{first + each - 1}", inputs={f"summaries/{stage}": f"0-{each - 1}"},
            ),
            workers=Workers(
                ranks=ranks, launch_bound=np.zeros(n), hosts=Names.of([f"host-{r // TENSOR}" for r in ranks.tolist()]),
                devices=Names.of(["H100"] * n),
                coords=Coords.of([{"tp": r % TENSOR, "dp": (r - first) // TENSOR, "pp": stage} for r in ranks.tolist()]),
                late=np.zeros(n, np.bool_), ended_at_us=np.full(n, blank.request.issued_at_us + int(ends.sum()), np.int64),
            ),
            **_patterns(rng, own[rows], float(ends.sum())),
            **_step_columns(own[rows], ends),
            **_collectives(stage, each, rows, start[rows], took[rows]),
            pauses=Pauses(
                np.repeat(np.arange(n), 2), np.tile([0, 1], n), ["gc", "loader"], np.full(2 * n, STEPS),
                rng.uniform(50, 90, 2 * n).round(1), rng.uniform(20, 30, 2 * n).round(1),
            ),
            readings=Readings(
                np.repeat(np.arange(n), len(READINGS)), np.tile(np.arange(len(READINGS)), n), list(READINGS),
                (np.tile(list(READINGS.values()), n) * rng.uniform(0.99, 1.01, n * len(READINGS))).round(2),
            ),
        )  # fmt: skip


def _patterns(rng: np.random.Generator, own: Floats, window_us: float) -> dict[str, object]:
    n = own.shape[0]
    share = rng.dirichlet(np.full(FUNCTIONS - 3, 50.0), n)
    exclusive = np.hstack((own.sum(axis=1)[:, None] * share, rng.uniform(900, 1_100, (n, 3))))
    noise = rng.uniform(0.95, 1.05, (4, n, FUNCTIONS))
    columns = {
        "beta": (exclusive / window_us).round(6), "mu": (0.7 * noise[0]).round(5), "sigma": (0.1 * noise[1]).round(5),
        "total_us": (exclusive * 1.1).round(1),
        "exclusive_us": exclusive.round(1),
        "p50_us": (exclusive / 300 * noise[2]).round(2),
        "p99_us": (exclusive / 200 * noise[3]).round(2), "max_us": (exclusive / 100).round(2),
    }  # fmt: skip
    return {
        "functions": _NAMES,
        "pattern_row": np.repeat(np.arange(n), FUNCTIONS),
        "pattern_function": np.tile(np.arange(FUNCTIONS), n),
        "pattern": {name: columns[name].reshape(-1) for name in PATTERN_FLOATS},
    }


def _step_columns(own: Floats, ends: Floats) -> dict[str, object]:
    n = own.shape[0]
    phases = {"data": 0.02, "forward": 0.33, "backward": 0.6, "optimizer": 0.05}
    table = {name: (own * share).round(1) for name, share in phases.items()}
    table["comm_wait"] = (ends - own).round(1)
    return {
        "step_row": np.repeat(np.arange(n), STEPS),
        "step": np.tile(np.arange(100, 100 + STEPS), n),
        "step_us": np.tile(ends.round(1), n),
        "step_start_us": np.tile(np.cumsum(np.concatenate(([0.0], ends[:-1]))).round(1), n),
        "phases_us": {name: table[name].reshape(-1) for name in PHASES},
    }


def _collectives(stage: int, each: int, rows: slice, start: Floats, took: Floats) -> dict[str, object]:
    n = start.shape[0]
    groups = -(-n // TENSOR)
    first = stage * each + rows.start
    communicators = [
        CommunicatorName(
            name=f"tp{(first + g * TENSOR) // TENSOR}", kind="TENSOR_MODEL_PARALLEL_GROUP", backend="nccl",
            ranks=f"{first + g * TENSOR}-{first + g * TENSOR + TENSOR - 1}", size=TENSOR,
        )
        for g in range(groups)
    ]  # fmt: skip
    communicators += [
        CommunicatorName(name=f"dp{stage}.{t}", kind="DATA_PARALLEL_GROUP", backend="nccl", size=each // TENSOR)
        for t in range(TENSOR)
    ]
    shared, tensor = np.arange(TENSOR), np.arange(groups)
    row = np.arange(n)
    mine = np.stack(
        (row // TENSOR * 2, row // TENSOR * 2 + 1, 2 * groups + row % TENSOR * 2, 2 * groups + row % TENSOR * 2 + 1), axis=1
    )
    shape = (n, STEPS, 4)
    return {
        "communicators": communicators,
        "slots": PackedSlots(
            communicator=np.concatenate((np.repeat(tensor, 2), np.repeat(groups + shared, 2))),
            op=np.concatenate((np.full(2 * groups, 1), np.tile([2, 0], TENSOR))),
            ops=["all_gather", "all_reduce", "reduce_scatter"],
            index=np.concatenate((np.tile([0, 1], groups), np.zeros(2 * TENSOR, np.int64))),
            bytes=np.concatenate((np.full(2 * groups, 2**24), np.full(2 * TENSOR, 2**28))),
        ),
        "executions": PackedExecutions(
            row=np.repeat(row, STEPS * 4),
            slot=np.broadcast_to(mine[:, None, :], shape).reshape(-1),
            step=np.broadcast_to(np.arange(100, 100 + STEPS)[None, :, None], shape).reshape(-1),
            occurrence=np.zeros(n * STEPS * 4, np.int64),
            start_us=start.reshape(-1),
            duration_us=took.reshape(-1),
            exposed_us=took.reshape(-1),
        ),
    }


def message(part: PackedChunk) -> GroupChunk:
    """*part* as the message that it would come from."""
    w, e, p = part.workers, part.executions, part.pattern
    count: Ints = np.full(part.pattern_row.size, 300)
    return msgspec.structs.replace(
        part.head,
        workers=[
            Worker(
                rank=rank, host=host, local_rank=rank % TENSOR, device=device, coords=coords, first_step=100,
                last_step=99 + STEPS, window_us=round(float(part.step_us[:STEPS].sum()), 1), ended_at_us=ended,
            )
            for rank, host, device, coords, ended in zip(
                w.ranks.tolist(), w.hosts, w.devices, w.coords.each(), w.ended_at_us.tolist(), strict=True
            )
        ],
        functions=part.functions,
        patterns=PatternColumns(
            row=part.pattern_row.tolist(), function=part.pattern_function.tolist(), count=count.tolist(),
            p90_us=p["p50_us"].tolist(), var_us2=p["p50_us"].tolist(), **{name: p[name].tolist() for name in PATTERN_FLOATS},
        ),
        steps=StepColumns(
            row=part.step_row.tolist(), step=part.step.tolist(), start_us=part.step_start_us.tolist(),
            duration_us=part.step_us.tolist(), phases_us={name: column.tolist() for name, column in part.phases_us.items()},
        ),
        communicators=part.communicators,
        slots=[
            SlotName(communicator=c, op=part.slots.ops[op], index=index, bytes=size)
            for c, op, index, size in zip(
                part.slots.communicator.tolist(), part.slots.op.tolist(), part.slots.index.tolist(), part.slots.bytes.tolist(),
                strict=True,
            )
        ],
        executions=ExecutionColumns(
            row=e.row.tolist(), slot=e.slot.tolist(), step=e.step.tolist(), start_us=e.start_us.tolist(),
            duration_us=e.duration_us.tolist(), exposed_us=e.exposed_us.tolist(), occurrence=e.occurrence.tolist(),
        ),
        pauses=PauseColumns(
            row=part.pauses.row.tolist(), what=[part.pauses.kinds[i] for i in part.pauses.what.tolist()],
            count=part.pauses.counts.tolist(), total_us=part.pauses.total_us.tolist(), max_us=part.pauses.max_us.tolist(),
        ),
        metrics=MetricColumns(
            row=part.readings.row.tolist(), name=[part.readings.names[i] for i in part.readings.name.tolist()],
            mean=part.readings.mean.tolist(),
        ),
    )  # fmt: skip
