"""``eroica diagnose`` and ``eroica summarize`` on what other tools write, through the whole of the offline pipeline."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eroica.offline.diagnose import Told, diagnose
from eroica.offline.layout import parse_layout
from eroica.offline.summarize import render_summary, summarize_file
from eroica.producers.trace.listing import RankRule
from eroica.schemas.errors import InvalidInput, TopologyError, UsageError
from eroica.schemas.settings import load_settings

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
NSYS = DATA / "nsys" / "two_gpus.sqlite"
TORCHREC = DATA / "traces" / "torchrec_sleep_1s"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not NSYS.is_file() or not TORCHREC.is_dir(), reason="the real traces are not here: ../shared/data"),
]
SETTINGS = load_settings()


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "eroica.cli.main", *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("source", [NSYS, NSYS.parent], ids=["the file", "its folder"])
def test_of_two_gpus_the_late_one_is_told_and_nobody_is_accused_out_of_two(source: Path) -> None:
    verdict = diagnose(source, SETTINGS).verdict
    assert (verdict.coverage.expected, verdict.coverage.received) == (2, 2)
    notes = " ".join(verdict.coverage.notes)
    assert "rank 1 is GPU 1" in notes
    assert "rank 0 spent 17.1 ms in 32 all_to_all" in notes and "rank 1 8.1 ms: rank 1 came late to them, rank 0 waited" in notes
    named = {c.suspects.ranks for c in verdict.causes}
    assert named <= {"1"} and all(c.confidence < 0.9 for c in verdict.causes)


def test_an_export_is_summarised_a_worker_a_line() -> None:
    done = cli("summarize", str(NSYS), "--json")
    told: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(s["who"]["rank"], s["who"]["world_size"], s["who"]["host"]) for s in told] == [(0, 2, "modal"), (1, 2, "modal")]
    kernels = [next(f for f in s["functions"] if "SendRecv" in f["name"]) for s in told]
    assert [round(f["total_us"] / 1e3, 1) for f in kernels] == [17.2, 8.2]
    assert "GPU 1, process 145" in cli("summarize", str(NSYS)).stdout


def test_a_report_that_was_not_exported_and_one_that_is_damaged_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "r.nsys-rep").write_bytes(b"QDREP")
    done = cli("summarize", str(tmp_path / "r.nsys-rep"))
    assert (done.returncode, "nsys export --type sqlite" in done.stderr) == (3, True)
    raw = bytearray(NSYS.read_bytes())
    raw[4096 * 3 : 4096 * 200] = b"\xff" * (4096 * 197)
    (tmp_path / "broken.sqlite").write_bytes(raw)
    done = cli("diagnose", str(tmp_path / "broken.sqlite"))
    assert (done.returncode, "damaged" in done.stderr, "Traceback" in done.stderr) == (3, True, False)


def torchrec(root: Path, names: list[str], steps: int = 0) -> Path:
    """The real traces under other names, without their ranks; the last one's steps are numbered *steps* further on."""
    for number, file in enumerate(sorted(TORCHREC.iterdir())):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        rank = trace["distributedInfo"].pop("rank")
        text = json.dumps(trace)
        if steps and number == 3:
            for step in range(20, -1, -1):
                text = text.replace(f"ProfilerStep#{step}", f"ProfilerStep#{step + steps}")
        path = root / names[rank]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def culprits(source: Path, told: Told | None = None) -> tuple[set[str], list[str]]:
    verdict = diagnose(source, SETTINGS, told=told).verdict
    return {c.suspects.ranks for c in verdict.causes}, verdict.coverage.notes


def test_ranks_by_names_and_by_the_users_word_give_the_same_culprit(tmp_path: Path) -> None:
    by_name = torchrec(tmp_path / "names", [f"iteration_10/rank{r}_trace.json" for r in range(4)])
    assert "2" in culprits(by_name)[0]
    unnamed = torchrec(tmp_path / "unnamed", [f"host_{4100 + r}.17.pt.trace.json" for r in range(4)])
    with pytest.raises(InvalidInput, match=r"--rank FILE=N"):
        diagnose(unnamed, SETTINGS)
    said = RankRule.parse([f"host_{4100 + r}.17.pt.trace.json={r}" for r in range(4)])
    assert "2" in culprits(unnamed, Told(said))[0]
    done = cli("diagnose", str(unnamed), "--rank-from", r"host_410(\d)", "--json")
    assert "2" in {c["suspects"]["ranks"] for c in json.loads(done.stdout)["causes"]}


def test_a_rank_that_numbers_its_steps_otherwise_is_compared_all_the_same(tmp_path: Path) -> None:
    found, notes = culprits(torchrec(tmp_path, [f"rank{r}.json" for r in range(4)], steps=100))
    assert "2" in found
    assert any("numbers the steps" in note and "taken as the same" in note for note in notes)


