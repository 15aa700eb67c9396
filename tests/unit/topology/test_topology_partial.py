"""Timelines that hold a part of their job: without the last stages, or one replica alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from timeline_kit import Job, Rows, recorded

from eroica.offline.timelines import diagnose_timeline
from eroica.schemas.errors import InvalidInput
from eroica.schemas.settings import load_settings
from eroica.schemas.verdicts import Verdict
from eroica.topology.straggler_analysis import DERIVED

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

pytestmark = pytest.mark.unit


def judge(tmp_path: Path, rows: Rows, without: tuple[str, ...] = ()) -> Verdict:
    path = tmp_path / "job.parquet"
    pq.write_table(pa.table({c: [r[c] for r in rows] for c in rows[0] if c not in without}), path)
    return diagnose_timeline(path, load_settings())


def notes_of(verdict: Verdict, words: str) -> list[str]:
    return [n for n in verdict.coverage.notes if words in n]


def told(verdict: Verdict) -> tuple[int, int, str]:
    return verdict.coverage.expected, verdict.coverage.received, verdict.coverage.missing


@pytest.mark.parametrize(
    ("held", "missing", "says"),
    [
        pytest.param(3, "12-15", "stage 3 is not in the timeline: ranks 12-15 were not seen", id="without the last"),
        pytest.param(2, "8-15", "stages 2-3 are not in the timeline: ranks 8-15 were not seen", id="without the last two"),
        pytest.param(1, "4-15", "stages 1-3 are not in the timeline: ranks 4-15 were not seen", id="the first alone"),
    ],
)
def test_the_wait_for_stages_that_nobody_saw_is_laid_on_nothing(tmp_path: Path, held: int, missing: str, says: str) -> None:
    def heavy(_d: int, s: int, step: int, m: int) -> float:
        return 3.0 + (step + m) % 3 if s == 3 else 1.0

    job = Job(dp=2, pp=4, tp=2, micro=8, cost=heavy)
    verdict = judge(tmp_path, [r for r in job.rows() if r["stage"] < held])
    assert (verdict.status, verdict.causes) == ("insufficient_data", [])
    assert told(verdict) == (16, 4 * held, missing)
    assert len(notes_of(verdict, says)) == 1
    assert "perhaps more" not in notes_of(verdict, says)[0]
    assert bool(notes_of(verdict, "not enough to accuse (0.40")) == (held > 1)


def test_how_many_stages_are_missing_is_a_least_where_the_order_does_not_tell(tmp_path: Path) -> None:
    rows, _ = recorded(4, 3, 1, 8, "gpipe", (0, 0, 1.0))
    verdict = judge(tmp_path, [r for r in rows if r["stage"] < 2])
    assert told(verdict) == (9, 6, "6-8")
    assert notes_of(verdict, "stage 2 is not in the timeline, perhaps more: ranks 6-8 were not seen")


@pytest.mark.parametrize("without", [(), DERIVED], ids=["all columns", "few columns"])
def test_a_slow_worker_is_named_though_the_last_stage_is_missing(tmp_path: Path, without: tuple[str, ...]) -> None:
    job = Job(dp=4, pp=4, micro=8, cost=lambda d, s, _k, _m: 4.0 if (d, s) == (1, 2) else 1.0)
    verdict = judge(tmp_path, [r for r in job.rows() if r["stage"] < 3], without)
    assert {(c.class_, c.suspects.ranks) for c in verdict.causes} == {("worker", "9")}
    assert told(verdict) == (16, 12, "12-15")


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("micro", [1, 2, 8])
def test_a_whole_pipeline_lacks_nothing(tmp_path: Path, pp: int, micro: int) -> None:
    verdict = judge(tmp_path, Job(dp=2, pp=pp, micro=micro).rows())
    assert told(verdict) == (2 * pp, 2 * pp, "")
    assert not notes_of(verdict, "not in the timeline")


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("interleaved-1f1b", 2)])
def test_other_schedules_lack_nothing(tmp_path: Path, schedule: str, chunks: int) -> None:
    rows, _ = recorded(4, 2, chunks, 8, schedule, (0, 0, 1.0))
    assert told(judge(tmp_path, rows)) == (8, 8, "")


@pytest.mark.parametrize("held", [1, 2, 3])
@pytest.mark.parametrize(("schedule", "chunks"), [("looped-bfs", 3), ("interleaved-1f1b", 2)])
def test_places_of_chunks_tell_how_many_stages_are_missing(tmp_path: Path, schedule: str, chunks: int, held: int) -> None:
    rows, _ = recorded(4, 2, chunks, 8, schedule, (0, 3, 3.0))
    verdict = judge(tmp_path, [r for r in rows if r["stage"] < held])
    assert (verdict.status, verdict.causes) == ("insufficient_data", [])
    assert told(verdict) == (8, 2 * held, f"{2 * held}-7")
    assert len(notes_of(verdict, "the chunks of a stage lie 4 apart in the model")) == 1
    assert not notes_of(verdict, "perhaps more")


def test_a_slow_worker_of_several_chunks_is_named_though_the_last_stage_is_missing(tmp_path: Path) -> None:
    rows, _ = recorded(4, 4, 2, 8, "interleaved-1f1b", (1, 2, 4.0))
    verdict = judge(tmp_path, [r for r in rows if r["stage"] < 3])
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes if c.class_ == "worker"] == [("worker", "9")]
    assert told(verdict) == (16, 12, "12-15")


def test_chunks_in_a_v_are_refused_with_a_sentence(tmp_path: Path) -> None:
    rows, _ = recorded(4, 2, 2, 8, "interleaved-1f1b", (0, 0, 1.0))
    folded = [{**r, "gmc": 7 - r["stage"]} if r["gmc"] >= 4 else r for r in rows]
    with pytest.raises(InvalidInput, match="in the opposite order"):
        judge(tmp_path, folded)


def test_a_recorder_that_lists_transfers_without_a_peer_says_nothing_of_stages(tmp_path: Path) -> None:
    rows = Job(dp=2, pp=2, micro=4).rows()
    listed: list[dict[str, Any]] = []
    for r in rows:
        direction = r["optype"].removesuffix("-compute")
        ends = {("forward", 0): "recv", ("forward", 1): "send", ("backward", 0): "send", ("backward", 1): "recv"}
        if r["optype"].endswith("-compute"):
            way = ends[direction, r["stage"]]
            start = r["start_ts"] + (r["duration"] if way == "send" else -0.001)
            listed.append(
                {**r, "optype": f"{direction}-{way}", "start_ts": start, "duration": 0.001, "mc": -1, "mb_id": -1, "gmc": -1}
            )
    verdict = judge(tmp_path, [*rows, *listed])
    assert told(verdict) == (4, 4, "")


@pytest.mark.parametrize(("dp", "tp"), [(4, 4), (1, 16), (2, 2)])
def test_one_replica_whose_ranks_fit_several_layouts_is_no_full_coverage(tmp_path: Path, dp: int, tp: int) -> None:
    job = Job(dp=dp, pp=4, tp=tp, micro=8, cost=lambda _d, s, _k, _m: 3.0 if s == 2 else 1.0)
    verdict = judge(tmp_path, [r for r in job.rows() if r["dp_rank"] == 0])
    wide = dp * tp
    assert (verdict.coverage.expected, verdict.coverage.received) == (4 * wide, 4)
    assert notes_of(verdict, f"nothing tells whether the {wide} ranks of a stage are tensor-parallel or replicas")
    assert not notes_of(verdict, "one row for")
    assert [(c.class_, c.confidence <= 0.7) for c in verdict.causes] == [("pipeline_stage", True)]


@pytest.mark.parametrize("without", [(), DERIVED], ids=["all columns", "few columns"])
def test_one_replica_with_a_rank_a_stage_is_all_of_it(tmp_path: Path, without: tuple[str, ...]) -> None:
    verdict = judge(tmp_path, Job(dp=1, pp=4, micro=8).rows(), without)
    assert told(verdict) == (4, 4, "")
    assert not notes_of(verdict, "nothing tells")


def test_transfers_of_one_replica_are_accused_only_where_it_is_all_of_the_job(tmp_path: Path) -> None:
    def slow_in_some_steps(tp: int) -> Rows:
        rows: Rows = []
        for step, by in enumerate((1.0, 1.0, 150.0)):
            job = Job(dp=1, pp=4, tp=tp, micro=8, steps=1, link=lambda _d, _s, _to, _k, by=by: by)  # type: ignore[misc]
            rows += [{**r, "step": step, "start_ts": r["start_ts"] + 1000.0 * step} for r in job.rows()]
        return rows

    assert {c.class_ for c in judge(tmp_path, slow_in_some_steps(1)).causes} <= {"fabric", "link"}
    assert judge(tmp_path, slow_in_some_steps(1)).causes
    verdict = judge(tmp_path, slow_in_some_steps(2))
    assert verdict.causes == []
    assert notes_of(verdict, "not enough to accuse (0.40")
