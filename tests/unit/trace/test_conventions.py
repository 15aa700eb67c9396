"""Folders as users of other tools have them: each convention a row."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from nsys_kit import write_export

from eroica.producers.trace.folder import Found, name_ranks, one_run
from eroica.producers.trace.frontend import open_workers
from eroica.producers.trace.listing import RankRule, list_traces
from eroica.schemas.errors import InvalidInput, UsageError

pytestmark = pytest.mark.unit
SECOND = 1_000_000
DISTRIBUTED = "distributedInfo"


def put(root: Path, name: str, *, at: float = 0.0, rank: int | None = None) -> None:
    """A trace of half a second that began *at* seconds after a moment; it tells its *rank* if given."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.7e15 + at * SECOND, "dur": SECOND / 2}
    meta = {} if rank is None else {DISTRIBUTED: {"rank": rank, "world_size": 8}}
    raw = json.dumps({**meta, "traceEvents": [event]}).encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)


def read(root: Path, rule: RankRule | None = None, job: str = "") -> tuple[dict[int, str], list[str]]:
    """Rank → file below the folder, and what was said."""
    listing = list_traces(root)
    rule = rule or RankRule()
    ranks = rule.over(listing.files, listing.root)
    found = [Found.of(o, ranks.of(path), listing.root) for path in listing.files for o in open_workers(path)]
    named, notes = name_ranks(found)
    chosen, said = one_run(named, root, job)
    return {one.rank: one.path.relative_to(root).as_posix() for one in chosen}, [*listing.notes, *notes, *said]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["rank_0.json.gz", "rank_1.json"], id="HTA, gzip and plain mixed"),
        pytest.param(["rank0.pt.trace.json", "rank1.pt.trace.json"], id="named workers of torch's handler"),
        pytest.param(["iteration_10/rank0_trace.json", "iteration_10/rank1_trace.json"], id="torchtitan"),
        pytest.param(["profile_trace/iteration_7/rank0_trace.json.gz", "profile_trace/iteration_7/rank1_trace.json.gz"],
                     id="torchtitan since 2026, from the folder above"),
        pytest.param(["torch_profile/rank-0.json.gz", "torch_profile/rank-1.json.gz"], id="Megatron"),
        pytest.param(["iteration_2/rank0.1712.pt.trace.json.gz", "iteration_2/rank1.1713.pt.trace.json.gz"], id="torchtune"),
        pytest.param(["rank0.3.pt.trace.json", "rank1.3.pt.trace.json"], id="Composer"),
        pytest.param([f"worker{r}_step_12.1694128201{545 + r}.pt.trace.json.gz" for r in (0, 1)], id="param"),
        pytest.param(["worker_0_epoch_1.pt.trace.json", "worker_1_epoch_1.pt.trace.json"], id="Ray Train"),
        pytest.param(["profile_0.json", "profile_1.json"], id="accelerate"),
        pytest.param(["profile_trace_rank_0.json.gz", "profile_trace_rank_1.json.gz"], id="xDiT"),
        pytest.param([f"primus-megatron-exp[llama2_7B]-rank[{r}].171234.pt.trace.json.gz" for r in (0, 1)], id="Primus"),
        pytest.param([f"dp0_pp0_tp{r}_dcp0_ep{r}_rank{r}.1712.pt.trace.json.gz" for r in (0, 1)], id="vLLM"),
        pytest.param([f"1728625868.5-TP-{r}.trace.json.gz" for r in (0, 1)], id="SGLang with TP alone"),
        pytest.param([f"171-TP-{t}-DP-0-PP-{p}-EP-0.trace.json.gz" for p in (0, 1) for t in (0, 1)], id="SGLang with PP"),
        pytest.param([f"171-TP-{r}-DP-{r // 2}-PP-0-EP-{r}.trace.json.gz" for r in range(4)], id="SGLang, DP inside TP"),
        pytest.param([f"171-TP-{t}-DP-{d}-PP-0-EP-0.trace.json.gz" for d in (0, 1) for t in (0, 1)], id="SGLang, DP replicas"),
        pytest.param(["rank_0/trace.json", "rank_1/trace.json"], id="a folder a rank"),
        pytest.param(["global_rank0/trace.json", "global_rank1/trace.json"], id="a folder a global rank"),
        pytest.param(["host-a/rank0.json", "host-b/rank1.json"], id="a folder a host"),
        pytest.param(["0.json", "1.json"], id="the number alone"),
    ],
)  # fmt: skip
def test_names_that_tell_the_rank(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        put(tmp_path, name)
    assert read(tmp_path)[0] == dict(enumerate(names))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["host0_4101.1694128201545.pt.trace.json", "host0_4100.1694128201545.pt.trace.json"], id="torch's handler"),
        pytest.param([f"fit-{r}-pytorch_profiler.17.pt.trace.json" for r in (0, 1)], id="Lightning's local ranks"),
        pytest.param(["libkineto_trace_151419.json", "libkineto_trace_151418.json"], id="dynolog"),
        pytest.param(["node-a/local_rank_0.json", "node-b/local_rank_0.json"], id="local ranks"),
        pytest.param(["tp_rank_0.json", "tp_rank_1.json"], id="ranks within a group"),
        pytest.param(["node_rank_1/a.json", "node_rank_0/a.json"], id="numbers of nodes"),
    ],
)  # fmt: skip
def test_names_that_do_not_tell_it_are_no_ranks_but_the_trace_may(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        put(tmp_path, name)
    with pytest.raises(InvalidInput, match=r"tells the rank.*--rank FILE=N"):
        read(tmp_path)
    for rank, name in enumerate(names):
        put(tmp_path, name, rank=rank)
    assert read(tmp_path)[0] == dict(enumerate(names))


def test_the_user_can_say_it(tmp_path: Path) -> None:
    for name in ("a/x.json", "b/x.json", "gpu7.json"):
        put(tmp_path, name)
    rule = RankRule.parse(["a/x.json=3", "b/x.json=1"], r"gpu(\d+)")
    assert read(tmp_path, rule)[0] == {1: "b/x.json", 3: "a/x.json", 7: "gpu7.json"}


@pytest.mark.parametrize(
    ("given", "pattern", "says"),
    [
        (["x.json"], "", "is not FILE=N"),
        (["x.json=one"], "", "is not FILE=N"),
        (["x.json=99999999999"], "", "is not FILE=N"),
        ([], "gpu(", "no regular expression"),
        ([], "gpu", "no group"),
        (["gone.json=1"], "", "there is no trace 'gone.json'"),
    ],
)
def test_what_the_user_says_wrongly_is_said(tmp_path: Path, given: list[str], pattern: str, says: str) -> None:
    put(tmp_path, "x.json")
    with pytest.raises(UsageError, match=says):
        read(tmp_path, RankRule.parse(given, pattern))


def test_a_pattern_that_finds_no_number_is_said(tmp_path: Path) -> None:
    put(tmp_path, "gpu-one.json")
    with pytest.raises(InvalidInput, match="no rank"):
        read(tmp_path, RankRule.parse([], r"gpu-(\w+)"))


@pytest.mark.parametrize(
    ("files", "job", "kept"),
    [
        pytest.param(
            {"iteration_10/rank0_trace.json": 0, "iteration_10/rank1_trace.json": 0, "iteration_20/rank0_trace.json": 1,
             "iteration_20/rank1_trace.json": 1}, "", "iteration_20", id="steps: the later"),
        pytest.param(
            {"iteration_10/rank0_trace.json": 0, "iteration_10/rank1_trace.json": 0, "iteration_20/rank0_trace.json": 1},
            "", "iteration_10", id="steps: the fuller"),
        pytest.param(
            {"iteration_10/rank0_trace.json": 0, "iteration_10/rank1_trace.json": 0, "iteration_20/rank0_trace.json": 1,
             "iteration_20/rank1_trace.json": 1}, "iteration_10", "iteration_10", id="steps: by name"),
        pytest.param(
            {f"host-{h}/step_{s}/rank{r}.json": s for s in (1, 2) for h, r in (("a", 0), ("b", 1))}, "step_1", "step_1",
            id="steps below hosts"),
        pytest.param(
            {"job-a/rank0.json": 5, "job-a/rank1.json": 5, "job-b/rank0.json": 0, "job-b/rank1.json": 0}, "job-b", "job-b",
            id="jobs beside each other"),
        pytest.param(
            {"job-a/rank0.json": 0, "job-a/rank1.json": 0, "job-b/rank2.json": 0, "job-b/rank3.json": 0}, "job-b", "job-b",
            id="jobs whose ranks do not meet"),
        pytest.param(
            {f"rank{r}.{t}0{r}.pt.trace.json": t for t in (1, 9) for r in (0, 1)},
            "", ".90", id="times"),
        pytest.param(
            {f"rank{r}.{t}0{r}.pt.trace.json": t for t in (1, 9) for r in (0, 1)},
            "#1", ".10", id="times: by number"),
        pytest.param(
            {f"9-TP-{r}-{s}.trace.json.gz": t for r in (0, 1) for t, s in enumerate(("EXTEND", "DECODE"))}, "EXTEND", "EXTEND",
            id="SGLang's stages"),
    ],
)  # fmt: skip
def test_several_runs_in_a_folder(tmp_path: Path, files: dict[str, float], job: str, kept: str) -> None:
    for name, at in files.items():
        put(tmp_path, name, at=at * 100)
    chosen, notes = read(tmp_path, job=job)
    assert len(chosen) >= 2 and all(kept in name for name in chosen.values())
    assert sum("the folder holds 2 runs" in note for note in notes) == 1


def test_a_run_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    for step in (1, 2):
        put(tmp_path, f"iteration_{step}/rank0_trace.json", at=step)
    with pytest.raises(UsageError, match=r"no run is called 'iteration_3'.*'iteration_1', 'iteration_2'"):
        read(tmp_path, job="iteration_3")


def test_the_same_trace_twice_counts_once_and_another_of_the_rank_is_asked_about(tmp_path: Path) -> None:
    for name in ("rank0.json", "rank0.json.gz", "rank1.json"):
        put(tmp_path, name)
    chosen, notes = read(tmp_path)
    assert chosen == {0: "rank0.json", 1: "rank1.json"}
    assert notes == ["rank0.json.gz holds the same trace as rank0.json and was left out"]
    put(tmp_path, "rank0.copy.json", at=0.1)
    with pytest.raises(InvalidInput, match="rank 0 occurs twice in one run"):
        read(tmp_path)


def test_what_the_trace_says_beats_the_name_and_the_user_beats_both(tmp_path: Path) -> None:
    put(tmp_path, "rank0.json", rank=5)
    chosen, notes = read(tmp_path)
    assert (chosen, notes) == ({5: "rank0.json"}, ["rank0.json says inside that it is rank 5's: that counts, not its name"])
    assert read(tmp_path, RankRule.parse(["rank0.json=2"]))[0] == {2: "rank0.json"}


def test_workers_of_one_export_are_numbered_by_gpu_and_of_several_the_user_says_the_first(tmp_path: Path) -> None:
    write_export(tmp_path / "node-a.sqlite")
    ranks, notes = read(tmp_path)
    assert sorted(ranks) == [0, 1]
    assert notes[0] == "node-a.sqlite tells no ranks: rank 0 is GPU 0, process 7"
    write_export(tmp_path / "node-b.sqlite")
    with pytest.raises(InvalidInput, match=r"of GPU 0, process 7.*N is the first worker's rank"):
        read(tmp_path)
    ranks, _ = read(tmp_path, RankRule.parse(["node-a.sqlite=0", "node-b.sqlite=2"]))
    assert ranks == {0: "node-a.sqlite", 1: "node-a.sqlite", 2: "node-b.sqlite", 3: "node-b.sqlite"}


def test_a_report_that_is_not_exported_tells_how(tmp_path: Path) -> None:
    (tmp_path / "r.nsys-rep").write_bytes(b"QDREP")
    with pytest.raises(InvalidInput, match=r"nsys export --type sqlite r\.nsys-rep"):
        list(open_workers(tmp_path / "r.nsys-rep"))
