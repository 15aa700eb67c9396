"""Worker summaries become the columns of a group message."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import msgspec

from eroica.schemas.groups import (
    CommunicatorName,
    ExecutionColumns,
    FunctionName,
    GroupChunk,
    MetricColumns,
    PatternColumns,
    PauseColumns,
    SlotName,
    StackRow,
    StepColumns,
    Worker,
)
from eroica.schemas.summaries import Slot, StackEvidence, Summary
from eroica.streams.receive import ReceiveTable

K = TypeVar("K", bound=Hashable)


class _Index(Generic[K]):
    """Numbers things in the order of their first appearance."""

    def __init__(self) -> None:
        self._of: dict[K, int] = {}

    def number(self, key: K) -> int:
        return self._of.setdefault(key, len(self._of))

    def in_order(self) -> list[K]:
        return list(self._of)


def summary_columns(frame: GroupChunk, summaries: Sequence[Summary]) -> GroupChunk:
    """*frame* with *summaries* (ascending rank) as rows.

    Numbering follows the rows, so equal input gives equal columns. ``occurrence`` is the trace's sequence number
    where it has one, else the index among the slot's executions in the step.
    """
    functions: _Index[tuple[str, str, str, str]] = _Index()
    communicators: _Index[tuple[str, str, str, str, int]] = _Index()
    slots: _Index[tuple[int, str, int, int, str]] = _Index()
    patterns, steps, executions = PatternColumns(), StepColumns(), ExecutionColumns()
    pauses, metrics, receive = PauseColumns(), MetricColumns(), ReceiveTable()
    phases = sorted({phase for s in summaries for step in s.steps for phase in step.phases_us})
    steps = msgspec.structs.replace(steps, phases_us={phase: [] for phase in phases})
    for row, summary in enumerate(summaries):
        _add_patterns(patterns, row, summary, functions)
        _add_steps(steps, row, summary)
        for communicator in summary.communicators:
            number = communicators.number(
                (communicator.name, communicator.kind, communicator.backend, communicator.ranks, communicator.size)
            )
            for slot in communicator.slots:
                _add_executions(executions, row, slots.number((number, slot.op, slot.index, slot.bytes, slot.dtype)), slot)
        for pause in summary.pauses:
            pauses.row.append(row)
            pauses.what.append(pause.what)
            pauses.count.append(pause.count)
            pauses.total_us.append(pause.total_us)
            pauses.max_us.append(pause.max_us)
        receive.add(row, summary)
        for metric in summary.metrics:
            device = f"{metric.device}:" if metric.device else ""
            metrics.row.append(row)
            metrics.name.append(f"{device}{metric.name}[{metric.unit}]")
            metrics.mean.append(metric.mean)
    return msgspec.structs.replace(
        frame,
        workers=[_worker(summary) for summary in summaries],
        functions=[FunctionName(name=n, category=c, stack=s, resource=r) for n, c, s, r in functions.in_order()],
        patterns=patterns,
        steps=steps,
        communicators=[
            CommunicatorName(name=n, kind=k, backend=b, ranks=r, size=s) for n, k, b, r, s in communicators.in_order()
        ],
        slots=[SlotName(communicator=c, op=o, index=i, bytes=b, dtype=d) for c, o, i, b, d in slots.in_order()],
        executions=executions,
        pauses=pauses,
        receive_groups=receive.groups(),
        receive_waits=receive.columns,
        metrics=metrics,
    )


def stack_rows(evidence: Sequence[StackEvidence]) -> list[StackRow]:
    """Stack evidence (ascending rank) as rows."""
    return [
        StackRow(
            rank=e.who.rank,
            host=e.who.host,
            last_step=e.last_step,
            idle_us=e.idle_us,
            ended_at_us=e.ended_at_us,
            last_event=e.last_event,
            threads=e.threads,
            error=e.error,
        )
        for e in evidence
    ]


def _worker(summary: Summary) -> Worker:
    who = summary.who
    return Worker(
        rank=who.rank,
        host=who.host,
        local_rank=who.local_rank,
        device=who.device,
        coords=who.coords,
        first_step=summary.first_step,
        last_step=summary.last_step,
        window_us=summary.window_us,
        ended_at_us=summary.ended_at_us,
        late_by_steps=summary.late_by_steps,
        lost=summary.lost,
        notes=summary.notes,
        figures=summary.figures,
    )


def _add_patterns(into: PatternColumns, row: int, summary: Summary, functions: _Index[tuple[str, str, str, str]]) -> None:
    stacks, mine = summary.stacks, summary.functions
    into.row.extend([row] * len(mine))
    into.function.extend(
        [functions.number((f.name, f.category, stacks[f.stack] if 0 <= f.stack < len(stacks) else "", f.resource)) for f in mine]
    )
    into.beta.extend([f.beta for f in mine])
    into.mu.extend([f.mu for f in mine])
    into.sigma.extend([f.sigma for f in mine])
    into.count.extend([f.count for f in mine])
    into.total_us.extend([f.total_us for f in mine])
    into.exclusive_us.extend([f.exclusive_us for f in mine])
    into.p50_us.extend([f.p50_us for f in mine])
    into.p90_us.extend([f.p90_us for f in mine])
    into.p99_us.extend([f.p99_us for f in mine])
    into.max_us.extend([f.max_us for f in mine])
    into.var_us2.extend([f.var_us2 for f in mine])


def _add_steps(into: StepColumns, row: int, summary: Summary) -> None:
    for step in summary.steps:
        into.row.append(row)
        into.step.append(step.step)
        into.start_us.append(step.start_us)
        into.duration_us.append(step.duration_us)
        for phase, column in into.phases_us.items():
            column.append(step.phases_us.get(phase, 0.0))


def _add_executions(into: ExecutionColumns, row: int, slot_number: int, slot: Slot) -> None:
    steps, starts, durations, numbers, exposed = slot.step, slot.start_us, slot.duration_us, slot.seq, slot.exposed_us
    n = len(steps)
    if not n == len(starts) == len(durations) or len(numbers) > n or len(exposed) > n:
        n = min(n, len(starts), len(durations))
        steps, starts, durations, numbers, exposed = steps[:n], starts[:n], durations[:n], numbers[:n], exposed[:n]
    into.row.extend([row] * n)
    into.slot.extend([slot_number] * n)
    into.step.extend(steps)
    into.start_us.extend(starts)
    into.duration_us.extend(durations)
    into.exposed_us.extend(exposed if len(exposed) == n else durations)
    into.occurrence.extend(numbers if len(numbers) == n else _occurrences(steps))


def _occurrences(steps: list[int]) -> list[int]:
    """How many times each step stood before in *steps*."""
    if len(set(steps)) == len(steps):
        return [0] * len(steps)
    seen: dict[int, int] = {}
    out = []
    for step in steps:
        out.append(seen.get(step, 0))
        seen[step] = out[-1] + 1
    return out
