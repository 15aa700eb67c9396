"""Folders of real traces, made by nobody here, through ``eroica diagnose``: what a right tool must say of them."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from eroica.offline.diagnose import diagnose
from eroica.schemas.errors import InvalidInput
from eroica.schemas.settings import load_settings
from eroica.schemas.verdicts import Verdict

TRACES = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "traces"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here: ../shared/data/traces"),
]


def verdict_of(name: str) -> Verdict:
    return diagnose(TRACES / name, load_settings()).verdict


@pytest.mark.parametrize("name", ["torchrec_sleep_1s", "torchrec_sleep_20ms"])
def test_the_rank_that_sleeps_is_named_and_the_others_wait(name: str) -> None:
    verdict = verdict_of(name)
    assert verdict.status == "culprit_found"
    [cause] = verdict.causes
    assert (cause.class_, cause.suspects.ranks) == ("worker", "2")
    assert verdict.waiters.ranks == "0-1,3"
    assert cause.explains > 0.9
    assert not any("cudaMalloc" in f or "cudaFree" in f for f in cause.functions)


def test_the_sleep_of_a_second_is_found_where_it_was_put() -> None:
    verdict = verdict_of("torchrec_sleep_1s")
    assert "# running sparse arch" in verdict.causes[0].functions[0]
    grown = next(e for e in verdict.causes[0].evidence if e.kind == "function")
    assert grown.value - grown.expected == pytest.approx(980, abs=40)
    assert verdict.impact.slowdown is not None and verdict.impact.slowdown > 8


def test_a_late_launch_is_named_though_the_device_works_meanwhile() -> None:
    functions = verdict_of("torchrec_sleep_20ms").causes[0].functions
    # The second is an annotation, in which the same job sleeps once more.
    assert functions[:2] == ["_AlltoAllSingleBackward", "# running sparse arch"]


def test_what_the_allocator_takes_beside_is_no_more_than_the_files_hold() -> None:
    said = [n for n in verdict_of("torchrec_sleep_20ms").coverage.notes if n.endswith("in alloc")]
    # In the steps after the first each rank allocates for 5.8 to 10 ms while no collective runs, and the first is a warm-up.
    [told] = [float(note.split()[5]) for note in said]
    assert 5.8 <= told <= 10


def test_one_step_that_points_everywhere_accuses_nobody_and_says_what_was_seen() -> None:
    verdict = verdict_of("dlrm_8rank")
    assert not [c for c in verdict.causes if c.suspects.ranks]
    notes = " ".join(verdict.coverage.notes)
    assert "before the window" in notes
    # The largest victim, with the longest step and the most communication, is not among those who cause waiting.
    seen = [note for note in verdict.coverage.notes if note.startswith("not enough to accuse")]
    assert {note.split()[5] for note in seen} == {"7", "5", "4"}
    assert "nobody is accused" in verdict.headline and "nobody is at fault" not in verdict.headline


def test_two_ranks_of_128_are_too_few() -> None:
    verdict = verdict_of("hta_2_of_128")
    assert verdict.status == "insufficient_data"
    assert (verdict.coverage.received, verdict.coverage.expected, verdict.coverage.missing) == (2, 128, "2-127")
    assert verdict.causes == []


def test_the_files_order_and_place_change_no_byte(tmp_path: Path) -> None:
    for number, file in enumerate(sorted((TRACES / "torchrec_sleep_1s").glob("*.json*"), reverse=True)):
        shutil.copy(file, tmp_path / f"{number}{''.join(file.suffixes[-2:])}")
    moved = diagnose(tmp_path, load_settings()).verdict
    assert moved == verdict_of("torchrec_sleep_1s")


def test_a_broken_file_among_good_ones_is_left_out_and_said(tmp_path: Path) -> None:
    for file in (TRACES / "torchrec_sleep_1s").iterdir():
        shutil.copy(file, tmp_path / file.name)
    (tmp_path / "broken.json").write_bytes(b'{"traceEvents": "none"}')
    found = diagnose(tmp_path, load_settings())
    assert [one.path.name for one in found.unread] == ["broken.json"]
    assert found.verdict.causes[0].suspects.ranks == "2"
    assert any("broken.json" in note for note in found.verdict.coverage.notes)


def test_nothing_readable_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\x00\x01")
    with pytest.raises(InvalidInput, match="it is no trace that can be read"):
        diagnose(tmp_path, load_settings())


def test_the_guides_rule_blames_ranks_that_only_wait() -> None:
    # Why it is not the default: on the same frames.
    verdict = diagnose(TRACES / "torchrec_sleep_1s", load_settings(["localize.rules=guide"])).verdict
    assert {c.suspects.ranks for c in verdict.causes} - {"2"}


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "eroica.cli.main", *arguments], capture_output=True, text=True, timeout=300)


def test_diagnose_as_a_program_and_a_person_use_it() -> None:
    folder = str(TRACES / "torchrec_sleep_1s")
    done = cli("diagnose", folder, "--json", "--fail-on-finding")
    told: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, told["causes"][0]["suspects"]["ranks"]) == (1, "2")
    assert "rank 2" in cli("diagnose", folder).stdout
    assert cli("diagnose", str(TRACES / "nowhere")).returncode == 3


def test_summarize_as_a_program_and_a_person_use_it() -> None:
    file = str(TRACES / "single" / "nccl_data.json.gz")
    told = json.loads(cli("summarize", file, "--json").stdout)
    assert sum(slot["count"] for c in told["communicators"] for slot in c["slots"]) == 21
    assert "all_reduce" in cli("summarize", file).stdout
    shown = cli("summarize", file).stdout
    assert all(column in shown for column in ("p50", "p90", "p99", "max"))


@pytest.mark.parametrize("name", ["rank_not_found", "distributed_info_not_found"])
def test_a_trace_alone_is_summarised_though_nobody_knows_its_rank(name: str) -> None:
    file = str(TRACES / "single" / f"{name}.json.gz")
    shown = cli("summarize", file)
    assert (shown.returncode, shown.stdout.startswith("an unknown rank"), "--rank N" in shown.stdout) == (0, True, True)
    told = json.loads(cli("summarize", file, "--json").stdout)
    assert told["who"]["rank"] == -1
    assert any("tells its rank" in note for note in told["notes"])
    given = json.loads(cli("summarize", file, "--rank", "3", "--json").stdout)
    assert given["who"]["rank"] == 3
    assert given["functions"] == told["functions"]
    assert not any("tells its rank" in note for note in given["notes"])


def drop_annotations(source: Path, target: Path, every: bool) -> None:
    """A trace without the marks of its steps, or without any annotation but the libraries' own of their collectives."""
    opened = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rb") as file:
        trace = orjson.loads(file.read())

    def stays(event: dict[str, Any]) -> bool:
        name, category = str(event.get("name", "")), str(event.get("cat", ""))
        if not every:
            return not name.startswith("ProfilerStep")
        return "user_annotation" not in category or name.startswith("nccl:")

    trace["traceEvents"] = [e for e in trace["traceEvents"] if stays(e)]
    target.write_bytes(orjson.dumps(trace))


