"""Folders of nodes that each count their ranks from 0: numbered node by node where the job's size says so, else left and told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eroica.producers.trace.folder import Found
from eroica.producers.trace.nodes import JobSigns, number_nodes

pytestmark = pytest.mark.unit
ROOT = Path("traces")


def folder(name: str, ranks: int, start_us: float = 0.0, source: str = "file_name") -> list[Found]:
    return [Found(ROOT / name / f"rank{r}.json", r, start_us, start_us + 100, events=9, source=source) for r in range(ranks)]


def numbers(found: list[Found]) -> list[int]:
    return [one.rank for one in found]


def test_nodes_follow_each_other_by_their_numbers() -> None:
    found = [*folder("node10", 2), *folder("node9", 2), *folder("node1", 2)]
    named, notes = number_nodes(found, [JobSigns(world=6)] * 6, ROOT)
    assert numbers(named) == [4, 5, 2, 3, 0, 1]
    assert [one.node for one in named] == ["node10"] * 2 + ["node9"] * 2 + ["node1"] * 2
    assert notes == [
        "each of 3 folders counts its ranks from 0, and the job has 6: taken as its nodes, numbered one after the other "
        "(node1 0-1, node9 2-3, node10 4-5)"
    ]


@pytest.mark.parametrize("names", [("host-a", "host-b"), ("job/node_0", "job/node_1"), ("ip-10-0-0-1", "ip-10-0-0-2")], ids=str)
def test_names_of_nodes(names: tuple[str, str]) -> None:
    named, notes = number_nodes([*folder(names[0], 4), *folder(names[1], 4)], [JobSigns(world=8)] * 8, ROOT)
    assert numbers(named) == list(range(8))
    assert len(notes) == 1


def test_hosts_in_the_traces_make_nodes_of_any_folders() -> None:
    found = [*folder("a", 2), *folder("b", 2)]
    told = [JobSigns(4, host) for host in ("x", "x", "y", "y")]
    assert numbers(number_nodes(found, told, ROOT)[0]) == [0, 1, 2, 3]
    later = [*folder("a", 2), *folder("b", 2, start_us=5e9)]
    assert numbers(number_nodes(later, told, ROOT)[0]) == [0, 1, 0, 1]


LEFT: dict[str, tuple[list[Found], list[JobSigns], bool]] = {
    # traces, what they tell, whether it is said how to number them
    "the world is larger": ([*folder("node0", 2), *folder("node1", 2)], [JobSigns(8)] * 4, True),
    "the world is one folder": ([*folder("node0", 2), *folder("node1", 2)], [JobSigns(2)] * 4, True),
    "nothing tells the world": ([*folder("node0", 2), *folder("node1", 2)], [JobSigns()] * 4, True),
    "two worlds are told": ([*folder("node0", 2), *folder("node1", 2)], [JobSigns(4)] * 3 + [JobSigns(2)], True),
    "no nodes by name": ([*folder("run0", 2), *folder("run1", 2)], [JobSigns(4)] * 4, True),
    "no nodes by name, nor by size": ([*folder("run0", 2), *folder("run1", 2)], [JobSigns(2)] * 4, False),
    "both on one host": ([*folder("node0", 2), *folder("node1", 2)], [JobSigns(4, "x")] * 4, False),
    "steps": ([*folder("node0/step_1", 2), *folder("node1/step_1", 2)], [JobSigns(4)] * 4, False),
    "one folder": (folder("node0", 4), [JobSigns(4)] * 4, False),
    "the traces know their ranks": (
        [one for n in ("node0", "node1") for one in folder(n, 2, source="distributed_info")], [JobSigns(4)] * 4, False,
    ),
    "a rank lacks": ([*folder("node0", 2), *folder("node1", 2)[1:]], [JobSigns(3)] * 3, False),
    "groups say otherwise": (
        [*folder("node0", 2), *folder("node1", 2)],
        [JobSigns(4, groups=((0, 2),)), JobSigns(4, groups=((1, 3),)), JobSigns(4, groups=((1, 3),)), JobSigns(4)], True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("found", "told", "asks"), LEFT.values(), ids=LEFT)
def test_what_may_be_two_runs_is_left(found: list[Found], told: list[JobSigns], asks: bool) -> None:
    named, notes = number_nodes(found, told, ROOT)
    assert numbers(named) == numbers(found)
    assert all(one.node == "" for one in named)
    assert ["say each trace's rank, e.g. --rank" in note for note in notes] == ([True] if asks else [])


def test_groups_that_fit_are_no_objection() -> None:
    found = [*folder("node0", 2), *folder("node1", 2)]
    told = [JobSigns(4, groups=((0, 1, 2, 3), (r % 2, 2 + r % 2))) for r in range(4)]
    assert numbers(number_nodes(found, told, ROOT)[0]) == [0, 1, 2, 3]


def test_a_trace_elsewhere_speaks_against_it() -> None:
    found = [*folder("node0", 2), *folder("node1", 2)]
    found.append(replace(found[0], path=ROOT / "rank0.json"))
    assert numbers(number_nodes(found, [JobSigns(5)] * 5, ROOT)[0]) == numbers(found)
