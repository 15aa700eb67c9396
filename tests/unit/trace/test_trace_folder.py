from __future__ import annotations

import re
from pathlib import Path

import pytest

from eroica.producers.trace.folder import Found, numbered, one_run
from eroica.producers.trace.listing import list_traces
from eroica.schemas.errors import InvalidInput

pytestmark = pytest.mark.unit


def found(*entries: tuple[int, float]) -> list[Found]:
    return [Found(Path(f"t{i}.json"), rank, start, start + 10) for i, (rank, start) in enumerate(entries)]


@pytest.mark.parametrize(
    ("entries", "kept", "notes"),
    [
        pytest.param([(1, 0), (0, 3)], [1, 0], 0, id="one run"),
        pytest.param([(1, 0), (0, 3000)], [1, 0], 0, id="clocks that disagree are no second run"),
        pytest.param([(0, 0), (1, 1), (0, 100), (1, 101), (2, 102)], [2, 3, 4], 1, id="the run with more ranks"),
        pytest.param([(0, 0), (1, 1), (0, 100), (1, 101)], [2, 3], 1, id="the later of equals"),
    ],
)
def test_one_run_is_chosen_and_the_rest_is_named(entries: list[tuple[int, float]], kept: list[int], notes: int) -> None:
    chosen, said = one_run(found(*entries))
    assert [t.path.name for t in chosen] == [f"t{i}.json" for i in kept]
    assert [t.rank for t in chosen] == sorted(t.rank for t in chosen)
    assert len(said) == notes


@pytest.mark.parametrize(
    ("entries", "says"),
    [([(0, 0), (0, 5)], "rank 0 occurs twice"), ([(0, 0), (-1, 5)], "tells the rank")],
)
def test_what_cannot_be_chosen_is_asked_for(entries: list[tuple[int, float]], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        one_run(found(*entries))


def test_only_what_can_be_a_trace_is_listed_and_the_rest_is_counted(tmp_path: Path) -> None:
    for name in (
        "b.json.gz",
        "a.json",
        "a.json.side.json",
        "notes.txt",
        "sub/c.json",
        "rank0_memory_snapshot.pickle",
        ".hidden/d.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    listing = list_traces(tmp_path)
    assert [p.name for p in listing.files] == ["a.json", "b.json.gz", "c.json"]
    assert listing.notes == ["2 files are no trace by the name and left out: 1 .pickle, 1 .txt"]
    assert list_traces(tmp_path / "a.json").files == [tmp_path / "a.json"]


@pytest.mark.parametrize(
    ("make", "says"), [(False, "no such file"), (True, r"\.sqlite3, \.db\) and no timeline \(\.parquet\), only \.pickle")]
)
def test_a_folder_without_traces_is_said(tmp_path: Path, make: bool, says: str) -> None:
    place = tmp_path / "place"
    if make:
        place.mkdir()
        (place / "x.pickle").write_text("")
    with pytest.raises(InvalidInput, match=says):
        list_traces(place)


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["trace_0.json", "trace_2.json", "trace_1.json"], [0, 2, 1]),
        (["0/trace.json", "1/trace.json"], [0, 1]),
        (["job7/gpu0.json", "job7/gpu1.json"], [0, 1]),
        (["trace_00.json", "trace_01.json"], [0, 1]),
        (["gpu0.1712.json", "gpu1.1713.json"], []),
        (["trace_1.json", "trace_2.json"], []),
        (["host_4100.json", "host_4101.json"], []),
        (["a0.json", "b1.json"], []),
        (["local_rank_0.json", "local_rank_1.json"], []),
        (["tp0.json", "tp1.json"], []),
        (["trace_0.json"], []),
    ],
)
def test_a_number_that_counts_the_files_is_offered_as_the_rank(names: list[str], ranks: list[int]) -> None:
    pattern = numbered(names)
    assert bool(pattern) == bool(ranks)
    assert [int(match.group(1)) for name in names if pattern and (match := re.search(pattern, name))] == ranks


def test_the_offer_stands_in_the_question() -> None:
    traces = [Found(Path(f"trace_{i}.json"), -1, 0, 10) for i in range(3)]
    with pytest.raises(InvalidInput, match=r"--rank-from 'trace_\(\[0-9\]\+\)"):
        one_run(traces)