@pytest.mark.parametrize("every", [False, True], ids=["no marks", "no annotations"])
@pytest.mark.parametrize("name", ["torchrec_sleep_1s", "torchrec_sleep_20ms"])
def test_the_same_rank_is_named_where_no_trace_marks_its_steps(name: str, every: bool, tmp_path: Path) -> None:
    for path in sorted((TRACES / name).iterdir()):
        if "json" in path.name:
            drop_annotations(path, tmp_path / path.name.removesuffix(".gz"), every)
    verdict = diagnose(tmp_path, load_settings()).verdict
    assert any(note.startswith("no ProfilerStep in the trace") and "4 of 4 ranks" in note for note in verdict.coverage.notes)
    assert [cause.suspects.ranks for cause in verdict.causes if cause.suspects.ranks] == ["2"]
    if every:  # else the optimizer's annotations mark two of three
        assert tuple(verdict.request.steps) == (0, 2)


@pytest.mark.parametrize(("unmarked", "every"), [({1}, False), ({2}, True), ({0, 3}, True), ({0, 1, 3}, False)])
@pytest.mark.parametrize("name", ["torchrec_sleep_1s", "torchrec_sleep_20ms"])
def test_steps_that_only_some_ranks_mark_are_cut_alike(name: str, unmarked: set[int], every: bool, tmp_path: Path) -> None:
    for rank, path in enumerate(sorted(p for p in (TRACES / name).iterdir() if "json" in p.name)):
        if rank in unmarked:
            drop_annotations(path, tmp_path / path.name.removesuffix(".gz"), every)
        else:
            shutil.copy(path, tmp_path)
    verdict = diagnose(tmp_path, load_settings()).verdict
    assert any(f"cut as the others', where their collectives fit ({len(unmarked)} of 4" in n for n in verdict.coverage.notes)
    assert [cause.suspects.ranks for cause in verdict.causes] == ["2"]
    assert tuple(verdict.request.steps) == (4, 6)


