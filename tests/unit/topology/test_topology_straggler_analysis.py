from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.schemas.errors import InvalidInput
from eroica.topology.straggler_analysis import COLUMNS as NEEDED
from eroica.topology.straggler_analysis import DERIVED, is_timeline, read_timeline

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

pytestmark = pytest.mark.unit
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")
assert {*NEEDED, *DERIVED} < set(COLUMNS)
DATA = Path(__file__).resolve().parents[3] / "../shared/data/straggler_analysis"
published = pytest.mark.skipif(not DATA.exists(), reason="the published timelines are not on this machine")


@published
@pytest.mark.parametrize("job", ["AR", "ST"])
def test_figures_equal_the_published_ones(job: str) -> None:
    what = json.loads((DATA / f"result-{job}.json").read_text(encoding="utf-8"))
    report = read_timeline(DATA / f"trace-{job}.parquet").what_if().report()
    assert report.slowdown == pytest.approx(what["blocking_slowdown"], rel=1e-4)
    assert report.ideal_step == pytest.approx(next(iter(what["step_t_noblk"].values())), rel=1e-4)
    for name, share in (("mw", report.recovered_by_slowest_3pct), ("ms", report.recovered_by_last_stage)):
        told = json.loads((DATA / f"{name}-{job}.json").read_text(encoding="utf-8"))["rem"]
        assert share == pytest.approx(told, rel=1e-3, abs=1e-6)
    for lane, slowdown in what["blocking_decompose_by_dp_rank"].items():
        assert report.by_lane[int(lane)] == pytest.approx(slowdown, rel=1e-4)
    for stage, slowdown in what["blocking_decompose_by_stage"].items():
        assert report.by_stage[int(stage)] == pytest.approx(slowdown, rel=1e-4)


@published
def test_the_slow_worker_is_named_and_the_heavy_stage_names_nobody() -> None:
    slow_worker = read_timeline(DATA / "trace-AR.parquet")
    assert slow_worker.what_if().report().slowest == ((0, 0),)
    assert slow_worker.who.rank_of[1].tolist() == [4, 20, 36, 52]
    heavy = read_timeline(DATA / "trace-ST.parquet").what_if().report()
    assert int(heavy.by_stage.argmax()) == 3
    assert heavy.recovered_by_last_stage > 1
    assert heavy.recovered_by_slowest_3pct < 0.1


def pipeline_rows(dp: int = 2, steps: int = 3, slow: tuple[int, int] = (-1, -1)) -> dict[str, list[Any]]:
    """A two-stage pipeline of two micro-batches, forward then backward, recorded without waiting in its computations."""
    out: dict[str, list[Any]] = {c: [] for c in COLUMNS}

    def put(d: int, s: int, step: int, kind: str, start: float, duration: float, seq: int) -> None:
        micro = seq if kind.endswith("compute") else -1
        row = (d, s, s * dp + d, step, kind, start, duration, seq, 0 if micro >= 0 else -1, micro, s if micro >= 0 else -1)
        for column, value in zip(COLUMNS, row, strict=True):
            out[column].append(value)

    for step in range(steps):
        for d in range(dp):
            f = 2.0 if slow == (d, 0) else 1.0
            put(d, 0, step, "forward-compute", 0.0, f, 0)
            put(d, 0, step, "forward-send", f, 0.1, 0)
            put(d, 0, step, "forward-compute", f, f, 1)
            put(d, 0, step, "forward-send", 2 * f, 0.2, 1)
            put(d, 1, step, "forward-recv", 0.0, f + 0.1, 0)
            put(d, 1, step, "forward-compute", f + 0.1, 1.0, 0)
            put(d, 1, step, "forward-recv", f + 1.1, f - 0.9 if f > 1 else 0.1, 1)
            put(d, 1, step, "forward-compute", 2 * f + 0.3, 1.0, 1)
            t = 2 * f + 1.3
            for micro in (0, 1):
                put(d, 1, step, "backward-compute", t + micro, 1.0, micro)
                put(d, 1, step, "backward-send", t + micro + 1, 0.1, micro)
                put(d, 0, step, "backward-recv", t + micro + (0 if micro == 0 else 1.05), 1.1 if micro == 0 else 0.05, micro)
                put(d, 0, step, "backward-compute", t + micro + 1.1, 1.0, micro)
            for s in (0, 1):
                put(d, s, step, "grads-reduce-scatter", t + 4.0, 0.2, 0)
                put(d, s, step, "optimizer-clip-main-grad", t + 4.3, 0.1, 0)
                put(d, s, step, "optimizer", t + 4.5, 0.2, 0)
    return out


def write(path: Path, rows: dict[str, list[Any]]) -> Path:
    pq.write_table(pa.table(rows), path)
    return path


