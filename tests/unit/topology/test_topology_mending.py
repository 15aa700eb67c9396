"""From a timeline to causes and to a verdict: jobs of any shape, and the two published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from timeline_kit import Job, recorded

from eroica.offline.diagnose import diagnose
from eroica.offline.timelines import diagnose_timeline, timeline_in
from eroica.schemas.codec import encode
from eroica.schemas.errors import InvalidInput
from eroica.schemas.ranks import parse_ranks
from eroica.schemas.settings import load_settings
from eroica.schemas.verdicts import Verdict
from eroica.topology.straggler_analysis import DERIVED, read_timeline

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

pytestmark = pytest.mark.unit
DATA = Path(__file__).resolve().parents[3] / "../shared/data/straggler_analysis"
published = pytest.mark.skipif(not DATA.exists(), reason="the published timelines are not on this machine")


def write(path: Path, rows: list[dict[str, Any]], without: tuple[str, ...] = ()) -> Path:
    pq.write_table(pa.table({c: [r[c] for r in rows] for c in rows[0] if c not in without}), path)
    return path


def judge(tmp_path: Path, job: Job, without: tuple[str, ...] = ()) -> Verdict:
    return diagnose_timeline(write(tmp_path / "job.parquet", job.rows(), without), load_settings())


@published
def test_the_slow_worker_of_ar_is_named_and_its_figures_are_the_published_ones() -> None:
    verdict = diagnose(DATA / "trace-AR.parquet", load_settings()).verdict
    assert verdict.status == "culprit_found"
    assert [c.class_ for c in verdict.causes] == ["worker"]
    assert (verdict.causes[0].suspects.ranks, verdict.causes[0].suspects.stages) == ("0-3", [0])
    assert "(dp 0, stage 0)" in verdict.headline
    assert verdict.waiters.ranks == "4-63"
    impact = verdict.impact
    assert impact.slowdown == pytest.approx(1.973, rel=0.01)
    assert impact.recovered_by_slowest_3pct == pytest.approx(1.0017, rel=0.01)
    assert impact.recovered_by_last_stage == pytest.approx(-0.0012, rel=0.02)
    forward = next(e for e in verdict.causes[0].evidence if e.metric == "mean forward-compute")
    assert (forward.value, forward.expected) == (pytest.approx(546, rel=0.01), pytest.approx(218, rel=0.01))


@published
def test_the_heavy_stage_of_st_accuses_no_machine() -> None:
    verdict = diagnose(DATA / "trace-ST.parquet", load_settings()).verdict
    assert verdict.status == "shared_cause"
    assert [c.class_ for c in verdict.causes] == ["pipeline_stage"]
    suspects = verdict.causes[0].suspects
    assert (suspects.stages, suspects.ranks, suspects.hosts, suspects.links) == ([3], "", [], [])
    impact = verdict.impact
    assert impact.slowdown == pytest.approx(1.179, rel=0.01)
    assert impact.recovered_by_slowest_3pct == pytest.approx(0.031, rel=0.02)
    assert impact.recovered_by_last_stage == pytest.approx(1.219, rel=0.01)


def slow_at(d: int, s: int, by: float) -> Any:
    return lambda lane, stage, _step, _micro: by if (lane, stage) == (d, s) else 1.0


SHAPES = {
    "as published": {"dp": 4, "pp": 4, "tp": 4, "micro": 8},
    "no pipeline": {"dp": 6, "pp": 1},
    "no pipeline, one micro-batch": {"dp": 6, "pp": 1, "micro": 1},
    "one micro-batch": {"dp": 4, "pp": 2, "micro": 1},
    "one step": {"dp": 4, "pp": 3, "steps": 1},
    "many steps": {"dp": 3, "pp": 2, "steps": 20},
    "many replicas": {"dp": 40, "pp": 2, "tp": 2},
    "more stages than micro-batches": {"dp": 3, "pp": 6, "micro": 2},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("without", [(), DERIVED], ids=["all columns", "few columns"])
def test_a_slow_worker_is_named_whatever_the_shape(tmp_path: Path, shape: dict[str, int], without: tuple[str, ...]) -> None:
    stage = shape["pp"] - 1
    job = Job(**shape, cost=slow_at(1, stage, 2.5))  # type: ignore[arg-type]
    verdict = judge(tmp_path, job, without)
    assert [c.class_ for c in verdict.causes] == ["worker"]
    width = 1 if without else job.tp
    first = (stage * job.dp + 1) * width
    assert parse_ranks(verdict.causes[0].suspects.ranks).tolist() == list(range(first, first + width))
    assert verdict.coverage.expected == job.dp * job.pp * width
    assert verdict.causes[0].explains > 0.8
    assert (verdict.impact.recovered_by_last_stage is None) == (job.pp == 1)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_healthy_job_accuses_nobody(tmp_path: Path, shape: dict[str, int]) -> None:
    verdict = judge(tmp_path, Job(**shape))  # type: ignore[arg-type]
    assert (verdict.status, verdict.causes) == ("no_fault_found", [])
    assert verdict.impact.slowdown == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("dp", [2, 3, 8])
@pytest.mark.parametrize("heavy", [0, 1, 3])
def test_a_stage_that_is_heavy_in_every_replica_is_no_machine(tmp_path: Path, dp: int, heavy: int) -> None:
    job = Job(dp=dp, pp=4, micro=8, cost=lambda _d, s, _k, _m: 1.6 if s == heavy else 1.0)
    verdict = judge(tmp_path, job)
    assert [(c.class_, c.suspects.stages, c.suspects.ranks) for c in verdict.causes] == [("pipeline_stage", [heavy], "")]


def test_with_one_replica_a_heavy_stage_and_a_slow_machine_look_alike(tmp_path: Path) -> None:
    verdict = judge(tmp_path, Job(dp=1, pp=4, micro=8, cost=slow_at(0, 2, 1.8)))
    assert [c.class_ for c in verdict.causes] == ["pipeline_stage"]
    assert verdict.causes[0].confidence <= 0.6
    assert any("look alike" in note for note in verdict.coverage.notes)


CHUNKED = [(4, 3, 2, 8, "interleaved-1f1b"), (2, 4, 3, 4, "interleaved-1f1b"), (4, 3, 2, 8, "looped-bfs"), (4, 3, 1, 8, "gpipe")]


@pytest.mark.parametrize(("pp", "dp", "chunks", "micro", "schedule"), CHUNKED)
def test_other_schedules_and_several_chunks_a_stage(
    tmp_path: Path, pp: int, dp: int, chunks: int, micro: int, schedule: str
) -> None:
    rows, step = recorded(pp, dp, chunks, micro, schedule, (1, pp - 1, 2.0))
    path = write(tmp_path / "t.parquet", rows)
    assert read_timeline(path).what_if().report().step == pytest.approx(step, rel=0.01)
    verdict = diagnose_timeline(path, load_settings())
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("worker", str((pp - 1) * dp + 1))]
    healthy, _ = recorded(pp, dp, chunks, micro, schedule, (0, 0, 1.0))
    assert diagnose_timeline(write(tmp_path / "h.parquet", healthy), load_settings()).status == "no_fault_found"


def test_two_slow_workers_of_one_stage_are_both_named(tmp_path: Path) -> None:
    job = Job(dp=6, pp=2, micro=4, cost=lambda d, s, _k, _m: 2.0 if s == 0 and d in (1, 4) else 1.0)
    verdict = judge(tmp_path, job)
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("worker", "1,4")]


def test_a_slow_worker_in_a_job_with_a_heavy_stage_is_named_beside_it(tmp_path: Path) -> None:
    def cost(d: int, s: int, _k: int, _m: int) -> float:
        return 3.0 if (d, s) == (2, 0) else 1.5 if s == 3 else 1.0

    verdict = judge(tmp_path, Job(dp=4, pp=4, micro=8, cost=cost))
    assert verdict.causes[0].class_ == "worker"
    assert verdict.causes[0].suspects.ranks == "2"
    assert {c.class_ for c in verdict.causes[1:]} <= {"pipeline_stage"}


def test_micro_batches_of_unequal_length_are_data_and_no_machine(tmp_path: Path) -> None:
    def cost(d: int, _s: int, k: int, m: int) -> float:
        return 1.0 + 2.0 * ((7 * d + 5 * k + 3 * m) % 11 == 0)

    verdict = judge(tmp_path, Job(dp=4, pp=2, micro=8, steps=8, cost=cost))
    assert [c.class_ for c in verdict.causes] == ["data_imbalance"]
    assert verdict.status == "shared_cause"


def test_garbage_collection_in_other_steps_on_other_workers_is_a_pause(tmp_path: Path) -> None:
    job = Job(dp=4, pp=2, micro=4, steps=6, pause=lambda d, s, k: 8.0 if (d + 2 * s + k) % 5 == 0 else 0.01)
    assert [c.class_ for c in judge(tmp_path, job).causes] == ["software_pause"]


def test_a_first_step_that_was_cut_does_not_decide_what_a_step_is(tmp_path: Path) -> None:
    rows = Job(dp=3, pp=2, steps=4, cost=slow_at(0, 0, 2.0)).rows()
    rows = [r for r in rows if not (r["step"] == 0 and r["seq_id"] == 0 and r["optype"] == "forward-compute")]
    timeline = read_timeline(write(tmp_path / "t.parquet", rows))
    assert timeline.steps.tolist() == [1, 2, 3]


def test_equal_files_give_equal_bytes_wherever_they_stand(tmp_path: Path) -> None:
    rows = Job(dp=3, cost=slow_at(0, 0, 2.0)).rows()
    other = tmp_path / "elsewhere"
    other.mkdir()
    one = write(tmp_path / "job.parquet", rows)
    two = write(other / "job.parquet", rows)
    assert encode(diagnose_timeline(one, load_settings())) == encode(diagnose_timeline(two, load_settings()))
    assert timeline_in(other) == two
    write(other / "second.parquet", rows)
    with pytest.raises(InvalidInput, match="2 timelines, each of another job"):
        timeline_in(other)


def test_cells_that_are_empty_and_chunks_without_their_place_are_refused(tmp_path: Path) -> None:
    rows = Job().rows()
    rows[3]["step"] = None
    with pytest.raises(InvalidInput, match="column 'step' has 1 empty cells"):
        read_timeline(write(tmp_path / "a.parquet", rows))
    rows = Job().rows()
    rows[0]["mc"] = 1
    with pytest.raises(InvalidInput, match="no column 'gmc'"):
        read_timeline(write(tmp_path / "b.parquet", rows, ("gmc",)))
