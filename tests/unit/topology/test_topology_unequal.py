"""Uneven compute of a timeline: lengths of data, a pause of one worker, a slow replica; and chance, which is none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from timeline_kit import Cost, Job

from eroica.offline.timelines import diagnose_timeline
from eroica.schemas.settings import load_settings
from eroica.schemas.verdicts import Verdict

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

pytestmark = pytest.mark.unit


def judge(tmp_path: Path, job: Job) -> Verdict:
    path, rows = tmp_path / "job.parquet", job.rows()
    pq.write_table(pa.table({c: [r[c] for r in rows] for c in rows[0]}), path)
    return diagnose_timeline(path, load_settings())


def at(*cells: tuple[int, int, int], by: float) -> Cost:
    return lambda d, s, k, _m: by if (d, s, k) in cells else 1.0


ONCE: dict[str, tuple[int, Cost, str, str]] = {
    # stages, cost, ranks, words of the headline
    "of a job without a pipeline": (1, at((1, 0, 4), by=6.0), "1", "rank 1, (dp 1, stage 0) in step 4, computed 6.00 times"),
    "of one stage": (2, at((1, 1, 4), by=6.0), "5", "rank 5, (dp 1, stage 1) in step 4, computed 6.00 times"),
    "in one micro-batch": (2, lambda d, s, k, m: 30.0 if (d, s, k, m) == (1, 1, 4, 2) else 1.0, "5", "a pause, no lasting fault"),
    "of two workers": (2, at((1, 1, 4), (2, 0, 7), by=6.0), "2,5", "in steps 4, 7, computed"),
}


@pytest.mark.parametrize(("stages", "cost", "ranks", "words"), ONCE.values(), ids=ONCE)
def test_what_a_worker_did_once_is_a_pause_of_it_and_no_data(
    tmp_path: Path, stages: int, cost: Cost, ranks: str, words: str
) -> None:
    verdict = judge(tmp_path, Job(dp=4, pp=stages, steps=10, cost=cost))
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("software_pause", ranks)]
    assert verdict.status == "shared_cause"
    assert verdict.causes[0].confidence <= 0.6
    assert words in verdict.headline


def test_who_is_slow_in_some_steps_time_and_again_is_a_worker_with_less_confidence(tmp_path: Path) -> None:
    job = Job(dp=4, pp=3, micro=6, steps=12, cost=lambda d, s, k, _m: 2.5 if (d, s) == (1, 1) and k % 2 else 1.0)
    verdict = judge(tmp_path, job)
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("worker", "5")]
    assert verdict.causes[0].confidence <= 0.6
    assert "in steps 1, 3, 5" in verdict.headline


@pytest.mark.parametrize("dp", [2, 4])
@pytest.mark.parametrize("pp", [2, 4])
def test_a_replica_all_of_whose_stages_are_slow_is_its_data_rather_than_its_workers(tmp_path: Path, dp: int, pp: int) -> None:
    job = Job(dp=dp, pp=pp, micro=8, steps=5, cost=lambda d, _s, _k, _m: 1.6 if d == 1 else 1.0)
    verdict = judge(tmp_path, job)
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("data_imbalance", "")]
    assert verdict.causes[0].confidence <= 0.6
    assert verdict.causes[0].isolation_group.kind == "pp"
    assert f"dp 1 computes 1.60 times as long as the other replicas in each of {pp} stages" in verdict.headline


def test_a_replica_whose_stages_are_slow_by_different_factors_has_a_slow_worker(tmp_path: Path) -> None:
    job = Job(dp=4, pp=2, micro=8, steps=4, cost=lambda d, s, _k, _m: (1.2, 2.5)[s] if d == 2 else 1.0)
    assert [(c.class_, c.suspects.ranks) for c in judge(tmp_path, job).causes] == [("worker", "6")]


def test_one_long_batch_of_a_replica_is_data_and_says_which(tmp_path: Path) -> None:
    job = Job(dp=4, pp=4, micro=8, steps=5, cost=lambda d, _s, k, _m: 2.6 if (d, k) == (2, 2) else 1.0)
    verdict = judge(tmp_path, job)
    assert [c.class_ for c in verdict.causes] == ["data_imbalance"]
    assert "micro-batches of dp 2 in step 2 are longer" in verdict.headline
    assert verdict.causes[0].confidence <= 0.6


def drawn(seed: int, key: Callable[[int, int, int, int], tuple[int, ...]], spread: float) -> Cost:
    rng, seen = np.random.default_rng(seed), dict[tuple[int, ...], float]()
    return lambda *place: seen.setdefault(key(*place), float(np.exp(spread * rng.standard_normal())))


LENGTHS: dict[str, Callable[[int, int, int, int], tuple[int, ...]]] = {
    "by micro-batch": lambda d, _s, k, m: (d, k, m),
    "by batch": lambda d, _s, k, _m: (d, k),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pp", [1, 3])
@pytest.mark.parametrize("key", LENGTHS.values(), ids=LENGTHS)
def test_lengths_by_chance_accuse_no_worker(
    tmp_path: Path, key: Callable[[int, int, int, int], tuple[int, ...]], pp: int, seed: int
) -> None:
    verdict = judge(tmp_path, Job(dp=6, pp=pp, micro=6, steps=6, cost=drawn(seed, key, 0.35)))
    assert {c.class_ for c in verdict.causes} <= {"data_imbalance"}


@pytest.mark.parametrize("seed", range(4))
def test_compute_that_varies_by_worker_and_micro_batch_is_no_data(tmp_path: Path, seed: int) -> None:
    cost = drawn(seed, lambda d, s, k, m: (d, s, k, m), 0.35)
    assert "data_imbalance" not in [c.class_ for c in judge(tmp_path, Job(dp=4, pp=4, micro=6, steps=6, cost=cost)).causes]


@pytest.mark.parametrize("by", [2.0, 100.0])
def test_a_slow_optimizer_of_one_worker_is_named(tmp_path: Path, by: float) -> None:
    job = Job(dp=4, pp=2, micro=4, optimizer=lambda d, s, _k: by if (d, s) == (2, 1) else 1.0)
    verdict = judge(tmp_path, job)
    found = [(c.class_, c.suspects.ranks, c.functions) for c in verdict.causes]
    assert found == ([] if by < 10 else [("worker", "6", ["optimizer"])])


@pytest.mark.parametrize(("steps", "most"), [(1, 0.55), (2, 0.85), (3, 0.97)])
def test_few_steps_make_nobody_sure(tmp_path: Path, steps: int, most: float) -> None:
    verdict = judge(tmp_path, Job(dp=4, pp=3, micro=6, steps=steps, cost=lambda d, s, _k, _m: 2.5 if (d, s) == (1, 1) else 1.0))
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("worker", "5")]
    assert most - 0.1 <= verdict.causes[0].confidence <= most
