"""Small synthetic jobs with a known answer, as the group chunks that the localizer would get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

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
    StackRow,
    StepColumns,
    Worker,
)
from eroica.schemas.ranks import format_ranks

STEPS = 5
TRANSFER_US = 1_000.0
Own = Callable[[int, int, int], float]
"""(rank, step, collective) → own time before it, µs."""


@dataclass
class Scene:
    """A job in which each step is: own work, collective, own work, collective … of the given communicators, in this order."""

    ranks: int
    own: Own
    communicators: Sequence[Sequence[int]] = ()
    """Members of each collective of a step; default: one over all ranks."""
    kinds: Sequence[str] = ()
    """What kind of group each of them is; those of one kind are compared. By default each is of its own."""
    transfers: dict[int, float] = field(default_factory=dict)
    """Collective → how many times as long as ``TRANSFER_US`` its transfer takes."""
    classes: dict[str, Sequence[int]] = field(default_factory=dict)
    absent: Sequence[int] = ()
    begins: dict[int, int] = field(default_factory=dict)
    """Rank → the first step of its profile; by default the first of all."""
    hosts: Callable[[int], str] = lambda rank: f"host-{rank // 8}"
    topology_source: str = "process_groups"
    request: str = "req-1"
    issued_at_us: int = 1_000_000
    collectives_seen: bool = True
    """Whether the profiles hold the collectives; else the waiting is a Python function like any other."""
    phase: str = ""
    """The phase in which all own work is done; none is told by default."""
    device: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    """What the request says of its trigger."""
    pauses: dict[str, float] = field(default_factory=dict)
    """Kind of pause → what each rank spends in it in each step, µs; a part of the own work."""
    readings: dict[str, float] = field(default_factory=dict)
    """What every host measured, in the same way."""

    def chunks(self) -> list[GroupChunk]:
        """Play the job on perfect clocks and write down what each rank saw."""
        order = list(self.communicators) or [range(self.ranks)]
        classes = self.classes or {"all": range(self.ranks)}
        now = np.zeros(self.ranks)
        seen: dict[int, list[tuple[int, int, float, float]]] = {rank: [] for rank in range(self.ranks)}
        starts = np.zeros((self.ranks, STEPS + 1))
        worked = np.zeros((self.ranks, len(order)))
        for step in range(STEPS):
            starts[:, step] = now
            for at, members in enumerate(order):
                mine = list(members)
                arrive = np.array([now[r] + self.own(r, step, at) for r in mine])
                end = arrive.max() + TRANSFER_US * self.transfers.get(at, 1.0)
                for r, a in zip(mine, arrive.tolist(), strict=True):
                    worked[r, at] += self.own(r, step, at)
                    seen[r].append((step, at, a - starts[r, step], end - a))
                    now[r] = end
        starts[:, STEPS] = now
        request = ProfileRequest(
            request=self.request, job="job", run_id="run", reason="degradation", start_step=0, steps=STEPS, world_size=self.ranks,
            classes={name: format_ranks(ranks) for name, ranks in classes.items()}, topology_source=self.topology_source,
            issued_at_us=self.issued_at_us, deadline_ms=1_000, figures=self.figures,
        )  # fmt: skip
        return [self._chunk(request, name, list(ranks), order, seen, starts, worked) for name, ranks in sorted(classes.items())]

    def _chunk(
        self,
        request: ProfileRequest,
        cls: str,
        ranks: list[int],
        order: Sequence[Sequence[int]],
        seen: dict[int, list[tuple[int, int, float, float]]],
        starts: np.ndarray,
        worked: np.ndarray,
    ) -> GroupChunk:
        here = [rank for rank in ranks if rank not in self.absent]
        steps = StepColumns(phases_us={self.phase: [], "comm_wait": []} if self.phase else {})
        executions, patterns, metrics = ExecutionColumns(), PatternColumns(), MetricColumns()
        for row, rank in enumerate(here):
            for step in range(self.begins.get(rank, 0), STEPS):
                steps.row.append(row)
                steps.step.append(step)
                steps.start_us.append(float(starts[rank, step]))
                steps.duration_us.append(float(starts[rank, step + 1] - starts[rank, step]))
                if self.phase:
                    waited = sum(duration for at_step, _, _, duration in seen[rank] if at_step == step)
                    steps.phases_us[self.phase].append(steps.duration_us[-1] - waited)
                    steps.phases_us["comm_wait"].append(waited)
            for step, at, start, duration in seen[rank] if self.collectives_seen else []:
                if step < self.begins.get(rank, 0):
                    continue
                executions.row.append(row)
                executions.slot.append(at)
                executions.step.append(step)
                executions.start_us.append(float(start))
                executions.duration_us.append(float(duration))
                executions.exposed_us.append(float(duration))
                executions.occurrence.append(0)
            for name, value in self.readings.items():
                metrics.row.append(row)
                metrics.name.append(f"{name}[share]")
                metrics.mean.append(value)
            window = float(starts[rank, STEPS])
            for at in range(len(order)):
                _pattern(patterns, row, at, float(worked[rank, at]), window)
            if not self.collectives_seen:
                _pattern(patterns, row, len(order), sum(duration for _, _, _, duration in seen[rank]), window)
        return GroupChunk(
            job="job", run_id="run", request=request, cls=cls, classes=sorted(request.classes), chunk=0, chunks=1,
            closed_by="complete" if len(here) == len(ranks) else "deadline", expected=format_ranks(ranks),
            received=format_ranks(here), inputs={"summaries/0": "0-9"},
            workers=[
                Worker(
                    rank=r, host=self.hosts(r), device=self.device, first_step=0, last_step=STEPS - 1,
                    window_us=float(starts[r, STEPS]),
                )
                for r in here
            ],
            functions=[
                FunctionName(name=name, category="python", stack=f"main;{name}")
                for name in [*(f"work_{i}" for i in range(len(order))), "poll"][: len(order) + (not self.collectives_seen)]
            ],
            patterns=patterns, steps=steps,
            communicators=[
                CommunicatorName(
                    name=f"c{at}", kind=self.kinds[at] if self.kinds else f"kind{at}", backend="gloo", ranks=format_ranks(m),
                    size=len(list(m)),
                )
                for at, m in enumerate(order)
            ],
            slots=[SlotName(communicator=at, op="all_reduce", index=0, bytes=8) for at in range(len(order))],
            executions=executions, metrics=metrics, pauses=self._pauses(len(here)),
        )  # fmt: skip

    def _pauses(self, ranks: int) -> PauseColumns:
        told = [(row, what, us) for row in range(ranks) for what, us in sorted(self.pauses.items())]
        return PauseColumns(
            row=[row for row, _, _ in told], what=[what for _, what, _ in told], count=[STEPS] * len(told),
            total_us=[STEPS * us for _, _, us in told], max_us=[us for _, _, us in told],
        )  # fmt: skip


def _pattern(patterns: PatternColumns, row: int, function: int, total_us: float, window_us: float) -> None:
    patterns.row.append(row)
    patterns.function.append(function)
    patterns.beta.append(total_us / window_us)
    patterns.mu.append(1.0)
    patterns.sigma.append(0.0)
    patterns.count.append(STEPS)
    patterns.total_us.append(total_us)
    patterns.exclusive_us.append(total_us)
    for column in (patterns.p50_us, patterns.p90_us, patterns.p99_us, patterns.max_us):
        column.append(total_us / STEPS)
    patterns.var_us2.append(0.0)


def steady(base_us: float, slow: dict[int, float], *, noise: float = 0.0, seed: int = 0, at: int = 0) -> Own:
    """Each rank works *base_us* before a collective; those of *slow* take so many times as long before collective *at*."""
    cache: dict[tuple[int, int, int], float] = {}
    rng = np.random.default_rng(seed)

    def own(rank: int, step: int, collective: int) -> float:
        key = (rank, step, collective)
        if key not in cache:
            factor = slow.get(rank, 1.0) if collective == at else 1.0
            cache[key] = base_us * factor * float(rng.lognormal(0.0, noise) if noise else 1.0)
        return cache[key]

    return own


def stuck(threads: dict[int, str], *, world: int = 8) -> GroupChunk:
    """A blocked job: rank → frames of its main thread."""
    request = ProfileRequest(
        request="req-s", job="job", run_id="run", reason="blocked", mode="stacks", world_size=world,
        classes={"all": format_ranks(range(world))}, issued_at_us=1_000_000, deadline_ms=1_000,
    )  # fmt: skip
    rows = [
        StackRow(rank=r, host=f"host-{r // 4}", last_step=7, idle_us=60_000_000, threads=[f"{100 + r}/MainThread/idle: {frames}"])
        for r, frames in sorted(threads.items())
    ]
    return GroupChunk(
        job="job", run_id="run", request=request, cls="all", classes=["all"], chunk=0, chunks=1, closed_by="complete",
        expected=format_ranks(range(world)), received=format_ranks(threads), stacks=rows,
    )  # fmt: skip
