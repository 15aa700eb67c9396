"""A trace whose events lack a field says which, in place of an empty table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTrace

from eroica.cli.main import main
from eroica.offline.diagnose import diagnose
from eroica.offline.summarize import summarize_file
from eroica.producers.trace.columns import UNTOLD
from eroica.producers.trace.reader import read_trace
from eroica.schemas.errors import InvalidInput
from eroica.schemas.settings import load_settings

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]
Events = list[dict[str, Any]]


def job() -> Events:
    host = {"ph": "X", "cat": "cpu_op", "pid": 0, "tid": 1}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 0, "tid": 1}
    kernel = {"ph": "X", "cat": "kernel", "pid": 1, "tid": 7}
    out: Events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for i in range(20):
        out.append({**host, "name": "aten::mm", "ts": 100 * i, "dur": 40})
        out.append({**launch, "ts": 100 * i + 10, "dur": 5, "args": {"correlation": i + 1}})
        out.append({**kernel, "name": "gemm", "ts": 100 * i + 30, "dur": 60, "args": {"correlation": i + 1, "stream": 7}})
    return out


def without(field: str, category: str = "") -> Events:
    return [{k: v for k, v in e.items() if k != field or (category and e.get("cat") != category)} for e in job()]


REFUSED = [
    (without("cat"), "classified.*'cat' is missing"),
    ([{**e, "cat": "mine"} for e in job()], "classified.*'cat' says nothing"),
    ([e for e in without("cat", "kernel") if e.get("cat") != "cuda_runtime"], "20 of its 40 events .* no work of a device"),
    (without("name"), "'name' is missing"),
    (without("ts"), "'ts' is missing"),
    (without("dur"), "'dur' is missing"),
    (without("ph"), "no event with a duration"),
]


@pytest.mark.parametrize(
    ("events", "says"), REFUSED, ids=["cat", "unknown cat", "cat of all on the device", "name", "ts", "dur", "ph"]
)
def test_a_field_that_all_events_lack_is_named(make_trace: MakeTrace, events: Events, says: str) -> None:
    path = make_trace(events, "rank0.json")
    for read in (lambda: summarize_file(path), lambda: diagnose(path, load_settings())):
        with pytest.raises(InvalidInput, match=says) as told:
            read()
        assert str(path) in str(told.value)
        assert "-1" not in str(told.value)


def test_a_field_that_some_events_lack_is_noted(make_trace: MakeTrace) -> None:
    [summary] = summarize_file(make_trace(without("cat", "kernel"), "rank0.json"))
    assert any("20 of 60 events do not tell their kind" in note for note in summary.notes)
    assert any(f.name == "aten::mm" for f in summary.functions)
    [whole] = summarize_file(make_trace(job(), "rank0.json"))
    assert not any("kind" in note for note in whole.notes)


@pytest.mark.parametrize("compiled", [True, False])
def test_both_readers_know_an_event_without_a_kind(make_trace: MakeTrace, compiled: bool) -> None:
    trace = read_trace(make_trace(without("cat", "kernel")), compiled=compiled)
    assert int((trace.category == UNTOLD).sum()) == 20


@pytest.mark.parametrize(("rank", "world", "noted"), [(7, 4, True), (4, 4, True), (3, 4, False), (7, 0, False)])
def test_a_rank_that_its_world_does_not_have_is_noted(make_trace: MakeTrace, rank: int, world: int, noted: bool) -> None:
    path = make_trace(job(), "trace.json", distributedInfo={"rank": rank, "world_size": world})
    [summary] = summarize_file(path)
    assert any(f"rank {rank} cannot be in a world of {world}" in note for note in summary.notes) == noted
    assert summary.who.world_size == world


def test_a_folder_is_for_diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summarize", str(tmp_path)]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert f"eroica diagnose {tmp_path}" in said
