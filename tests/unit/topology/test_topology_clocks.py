"""Timelines whose clocks disagree, whose replicas are missing, or whose columns contradict each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from timeline_kit import Job, Rows

from eroica.offline.timelines import diagnose_timeline
from eroica.schemas.settings import load_settings
from eroica.schemas.verdicts import Verdict

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

pytestmark = [pytest.mark.unit, pytest.mark.timeout(120)]
DATA = Path(__file__).resolve().parents[3] / "../shared/data/straggler_analysis"
published = pytest.mark.skipif(not DATA.exists(), reason="the published timelines are not on this machine")
Shift = Callable[[int, int, int], float]
"""(replica, stage, step) → seconds that the clock is ahead."""


def judge(tmp_path: Path, rows: Rows) -> Verdict:
    path = tmp_path / "job.parquet"
    pq.write_table(pa.table({c: [r[c] for r in rows] for c in rows[0]}), path)
    return diagnose_timeline(path, load_settings())


def shifted(rows: Rows, by: Shift) -> Rows:
    return [{**r, "start_ts": r["start_ts"] + by(r["dp_rank"], r["stage"], r["step"])} for r in rows]


def told(verdict: Verdict) -> tuple[Any, ...]:
    causes = [(c.class_, c.suspects.ranks, c.suspects.stages, c.confidence) for c in verdict.causes]
    return verdict.status, causes, verdict.waiters.ranks


def notes(verdict: Verdict, of: str) -> list[str]:
    return [note for note in verdict.coverage.notes if of in note]


SHIFTS: dict[str, tuple[Shift, str]] = {
    "a replica": (lambda d, _s, _k: 0.3 * (d == 1), "dp 1 0.30 s ahead"),
    "a replica, far": (lambda d, _s, _k: -3600.0 * (d == 0), "dp 0 3,600.0 s behind"),
    "a stage": (lambda _d, s, _k: 0.05 * (s == 2), "stage 2 50 ms ahead"),
    "a worker": (lambda d, s, _k: 2.0 * ((d, s) == (2, 1)), "(dp 2, stage 1) 2.0 s ahead"),
    "a replica from some step on": (lambda d, _s, k: 1.5 * (d == 3 and k >= 3), "dp 3 1.5 s ahead in 1 of 4 steps"),
}


@pytest.mark.parametrize(("by", "says"), SHIFTS.values(), ids=SHIFTS)
@pytest.mark.parametrize("fault", ["worker", "stage", "none"])
def test_a_clock_that_is_off_changes_nothing_but_a_note(tmp_path: Path, by: Shift, says: str, fault: str) -> None:
    def cost(d: int, s: int, _k: int, _m: int) -> float:
        return 2.5 if fault == "worker" and (d, s) == (0, 1) else 1.6 if fault == "stage" and s == 2 else 1.0

    rows = Job(dp=4, pp=3, micro=6, steps=4, cost=cost).rows()
    right, verdict = judge(tmp_path, rows), judge(tmp_path, shifted(rows, by))
    assert told(verdict) == told(right)
    assert verdict.impact.slowdown == pytest.approx(right.impact.slowdown, rel=1e-3)
    assert [says in note for note in notes(verdict, "clocks")] == [True]
    assert not notes(right, "clocks")
    assert not notes(right, "contradict")


@pytest.mark.parametrize("dp", [2, 3])
def test_replicas_without_a_pipeline_are_put_on_one_clock(tmp_path: Path, dp: int) -> None:
    rows = Job(dp=dp, pp=1, cost=lambda d, _s, _k, _m: 2.0 if d == 1 else 1.0).rows()
    verdict = judge(tmp_path, shifted(rows, lambda d, _s, _k: 5.0 * (d == 0)))
    assert told(verdict) == told(judge(tmp_path, rows))
    assert notes(verdict, "clocks are off")


@published
@pytest.mark.parametrize("by", [0.004, 0.1, 30.0])
@pytest.mark.parametrize(("job", "who"), [("AR", "dp_rank"), ("AR", "stage"), ("ST", "stage"), ("ST", "dp_rank")])
def test_a_published_timeline_with_a_clock_off_keeps_its_verdict(tmp_path: Path, job: str, who: str, by: float) -> None:
    table = pq.read_table(DATA / f"trace-{job}.parquet")
    start = table["start_ts"].to_numpy().astype(float) + by * (table[who].to_numpy() == 1)
    path = tmp_path / "shifted.parquet"
    pq.write_table(table.set_column(table.schema.get_field_index("start_ts"), "start_ts", pa.array(start)), path)
    right, verdict = (diagnose_timeline(p, load_settings()) for p in (DATA / f"trace-{job}.parquet", path))
    assert told(verdict) == told(right)
    assert verdict.impact.slowdown == pytest.approx(right.impact.slowdown, rel=5e-3)
    assert not notes(right, "clocks")
    assert bool(notes(verdict, "clocks are off")) == (by >= 0.1)


@pytest.mark.parametrize("fault", ["worker", "none"])
def test_ends_that_nothing_brings_together_leave_less_certainty(tmp_path: Path, fault: str) -> None:
    """Of all replicas but the first, which tells the order of operations, each transfer is recorded a little anywhere."""
    chance = np.random.default_rng(3)
    cost = 2.5 if fault == "worker" else 1.0
    rows = Job(dp=4, pp=3, micro=6, steps=4, cost=lambda d, s, _k, _m: cost if (d, s) == (1, 1) else 1.0).rows()
    for row in rows:
        if row["dp_rank"] and row["optype"].endswith(("send", "recv", "scatter")):
            row["start_ts"] += float(chance.normal(0, 0.4))
    verdict = judge(tmp_path, rows)
    assert notes(verdict, "the times contradict each other")
    assert not {c.class_ for c in verdict.causes} & {"link", "fabric"}
    assert all(c.confidence <= 0.7 for c in verdict.causes)
    assert [c.suspects.ranks for c in verdict.causes if c.class_ == "worker"] == (["5"] if fault == "worker" else [])


@pytest.mark.parametrize(("gone", "ranks"), [(0, "0-1,8-9"), (2, "4-5,12-13"), (3, "6-7,14-15")])
def test_a_replica_that_is_missing_is_said(tmp_path: Path, gone: int, ranks: str) -> None:
    slow = (gone + 1) % 4
    job = Job(dp=4, pp=2, tp=2, cost=lambda d, s, _k, _m: 3.0 if (d, s) == (slow, 0) else 1.0)
    verdict = judge(tmp_path, [r for r in job.rows() if r["dp_rank"] != gone])
    assert (verdict.coverage.expected, verdict.coverage.received, verdict.coverage.missing) == (16, 12, ranks)
    assert any(f"dp {gone} of 4 is not in the timeline" in note for note in verdict.coverage.notes)
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("worker", f"{2 * slow}-{2 * slow + 1}")]
    assert f"(dp {slow}, stage 0)" in verdict.headline


def test_the_wait_for_a_replica_that_nobody_saw_is_not_laid_on_the_fabric(tmp_path: Path) -> None:
    job = Job(dp=4, pp=2, cost=lambda d, _s, _k, _m: 3.0 if d == 0 else 1.0)
    whole = judge(tmp_path, job.rows())
    assert whole.causes[0].class_ == "data_imbalance"
    verdict = judge(tmp_path, [r for r in job.rows() if r["dp_rank"]])
    assert (verdict.status, verdict.causes) == ("no_fault_found", [])
    assert notes(verdict, "may be those that are not in the timeline")


def renamed(rows: Rows, name: Callable[[dict[str, Any]], int]) -> Rows:
    return [{**r, "rank": name(r)} for r in rows]


def of(row: dict[str, Any], kind: str, lane: int) -> bool:
    return (row["optype"], row["dp_rank"]) == (kind, lane)


CONTRADICTIONS: dict[str, tuple[Callable[[Rows], Rows], str]] = {
    "two replicas change names": (
        lambda rows: renamed(rows, lambda r: {0: 2, 2: 0}.get(r["dp_rank"], r["dp_rank"]) + 4 * r["stage"]),
        "no layout numbers ranks so",
    ),
    "all workers have one rank": (lambda rows: renamed(rows, lambda _r: 0), "several workers have one rank"),
    "some rows have another rank": (
        lambda rows: [{**r, "rank": 7} if r["optype"] == "optimizer" else r for r in rows],
        "rows name another rank than most",
    ),
    "sequence numbers run backwards": (
        lambda rows: [{**r, "seq_id": 3 - r["seq_id"]} if of(r, "forward-compute", 3) else r for r in rows],
        "'seq_id' and 'start_ts' contradict",
    ),
    "stages share a place in the model": (
        lambda rows: [{**r, "gmc": 0} if r["gmc"] >= 0 and r["dp_rank"] == 3 else r for r in rows],
        "'stage', 'mc' and 'gmc' contradict",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("broken", "says"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_columns_that_contradict_each_other_are_said(tmp_path: Path, broken: Callable[[Rows], Rows], says: str) -> None:
    rows = Job(dp=4, pp=2, cost=lambda d, s, _k, _m: 2.5 if (d, s) == (0, 0) else 1.0).rows()
    assert not notes(judge(tmp_path, rows), "contradict")
    verdict = judge(tmp_path, broken(rows))
    assert notes(verdict, says)
    if "rank" in says:
        assert all(c.confidence <= 0.7 for c in verdict.causes if c.class_ == "worker")


def test_ranks_that_run_through_a_replica_first_are_a_layout_too(tmp_path: Path) -> None:
    job = Job(dp=3, pp=2, cost=lambda d, s, _k, _m: 2.5 if (d, s) == (1, 1) else 1.0)
    verdict = judge(tmp_path, renamed(job.rows(), lambda r: 4 * r["dp_rank"] + 2 * r["stage"]))
    assert [(c.suspects.ranks, c.confidence > 0.9) for c in verdict.causes] == [("6-7", True)]
    assert verdict.coverage.expected == 12
    assert not notes(verdict, "contradict")


@pytest.mark.parametrize(("begins", "when"), [(0.0, ""), (1_600_000_000.0, "2020-09-13T1")])
def test_a_date_is_told_only_where_the_file_has_one(tmp_path: Path, begins: float, when: str) -> None:
    verdict = judge(tmp_path, shifted(Job().rows(), lambda _d, _s, _k: begins))
    assert verdict.event_time[:12] == when
