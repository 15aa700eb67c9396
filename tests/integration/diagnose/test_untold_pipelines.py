"""Jobs whose traces name no pipeline: a heavy stage is no slow machine, and who sends to whom tells the stages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eroica.offline.diagnose import Told, diagnose
from eroica.offline.layout import parse_layout
from eroica.schemas.settings import load_settings
from eroica.schemas.verdicts import Verdict

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
STEPS, MICRO_BATCHES, RANKS = 4, 4, 4
TRANSFER_US = 100.0
Work = Callable[[int, int], float]


class Ranks:
    """Traces of a few ranks, written operation by operation. A transfer ends for both when the later has come."""

    def __init__(self, *, ends_told: bool) -> None:
        self.ends_told = ends_told
        self.events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
        self.host = [100.0 * r for r in range(RANKS)]
        self.device = [0.0] * RANKS
        self.launches = 0

    def put(self, rank: int, cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        self.events[rank].append(
            {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def launch(self, rank: int) -> tuple[int, float]:
        self.launches += 1
        self.put(rank, "cuda_runtime", "cudaLaunchKernel", self.host[rank] + 1, 3, correlation=self.launches)
        self.host[rank] += 5
        return self.launches, max(self.host[rank], self.device[rank])

    def compute(self, rank: int, us: float) -> None:
        number, start = self.launch(rank)
        self.put(rank, "kernel", "gemm", start, us, 7, correlation=number, stream=7)
        self.device[rank] = start + us

    def transfer(self, sender: int, receiver: int) -> None:
        started = {}
        for rank, other, way in ((sender, receiver, "send {}->{}"), (receiver, sender, "recv {}<-{}")):
            if self.ends_told:
                self.put(rank, "user_annotation", f"nccl:{way.format(rank, other)}", self.host[rank], 5)
            started[rank] = self.launch(rank)
        end = max(at for _, at in started.values()) + TRANSFER_US
        for rank, (number, start) in started.items():
            self.put(rank, "kernel", "ncclDevKernel_SendRecv(x)", start, end - start, 20, correlation=number, stream=20)
            self.device[rank] = end

    def end_step(self, number: int, began: list[float]) -> None:
        for rank in range(RANKS):
            waits = max(self.device[rank] - self.host[rank], 0) + 2
            self.put(rank, "cuda_runtime", "cudaDeviceSynchronize", self.host[rank], waits)
            self.host[rank] += waits
            self.put(rank, "user_annotation", f"ProfilerStep#{number}", began[rank], self.host[rank] - began[rank])

    def verdict(self, folder: Path, layout: str = "") -> Verdict:
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": RANKS}
        for rank, events in enumerate(self.events):
            info = {"rank": rank, "world_size": RANKS, "pg_config": [{**group, "ranks": [*range(RANKS)]}]}
            events.sort(key=lambda e: e["ts"])
            (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
        told = Told(layout=parse_layout(layout)) if layout else None
        return diagnose(folder, load_settings(), told=told).verdict


def pipeline(work: Work, *, ends_told: bool) -> Ranks:
    """Stages forward and back, micro-batch by micro-batch."""
    ranks = Ranks(ends_told=ends_told)
    for step in range(STEPS):
        began = list(ranks.host)
        for order in (range(RANKS), range(RANKS - 1, -1, -1)):
            for batch in range(MICRO_BATCHES):
                for before, rank in zip([None, *order], order, strict=False):
                    if before is not None:
                        ranks.transfer(before, rank)
                    ranks.compute(rank, work(rank, batch))
        ranks.end_step(step, began)
    return ranks


def ring(work: Work) -> Ranks:
    """Peers that hand blocks round, as ring attention does: each to the next, always the same way."""
    ranks = Ranks(ends_told=True)
    for step in range(STEPS):
        began = list(ranks.host)
        for batch in range(MICRO_BATCHES):
            for rank in range(RANKS):
                ranks.compute(rank, work(rank, batch))
            for rank in range(RANKS):
                ranks.transfer(rank, (rank + 1) % RANKS)
        ranks.end_step(step, began)
    return ranks


def heavy(which: int) -> Work:
    return lambda rank, batch: (1_600.0 if rank == which else 1_000.0) + (7 * rank + 3 * batch) % 5


@pytest.mark.parametrize("which", [0, 2, 3])
def test_who_sends_to_whom_tells_the_stages(tmp_path: Path, which: int) -> None:
    verdict = pipeline(heavy(which), ends_told=True).verdict(tmp_path)
    [cause] = verdict.causes
    assert (verdict.status, cause.class_, cause.suspects.ranks, cause.suspects.stages) == (
        "shared_cause", "pipeline_stage", "", [which]
    )  # fmt: skip
    assert any("ranks 0-3 are taken for its stages" in note for note in verdict.coverage.notes)


@pytest.mark.parametrize("which", [0, 2, 3])
def test_nobody_is_accused_where_transfers_tell_no_ends(tmp_path: Path, which: int) -> None:
    verdict = pipeline(heavy(which), ends_told=False).verdict(tmp_path)
    assert verdict.causes == []
    assert any(f"rank {which}" in note and "heavy stage" in note for note in verdict.coverage.notes)


def test_the_users_word_counts(tmp_path: Path) -> None:
    verdict = pipeline(heavy(3), ends_told=False).verdict(tmp_path, "megatron --pp 4")
    assert [(c.class_, c.suspects.stages) for c in verdict.causes] == [("pipeline_stage", [3])]


def test_peers_in_a_ring_are_compared(tmp_path: Path) -> None:
    verdict = ring(heavy(2)).verdict(tmp_path)
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("worker", "2")]
