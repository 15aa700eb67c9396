"""``--topology``: what it takes, and what it is checked against."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eroica.offline.judge import judge
from eroica.offline.layout import GivenLayout, groups_of, parse_layout, placed, view_of
from eroica.schemas.errors import EroicaError, InvalidInput, TopologyError, UsageError
from eroica.schemas.jobs import ProcessGroup
from eroica.schemas.settings import load_settings
from eroica.schemas.summaries import Identity, Summary

pytestmark = pytest.mark.unit


def summaries(ranks: range, world: int = 0) -> list[Summary]:
    return [
        Summary(
            who=Identity(
                job="offline", run_id="offline", request="o", cls="all", rank=r, world_size=world or r + 1, host=f"host{r // 4}"
            ),
            first_step=0,
            last_step=1,
            window_us=1.0,
            ended_at_us=1,
        )
        for r in ranks
    ]


@pytest.mark.parametrize(
    "text",
    [
        "megatron --world 8 --tp 2 --pp 2",
        "--framework megatron --world=8 --tp=2 --pp=2",
        "megatron,world=8,tp=2,pp=2",
        "megatron world=8, tp=2, pp=2",
    ],
)
def test_a_layout_in_words(text: str) -> None:
    given = parse_layout(text)
    assert (given.framework, given.world, given.options) == ("megatron", 8, {"tp": 2, "pp": 2})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("layout.yaml", "framework: megatron\nworld: 8\ntp: 2\npp: 2\n"),
        ("layout.json", '{"framework": "megatron", "world": 8, "tp": 2, "pp": 2}'),
    ],
)
def test_a_layout_in_a_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    given = parse_layout(str(tmp_path / name))
    assert (given.framework, given.world, given.options) == ("megatron", 8, {"tp": 2, "pp": 2})


def test_a_verdict_under_another_layout_is_another_verdict() -> None:
    several = summaries(range(8), 8)
    ids = []
    for layout in ("megatron --world 8 --tp 2 --pp 2", "megatron --world 8 --tp 2 --pp 2", "megatron --world 8 --tp 4", ""):
        view = view_of(several, {}, parse_layout(layout) if layout else None)
        ids.append(judge(several, load_settings(), view).verdict_id)
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3, "with its stages apart, without stages, without a layout"


@pytest.mark.parametrize("wrapped", [False, True])
def test_coordinates_in_a_file(tmp_path: Path, wrapped: bool) -> None:
    table = {"pp": [0, 0, 1, 1], "dp": [0, 1, 0, 1]}
    (tmp_path / "c.json").write_text(json.dumps({"coordinates": table} if wrapped else table))
    given = parse_layout(str(tmp_path / "c.json"))
    view = view_of(summaries(range(4)), {}, given)
    assert (view.topology_source, {n: r.tolist() for n, r in view.classes.items()}) == (
        "coordinates",
        {"pp0": [0, 1], "pp1": [2, 3]},
    )
    assert [s.who.coords for s in placed(summaries(range(4)), view)][2] == {"dp": 0, "pp": 1}


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("", UsageError, "nothing is given"),
        ("megatron --tp", UsageError, "--tp has no value"),
        ("megatron --tp two", UsageError, "tp is 'two'"),
        ("megatron x y", UsageError, "'x' is not understood"),
        ("horovod --world 4", UsageError, "'horovod' is not a known framework"),
        ("--tp 2", UsageError, "the framework is missing"),
        ("megatron 'unclosed", UsageError, "cannot be read"),
        ("gone.yaml", InvalidInput, "cannot be read"),
    ],
)
def test_what_is_no_layout_is_said(text: str, kind: type[EroicaError], says: str) -> None:
    with pytest.raises(kind, match=says):
        parse_layout(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: [1, 2", "cannot be read"),
        ("- 1\n- 2\n", "no table"),
        ("1: 2\n", "no table"),
        ("!!python/object/apply:os.system ['true']\n", "cannot be read"),
        ("pp: [0, x]\n", "no number"),
        ("pp: [0, 0]\ndp: [0, 0]\n", "place"),
        ("pp: [0, 1]\ndp: [0]\n", "different numbers"),
        ("pp: [0, 99999999999999999999]\n", "no number"),
        ("\x00", "cannot be read"),
    ],
)
def test_files_that_are_no_layout_are_said(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "l.yaml").write_text(content)
    with pytest.raises(InvalidInput, match=says):
        parse_layout(str(tmp_path / "l.yaml"))


def test_a_framework_places_ranks_that_are_not_in_the_folder_too() -> None:
    view = view_of(summaries(range(2)), {}, parse_layout("megatron --world 8 --tp 2 --pp 2"))
    assert (view.world_size, view.topology_source) == (8, "layout")
    assert {n: r.tolist() for n, r in view.classes.items()} == {"pp0": [0, 1, 2, 3], "pp1": [4, 5, 6, 7]}


def test_without_a_word_of_the_user_the_traces_groups_count() -> None:
    groups = {r: [ProcessGroup(name="5", kind="PIPELINE_MODEL_PARALLEL_GROUP", ranks=f"{r % 2},{r % 2 + 2}")] for r in range(4)}
    view = view_of(summaries(range(4), 4), groups, None)
    assert view.topology_source == "process_groups"
    assert {n: r.tolist() for n, r in view.classes.items()} == {"pp0": [0, 1], "pp1": [2, 3]}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (GivenLayout("megatron", 0, {"tp": 3}), "cannot be divided"),
        (GivenLayout("megatron", 2, {}), "places 2 ranks, but there is a trace of rank 3"),
        (GivenLayout("megatron", 4, {"tp": 2, "pp": 2}), "PIPELINE|process groups|layout"),
    ],
)
def test_a_layout_that_contradicts_the_traces_is_an_error(given: GivenLayout, says: str) -> None:
    groups = {r: [ProcessGroup(name="5", kind="PIPELINE_MODEL_PARALLEL_GROUP", ranks="0-3")] for r in range(4)}
    with pytest.raises(EroicaError, match=says) as told:
        view_of(summaries(range(4), 4), groups, given)
    assert isinstance(told.value, TopologyError | UsageError)


def test_groups_whose_members_the_trace_does_not_tell_are_left_out() -> None:
    named = {"a": {"desc": "mesh_dp", "backend": "nccl", "ranks": [3, 1]}, "b": {"desc": "", "backend": "", "ranks": []}}
    assert [(g.name, g.ranks) for g in groups_of(named)] == [("a", "1,3")]