def test_foreign_files_between_are_named_and_two_runs_are_told_apart(tmp_path: Path) -> None:
    for run in ("job-a", "job-b"):
        shutil.copytree(TORCHREC, tmp_path / run)
    (tmp_path / "job-a" / "rank0_memory_snapshot.pickle").write_bytes(b"\x80")
    (tmp_path / "job-b" / "config.json").write_text('{"lr": 1}')
    found, notes = culprits(tmp_path, Told(job="job-b"))
    text = " ".join(notes)
    assert "2" in found
    assert "1 file is no trace" in text and "config.json gave nothing" in text
    assert "4 traces outside of job-b were not read" in text
    # Without a word of the user both are read, and one of them is chosen and named.
    found, notes = culprits(tmp_path)
    assert "2" in found and any("the folder holds 2 runs (job-a (4), job-b (4))" in note for note in notes)


def test_a_layout_parts_the_roles_and_one_that_cannot_be_is_refused(tmp_path: Path) -> None:
    shutil.copytree(TORCHREC, tmp_path / "t")
    verdict = diagnose(tmp_path / "t", SETTINGS, told=Told(layout=parse_layout("megatron --pp 2"))).verdict
    assert verdict.coverage.topology_source == "layout"
    assert (verdict.coverage.expected, verdict.coverage.received) == (4, 4)
    with pytest.raises(TopologyError, match="cannot be divided"):
        diagnose(tmp_path / "t", SETTINGS, told=Told(layout=parse_layout("megatron --tp 3")))
    (tmp_path / "c.yaml").write_text("pp: [0, 0, 0, 0]\ndp: [0, 1, 2, 3]\n")
    verdict = diagnose(tmp_path / "t", SETTINGS, told=Told(layout=parse_layout(str(tmp_path / "c.yaml")))).verdict
    assert verdict.coverage.topology_source == "coordinates"


def test_a_folder_says_who_was_not_in_it_and_not_how_a_class_was_closed() -> None:
    notes = diagnose(DATA / "traces" / "hta_2_of_128", SETTINGS).verdict.coverage.notes
    assert notes[0] == "ranks 2-127 of 128 were not in the folder"
    assert not [note for note in notes if "closed by" in note]


def test_wrong_words_are_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    for words in (("--rank", "x"), ("--rank-from", "("), ("--topology", "horovod"), ("--job", "nobody"), ("--rank", "gone=1")):
        done = cli("diagnose", str(TORCHREC), *words)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), words
    with pytest.raises(UsageError):
        diagnose(TORCHREC, SETTINGS, told=Told(job="nobody"))


def test_an_export_with_other_numbers_in_it_is_no_other_verdict(tmp_path: Path) -> None:
    """The same report with its GPUs' roles exchanged: now the other rank is late."""
    path = tmp_path / "swapped.sqlite"
    shutil.copy(NSYS, path)
    path.chmod(0o644)
    db = sqlite3.connect(path)
    for table in ("KERNEL", "MEMCPY", "MEMSET"):
        db.execute(f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET deviceId = 1 - deviceId")
    db.commit()
    db.close()
    notes = " ".join(diagnose(path, SETTINGS).verdict.coverage.notes)
    assert "rank 0 came late to them, rank 1 waited" in notes


def test_a_trace_without_a_rank_is_left_out_and_named(tmp_path: Path) -> None:
    torchrec(tmp_path, [f"rank{r}.json" for r in range(4)])
    shutil.copy(tmp_path / "rank0.json", tmp_path / "nameless.json")
    found, notes = culprits(tmp_path)
    assert "2" in found
    assert any("nameless.json gave nothing" in note and "--rank FILE=N" in note for note in notes)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.move(tmp_path / "nameless.json", alone / "nameless.json")
    done = cli("diagnose", str(alone))
    assert (done.returncode, "--rank FILE=N" in done.stderr) == (3, True)
    # Who compares nobody needs no rank.
    done = cli("summarize", str(alone / "nameless.json"))
    assert (done.returncode, "an unknown rank" in done.stdout) == (0, True)


def test_a_person_reads_bandwidths_by_kind_and_size() -> None:
    (summary,) = summarize_file(DATA / "traces" / "single" / "nccl_data.json.gz", 0)
    console = Console(width=140, file=StringIO())
    console.print(render_summary(summary))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    table = shown.partition("collectives by kind and size")[2].partition("\npauses")[0]
    rows = [line.split() for line in table.splitlines() if "all_reduce" in line]
    assert [row[2:5] for row in rows] == [["32", "MiB", "Float"], ["8", "MiB", "Float"], ["16", "MiB", "Float"]]
    # 2,049,000 floats are the longest, 8.2 MB: of two members each byte goes over the bus once.
    assert all(0 < float(row[-3]) == float(row[-2]) <= float(row[-1]) for row in rows)
