"""DeepSpeed's groups without a name are told by their shape, or not at all."""

from __future__ import annotations

from itertools import product

import pytest

from eroica.schemas.jobs import JobAnnouncement, ProcessGroup, RankInfo
from eroica.schemas.ranks import format_ranks
from eroica.topology import build_layout, merge_announcements

pytestmark = pytest.mark.unit


def announced(world: int, groups: list[list[int]], framework: str = "deepspeed", kind: str = "undefined") -> JobAnnouncement:
    """One host's announcement, as a hook reads it from torch."""
    known = [ProcessGroup(name="0", kind="default_pg", backend="nccl", ranks=format_ranks(range(world)))]
    known += [ProcessGroup(name=str(i), kind=kind, backend="nccl", ranks=format_ranks(g)) for i, g in enumerate(groups, 1)]
    ranks = [RankInfo(rank=r, local_rank=r, pid=r + 1, device="H100") for r in range(world)]
    return JobAnnouncement(
        job="j", run_id="r", host="a", world_size=world, ranks=ranks, process_groups=known, framework=framework,
        started_at_us=1, announced_at_us=1,
    )  # fmt: skip


def deepspeed_groups(pipe: int, data: int, model: int) -> list[list[int]]:
    """Every group that DeepSpeed's pipeline grid creates: its axes, a replica's ranks, and neighbours in the pipeline."""
    number = {at: r for r, at in enumerate(product(range(pipe), range(data), range(model)))}
    out = [[number[p, d, m] for d in range(data)] for p in range(pipe) for m in range(model)]
    out += [[number[p, d, m] for p in range(pipe)] for d in range(data) for m in range(model)]
    out += [[number[p, d, m] for m in range(model)] for p in range(pipe) for d in range(data)]
    out += [sorted(number[p, d, m] for p in range(pipe) for m in range(model)) for d in range(data)]
    out += [
        sorted((number[p, d, m], number[(p + 1) % pipe, d, m])) for p in range(pipe) for d in range(data) for m in range(model)
    ]
    return [g for g in out if len(g) > 1]


@pytest.mark.parametrize(("pipe", "data", "model"), [(2, 4, 2), (4, 2, 2), (2, 2, 4), (3, 2, 4), (4, 4, 8)])
def test_the_three_axes_of_the_grid_are_told(pipe: int, data: int, model: int) -> None:
    world = pipe * data * model
    view = merge_announcements([announced(world, deepspeed_groups(pipe, data, model))])
    assert view.topology_source == "process_groups"
    layout = build_layout("deepspeed", world, {"pp": pipe, "tp": model})
    for kind, axis in (("pipe", "pp"), ("data", "dp"), ("model", "tp")):
        assert view.groups[axis].tolist() == layout.groups(kind).tolist()
    assert len(view.classes) == pipe


@pytest.mark.parametrize(
    "groups",
    [
        deepspeed_groups(1, 4, 4),
        deepspeed_groups(4, 4, 1),
        [*deepspeed_groups(2, 4, 2), [0, 2], [4, 6], [1, 3], [5, 7], [8, 10], [12, 14], [9, 11], [13, 15]],
        [[0, 1], [2, 3]],
        [],
    ],
    ids=["no pipeline", "no tensor parallelism", "experts too", "a part of the job", "none"],
)
def test_what_could_be_something_else_is_not_guessed(groups: list[list[int]]) -> None:
    view = merge_announcements([announced(16, groups)])
    assert set(view.groups) <= {"world", "dp"} or view.topology_source == "none"
    assert list(view.classes) == ["all"]


@pytest.mark.parametrize(("framework", "kind"), [("", "undefined"), ("megatron", "undefined"), ("deepspeed", "SOMETHING")])
def test_shapes_tell_nothing_of_other_frameworks_or_of_named_groups(framework: str, kind: str) -> None:
    view = merge_announcements([announced(16, deepspeed_groups(2, 4, 2), framework, kind)])
    assert view.topology_source == "none"
