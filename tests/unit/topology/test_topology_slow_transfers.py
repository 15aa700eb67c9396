"""Slow transfers of a timeline: which link, worker or group they have in common, and when nothing narrower is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from timeline_kit import Job

from eroica.offline.timelines import diagnose_timeline
from eroica.schemas.settings import load_settings
from eroica.schemas.verdicts import Verdict

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

pytestmark = pytest.mark.unit
Link = Callable[[int, int, int, int], float]
Ring = Callable[[int, int], float]


def judge(tmp_path: Path, job: Job) -> Verdict:
    path, rows = tmp_path / "job.parquet", job.rows()
    pq.write_table(pa.table({c: [r[c] for r in rows] for c in rows[0]}), path)
    return diagnose_timeline(path, load_settings())


PLACES: dict[str, tuple[Link, str, list[str], str, list[int], str, str]] = {
    # link: (replica, from, to, step) → factor; class, links, ranks, stages, isolation group, words of the headline
    "what one worker sends": (
        lambda d, s, _to, _k: 60.0 if (d, s) == (1, 1) else 1.0,
        "link", ["rank 5"], "5", [1], "world", "rank 5, (dp 1, stage 1), sends and receives slowly",
    ),
    "what one worker receives": (
        lambda d, _s, to, _k: 60.0 if (d, to) == (1, 1) else 1.0,
        "link", ["rank 5"], "5", [1], "world", "rank 5, (dp 1, stage 1), sends and receives slowly",
    ),
    "a link in both directions": (
        lambda d, s, to, _k: 60.0 if d == 2 and {s, to} == {1, 2} else 1.0,
        "link", ["rank 6|rank 10"], "", [1, 2], "pp", "the link of rank 6 (dp 2, stage 1) to rank 10 (dp 2, stage 2) is slow",
    ),
    "a link forward": (
        lambda d, s, to, _k: 90.0 if (d, s, to) == (2, 0, 1) else 1.0,
        "link", ["rank 2|rank 6"], "", [0, 1], "pp", "the link of rank 2 (dp 2, stage 0) to rank 6 (dp 2, stage 1) is slow",
    ),
    "two links": (
        lambda d, s, to, _k: 60.0 if (d == 2 and {s, to} == {0, 1}) or (d == 0 and {s, to} == {2, 3}) else 1.0,
        "link", ["rank 8|rank 12", "rank 2|rank 6"], "", [0, 1, 2, 3], "world", "the links of rank 8",
    ),
    "all of one replica": (
        lambda d, _s, _to, _k: 60.0 if d == 3 else 1.0,
        "link", ["ranks 3,7,11,15"], "", [], "pp", "all transfers of dp 3 are slow",
    ),
    "between two stages in all replicas": (
        lambda _d, s, to, _k: 60.0 if {s, to} == {1, 2} else 1.0,
        "fabric", [], "", [1, 2], "world", "transfers between stages 1 and 2 are slow in all replicas",
    ),
    "half of all": (
        lambda d, s, to, _k: 60.0 if (d + min(s, to)) % 2 else 1.0,
        "fabric", [], "", [], "world", "transfers between stages are slow;",
    ),
    "a link in half of the steps": (
        lambda d, s, to, k: 90.0 if d == 2 and {s, to} == {1, 2} and k % 2 else 1.0,
        "link", ["rank 6|rank 10"], "", [1, 2], "pp", "is slow in steps 1, 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("link", "cls", "links", "ranks", "stages", "group", "words"), PLACES.values(), ids=PLACES)
def test_what_slow_transfers_have_in_common_is_named(
    tmp_path: Path, link: Link, cls: str, links: list[str], ranks: str, stages: list[int], group: str, words: str
) -> None:
    verdict = judge(tmp_path, Job(dp=4, pp=4, micro=8, steps=4, transfer=0.02, link=link))
    assert [c.class_ for c in verdict.causes] == [cls]
    suspects = verdict.causes[0].suspects
    assert (suspects.links, suspects.ranks, suspects.stages) == (links, ranks, stages)
    assert verdict.causes[0].isolation_group.kind == group
    assert words in verdict.headline
    assert verdict.status == ("culprit_found" if cls == "link" else "shared_cause")
    assert verdict.causes[0].confidence <= 0.7


@pytest.mark.parametrize("tp", [1, 2])
def test_one_slow_ring_is_a_groups_and_not_the_fabrics(tmp_path: Path, tp: int) -> None:
    job = Job(dp=4, pp=4, tp=tp, micro=4, ring=lambda s, _k: 200.0 if s == 2 else 1.0)
    cause = judge(tmp_path, job).causes[0]
    held = "8-11" if tp == 1 else "16-23"
    assert (cause.class_, cause.suspects.links, cause.suspects.ranks) == ("link", [f"ranks {held}"], "")
    assert (cause.isolation_group.kind, cause.isolation_group.ranks) == ("dp", held)


@pytest.mark.parametrize(("by", "said"), [(4.5, False), (200.0, True)], ids=["as embeddings make it", "more than they do"])
def test_first_and_last_stages_may_move_more(tmp_path: Path, by: float, said: bool) -> None:
    job = Job(dp=4, pp=4, micro=2, forward=0.01, transfer=0.0001, ring=lambda s, _k: by if s == 3 else 1.0)
    causes = judge(tmp_path, job).causes
    assert [c.class_ for c in causes] == (["link"] if said else ["fabric"])


def test_a_worker_whose_ring_and_transfers_are_slow_is_the_one_in_common(tmp_path: Path) -> None:
    job = Job(
        dp=4, pp=4, micro=8, transfer=0.02,
        link=lambda d, s, to, _k: 60.0 if (d, 2) in ((d, s), (d, to)) and d == 1 else 1.0,
        ring=lambda s, _k: 150.0 if s == 2 else 1.0,
    )  # fmt: skip
    causes = judge(tmp_path, job).causes
    assert [(c.class_, c.suspects.ranks) for c in causes] == [("link", "9")]


def test_transfers_that_were_slow_once_are_no_lasting_fault(tmp_path: Path) -> None:
    job = Job(dp=4, pp=3, micro=4, steps=10, transfer=0.02, link=lambda _d, _s, _to, k: 400.0 if k == 4 else 1.0)
    verdict = judge(tmp_path, job)
    assert verdict.causes == []
    assert any("not enough to accuse (0.40" in n and "are slow in step 4" in n for n in verdict.coverage.notes)


@pytest.mark.parametrize("by", [1.0, 5.0], ids=["fast", "all slow alike"])
@pytest.mark.parametrize("shape", [{"dp": 4, "pp": 4}, {"dp": 1, "pp": 6}, {"dp": 8, "pp": 1}], ids=str)
def test_transfers_that_are_alike_accuse_nothing(tmp_path: Path, shape: dict[str, int], by: float) -> None:
    job = Job(**shape, micro=4, transfer=0.02 * by, ring=lambda _s, _k: by)
    assert judge(tmp_path, job).causes == []
