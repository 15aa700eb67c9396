"""A real gloo DDP job of four ranks on CPU with a fault on rank 2: its summary names what grew, and it waits least."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.producers.trace import identity_from_trace, read_trace, summarise
from eroica.schemas.summaries import FunctionPattern, Summary

pytest.importorskip("torch", reason="torch is not installed: no real training job can run")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

JOB = Path(__file__).with_name("ddp_job.py")
CULPRIT = 2


def summaries(folder: Path, fault: str) -> dict[int, Summary]:
    done = subprocess.run(
        [sys.executable, str(JOB), str(folder), fault], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    paths = sorted(folder.glob("rank*.json"))
    found = {}
    for path in paths:
        who = identity_from_trace(read_trace(path), path, job="demo")
        found[who.rank] = summarise(path, who)
    return found


def shown(summary: Summary, function: FunctionPattern) -> str:
    return f"{summary.stacks[function.stack] if function.stack >= 0 else ''};{function.name}"


def beta(summary: Summary, word: str) -> float:
    """Share of the window spent in functions whose call path holds *word*."""
    return sum(f.beta for f in summary.functions if word in shown(summary, f))


@pytest.mark.parametrize(
    ("fault", "guilty", "phase"), [("slow_data", "read_sample", "data"), ("slow_host", "postprocess_metrics", "")]
)
def test_the_slow_rank_shows_what_grew_and_waits_least(tmp_path: Path, fault: str, guilty: str, phase: str) -> None:
    found = summaries(tmp_path, fault)
    assert sorted(found) == [0, 1, 2, 3]
    for summary in found.values():
        assert summary.who.world_size == 4
        assert (summary.first_step, summary.last_step, len(summary.steps)) == (3, 8, 6)
        assert summary.lost.keys() <= {"functions_cut"}
        group = summary.communicators[0]
        assert (group.name, group.ranks, group.size) == ("0", "0-3", 4)
        assert all(slot.op == "all_reduce" and slot.step == [3, 4, 5, 6, 7, 8] for slot in group.slots)
    assert len({len(s.communicators[0].slots) for s in found.values()}) == 1

    grown = {rank: beta(s, guilty) for rank, s in found.items()}
    assert grown[CULPRIT] > 0.3
    assert grown[CULPRIT] > 5 * max(v for r, v in grown.items() if r != CULPRIT)
    top = next(f for f in found[CULPRIT].functions if f.category == "python")
    assert guilty in shown(found[CULPRIT], top)

    for index in range(len(found[0].communicators[0].slots)):
        typical = {r: statistics.median(s.communicators[0].slots[index].duration_us) for r, s in found.items()}
        assert min(typical, key=lambda r: typical[r]) == CULPRIT
    if phase:
        spent = {r: sum(s.phases_us.get(phase, 0.0) for s in found[r].steps) for r in found}
        assert max(spent, key=lambda r: spent[r]) == CULPRIT
    waited = {r: sum(s.phases_us.get("comm_wait", 0.0) for s in found[r].steps) for r in found}
    assert min(waited, key=lambda r: waited[r]) == CULPRIT