@pytest.mark.parametrize("name", ["dlrm_8rank", "hta_2_of_128"])
def test_nobody_is_accused_where_no_step_is_marked_and_none_is_found(name: str, tmp_path: Path) -> None:
    for path in sorted((TRACES / name).iterdir()):
        if "json" in path.name:
            drop_annotations(path, tmp_path / path.name.removesuffix(".gz"), True)
    verdict = diagnose(tmp_path, load_settings()).verdict
    assert not [cause for cause in verdict.causes if cause.suspects.ranks]
    assert any("no steps in the trace" in note for note in verdict.coverage.notes)


def test_nobody_is_cleared_where_neither_numbers_nor_clocks_tell_which_steps_were_the_same(tmp_path: Path) -> None:
    for rank, path in enumerate(sorted(p for p in (TRACES / "torchrec_sleep_20ms").iterdir() if "json" in p.name)):
        with gzip.open(path, "rb") as file:
            trace = orjson.loads(file.read())
        for event in trace["traceEvents"] if rank == 2 else ():
            # Hours off, and of another pace, so that the ends of collectives do not fit either.
            event["ts"] = 1.05 * event.get("ts", 0)
            word, mark, number = str(event.get("name", "")).partition("ProfilerStep#")
            if mark and not word:
                event["name"] = f"{mark}{int(number) - 1}"
        (tmp_path / path.name.removesuffix(".gz")).write_bytes(orjson.dumps(trace))
    verdict = diagnose(tmp_path, load_settings()).verdict
    assert (verdict.status, verdict.causes) == ("insufficient_data", [])
    assert "neither numbers nor clocks tell which steps" in verdict.headline


def rewritten(name: str, to: Path, change: Callable[[int, dict[str, Any]], None], place: Callable[[int], str]) -> Path:
    """The traces of a folder, each changed by *change* (rank, trace), at other places below *to*."""
    for rank, path in enumerate(sorted((TRACES / name).glob("*.json.gz"))):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        change(rank, trace)
        at = to / place(rank)
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(json.dumps(trace), encoding="utf-8")
    return to


@pytest.mark.parametrize("name", ["torchrec_sleep_1s", "torchrec_sleep_20ms"])
def test_steps_that_neither_numbers_nor_clocks_tell_are_told_by_collectives(tmp_path: Path, name: str) -> None:
    def other_clock_and_numbers(rank: int, trace: dict[str, Any]) -> None:
        for event in trace["traceEvents"] if rank >= 2 else ():
            if "ts" in event:
                event["ts"] += 30_000_000
            if str(event.get("name")).startswith("ProfilerStep#"):
                event["name"] = f"ProfilerStep#{int(event['name'][13:]) + 1}"

    verdict = diagnose(rewritten(name, tmp_path, other_clock_and_numbers, "rank{}.json".format), load_settings()).verdict
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("worker", "2")]
    assert verdict.request.steps == (4, 6)
    assert verdict.causes[0].confidence <= 0.8
    assert f"({verdict.causes[0].confidence:.0%} sure)" in verdict.headline
    assert [n for n in verdict.coverage.notes if n.startswith("ranks 2-3 number the steps 1 higher")]


def test_folders_of_nodes_are_one_job(tmp_path: Path) -> None:
    def without_its_rank(_rank: int, trace: dict[str, Any]) -> None:
        del trace["distributedInfo"]["rank"], trace["traceName"]  # which names the host, one for all

    folder = rewritten("torchrec_sleep_1s", tmp_path, without_its_rank, lambda r: f"node{r // 2}/rank{r % 2}.json")
    verdict = diagnose(folder, load_settings()).verdict
    assert (verdict.coverage.expected, verdict.coverage.received) == (4, 4)
    assert [(c.class_, c.suspects.ranks) for c in verdict.causes] == [("worker", "2")]
    assert [n for n in verdict.coverage.notes if "(node0 0-1, node1 2-3)" in n]