def test_a_slow_replica_of_a_written_timeline_is_found(tmp_path: Path) -> None:
    report = read_timeline(write(tmp_path / "t.parquet", pipeline_rows(dp=4, slow=(2, 0)))).what_if().report()
    assert report.slowdown > 1.1
    assert int(report.by_lane.argmax()) == 2
    assert report.slowest[0] == (2, 0)


def test_incomplete_steps_are_left_out_and_noted(tmp_path: Path) -> None:
    rows = pipeline_rows()
    cut = {c: values[:-1] for c, values in rows.items()}
    timeline = read_timeline(write(tmp_path / "t.parquet", cut))
    assert timeline.steps.tolist() == [0, 1]
    assert timeline.notes == ("1 of 3 steps are incomplete and left out",)


@pytest.mark.parametrize(
    ("column", "value"),
    [("duration", float("nan")), ("duration", float("inf")), ("start_ts", float("nan")), ("duration", None), ("start_ts", None)],
)
@pytest.mark.parametrize("without", [(), DERIVED], ids=["all columns", "few columns"])
def test_a_time_that_is_no_number_costs_its_step_like_a_row_that_is_missing(
    tmp_path: Path, column: str, value: float | None, without: tuple[str, ...]
) -> None:
    rows = {c: v for c, v in mutate(column, value, len(pipeline_rows()["step"]) // 2).items() if c not in without}
    timeline = read_timeline(write(tmp_path / "t.parquet", rows))
    assert timeline.steps.tolist() == [0, 2]
    count = len(rows["step"])
    assert timeline.notes[:2] == (
        f"1 of {count} rows has no number in column '{column}' and is left out", "1 of 3 steps are incomplete and left out",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        pytest.param({(1, 1)}, "no row is of dp 1, stage 1", id="a worker"),
        pytest.param({(1, 1), (3, 0)}, "no row is of dp 1, stage 1, dp 3, stage 0", id="two workers"),
        pytest.param({(d, 0) for d in range(4)}, "stage 0 has no rows in any replica", id="the first stage"),
    ],
)
@pytest.mark.parametrize("without", [(), DERIVED], ids=["all columns", "few columns"])
def test_a_worker_without_rows_is_named(tmp_path: Path, gone: set[tuple[int, int]], says: str, without: tuple[str, ...]) -> None:
    rows = pipeline_rows(dp=4)
    keep = [i for i, w in enumerate(zip(rows["dp_rank"], rows["stage"], strict=True)) if w not in gone]
    cut = {c: [v[i] for i in keep] for c, v in rows.items() if c not in without}
    with pytest.raises(InvalidInput, match=says):
        read_timeline(write(tmp_path / "t.parquet", cut))


def mutate(column: str, value: Any, at: int = 0) -> dict[str, list[Any]]:
    rows = pipeline_rows()
    rows[column] = [*rows[column][:at], value, *rows[column][at + 1 :]]
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({c: [] for c in COLUMNS}, "empty"),
        ({c: v for c, v in pipeline_rows().items() if c != "duration"}, "no column 'duration'"),
        ({**pipeline_rows(), "duration": [float("nan")] * len(pipeline_rows()["step"])}, "no row has a number for its times"),
        (mutate("dp_rank", -1), "negative"),
        (mutate("seq_id", 2**31 - 1), "far more sequence numbers"),
        (mutate("dp_rank", 2**31 - 1), "far more replicas or stages"),
        (mutate("seq_id", 1), "sequence number of another"),
        (mutate("duration", -1.0), "duration is negative"),
        ({**pipeline_rows(), "step": list(range(len(pipeline_rows()["step"])))}, "computes nothing|no step has every"),
        ({**pipeline_rows(), "start_ts": ["x"] * len(pipeline_rows()["step"])}, "not a readable timeline"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, rows: dict[str, list[Any]], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        read_timeline(write(tmp_path / "t.parquet", rows))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 64, b"{}"])
def test_broken_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    assert is_timeline(path) == content.startswith(b"PAR1")
    with pytest.raises(InvalidInput, match=r"t\.parquet"):
        read_timeline(path)


def test_an_unpaired_transfer_is_refused(tmp_path: Path) -> None:
    rows = pipeline_rows(dp=1, steps=1)
    keep = [i for i, k in enumerate(rows["optype"]) if not (k == "forward-recv" and rows["seq_id"][i] == 1)]
    cut = {c: [v[i] for i in keep] for c, v in rows.items()}
    with pytest.raises(InvalidInput, match="stage 0 sends 2 times forward, but stage 1 receives 1 times"):
        read_timeline(write(tmp_path / "t.parquet", cut))


def test_transfer_is_what_follows_the_last_arrival(tmp_path: Path) -> None:
    timeline = read_timeline(write(tmp_path / "t.parquet", pipeline_rows()))
    names = [str(op) for op in timeline.graph.ops]
    received = timeline.transfer_s[names.index("forward-recv 0 of stage 1")]
    assert np.allclose(received, 0.1)
