from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.schemas.errors import TopologyError, UsageError
from eroica.topology import Grid, RankLayout, build_layout
from eroica.topology.hosts import Hosts
from eroica.topology.presets import custom

pytestmark = pytest.mark.unit
DATA = Path(__file__).resolve().parents[3] / "../shared/data/rank_layouts.json"


def published_cases() -> list[Any]:
    if not DATA.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="the published rank layouts are not on this machine"))]
    return [
        pytest.param(case, id=f"{case['framework']}-{i}")
        for i, case in enumerate(json.loads(DATA.read_text(encoding="utf-8"))["cases"])
    ]


@pytest.mark.parametrize("case", published_cases())
def test_groups_equal_those_of_the_frameworks(case: dict[str, Any]) -> None:
    options = dict(case["sizes"])
    options.update({k: case[k] for k in ("order", "use_data_before_expert") if k in case})
    layout = build_layout(case["framework"], case["world"], options)
    assert {kind: layout.groups(kind).tolist() for kind in layout.kinds} == case["groups"]


SIZES = st.sampled_from([1, 2, 3, 4])


@st.composite
def layouts(draw: st.DrawFn) -> RankLayout:
    framework = draw(st.sampled_from(["megatron", "torchtitan", "deepspeed", "deepspeed-moe", "hsdp", "ddp", "fsdp"]))
    tp, pp, cp, ep, rest = (draw(SIZES) for _ in range(5))
    if framework == "megatron":
        order = "-".join(draw(st.permutations(["tp", "cp", "ep", "dp", "pp"])))
        etp = draw(st.sampled_from([1, tp]))
        return build_layout(
            framework, tp * pp * cp * ep * rest, {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "order": order}
        )
    if framework == "torchtitan":
        return build_layout(framework, tp * pp * cp * ep * rest, {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp_replicate": 1})
    if framework.startswith("deepspeed"):
        early = draw(st.booleans())
        return build_layout(framework, tp * pp * ep * rest, {"tp": tp, "pp": pp, "ep": ep, "use_data_before_expert": early})
    return build_layout(framework, tp * rest, {"dp_replicate": tp} if framework == "hsdp" else {})


@given(layouts())
@settings(max_examples=150)
def test_groups_of_every_kind_partition_the_world(layout: RankLayout) -> None:
    for kind in layout.kinds:
        groups = layout.groups(kind)
        assert sorted(groups.members.tolist()) == list(range(layout.world))
        assert len({len(g) for g in groups}) == 1
        for group in groups:
            table = layout.grids[layout.kinds[kind].grid].coordinates(group)
            for axis, values in table.items():
                assert (axis in layout.kinds[kind].axes) or len(set(values.tolist())) == 1


@given(layouts())
@settings(max_examples=150)
def test_coordinates_and_ranks_are_one_to_one(layout: RankLayout) -> None:
    for grid in layout.grids.values():
        assert isinstance(grid, Grid)
        everyone = np.arange(layout.world)
        assert grid.ranks(grid.coordinates()).tolist() == everyone.tolist()


def has_one_pipeline(layout: RankLayout) -> bool:
    """Whether the dense and the expert grid agree on the stages, as every framework asks for when it starts."""
    stages = [grid.coordinates().get("pp", np.zeros(layout.world)).tolist() for grid in layout.grids.values()]
    return "dense" in layout.grids and stages[0] == stages[-1]


@given(layouts().filter(has_one_pipeline))
@settings(max_examples=100)
def test_a_layout_given_by_its_coordinates_has_the_same_groups(layout: RankLayout) -> None:
    rebuilt = custom(layout.coordinates())
    axes = set(layout.coordinates())
    for kind, spec in layout.kinds.items():
        if len(spec.axes) == 1 and spec.axes[0] in axes and kind != "expert.pp":
            mine, theirs = layout.groups(kind), rebuilt.groups(spec.axes[0])
            assert mine.leaders(layout.world).tolist() == theirs.leaders(layout.world).tolist()


def test_custom_groups_may_have_different_sizes() -> None:
    layout = custom({"pp": np.array([0, 0, 1, 1, 1]), "dp": np.array([0, 1, 0, 1, 2])})
    assert layout.groups("dp").tolist() == [[0, 1], [2, 3, 4]]
    assert layout.groups("pp").tolist() == [[0, 2], [1, 3], [4]]


def test_peers_are_the_ranks_of_one_stage() -> None:
    layout = build_layout("megatron", 16, {"tp": 2, "pp": 4})
    assert layout.peers(5).tolist() == [4, 5, 6, 7]
    assert layout.peers(5, ("pp", "tp")).tolist() == [5, 7]


def test_virtual_stages_loop_or_run_back_in_a_v() -> None:
    looped = build_layout("megatron", 4, {"pp": 4, "vpp": 2})
    assert looped.stages(np.array([1])).tolist() == [[1, 5]]
    folded = RankLayout("megatron", looped.grids, looped.kinds, stages_per_rank=2, placement="v")
    assert folded.stages(np.arange(4)).tolist() == [[0, 7], [1, 6], [2, 5], [3, 4]]


@pytest.mark.parametrize(
    ("framework", "world", "options", "error", "says"),
    [
        ("megatron", 10, {"tp": 4}, TopologyError, "world of 10 ranks cannot be divided by tp 4"),
        ("megatron", 8, {"tp": 2, "dp": 2}, TopologyError, "dp is given as 2, but the other sizes leave 4"),
        ("megatron", 8, {"order": "tp-tp"}, TopologyError, "order 'tp-tp'"),
        ("megatron", 8, {"tp": 0}, TopologyError, "below one"),
        ("megatron", 0, {}, TopologyError, "world of 0 ranks"),
        ("megatron", 10**12, {}, TopologyError, "impossible"),
        ("torchtitan", 16, {"dp_shard": 4, "tp": 2}, TopologyError, "dp_shard is given as 4"),
        ("torchtitan", 16, {"ep": 3}, TopologyError, "cannot be divided by ep 3"),
        ("deepspeed-moe", 16, {"cp": 2}, UsageError, "no option 'cp'"),
        ("horovod", 16, {}, UsageError, "not a known framework"),
    ],
)
def test_impossible_sizes_are_refused(
    framework: str, world: int, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        build_layout(framework, world, options)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "no coordinates"),
        ({"dp": [0, 1], "pp": [0]}, "different numbers"),
        ({"dp": [0, 1, 1]}, "ranks 1 and 2 are both at dp 1"),
        ({"dp": [0, -1]}, "rank 1 has a negative"),
    ],
)
def test_impossible_coordinates_are_refused(table: dict[str, list[int]], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        custom({axis: np.array(values) for axis, values in table.items()})


def test_coordinates_outside_of_the_grid_are_refused() -> None:
    grid = Grid.nested({"pp": 2, "tp": 4})
    with pytest.raises(TopologyError, match=r"outside of 0\.\.3"):
        grid.ranks({"tp": 4})
    with pytest.raises(TopologyError, match="no axis 'cp'"):
        grid.ranks({"cp": 0})


def test_hosts_and_rails() -> None:
    hosts = Hosts.consecutive(16, 8)
    assert hosts.by_host().tolist() == [list(range(8)), list(range(8, 16))]
    assert np.flatnonzero(hosts.rail_of == 3).tolist() == [3, 11]
    layout = build_layout("megatron", 16, {"tp": 8})
    assert not hosts.crosses(layout.groups("dense.tp")).any()
    assert hosts.crosses(layout.groups("dense.dp")).all()


def test_a_hundred_thousand_ranks_take_little_memory() -> None:
    layout = build_layout("megatron", 98_304, {"tp": 8, "pp": 16, "cp": 2, "ep": 8, "etp": 1})
    held = sum(layout.groups(kind).members.nbytes + layout.groups(kind).offsets.nbytes for kind in layout.kinds)
    assert held < 32_000_000
    assert layout.peers(98_303).size == 98_304 // 16
