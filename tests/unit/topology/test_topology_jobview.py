from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.schemas.errors import TopologyError
from eroica.schemas.jobs import JobAnnouncement, Layout, ProcessGroup, RankInfo
from eroica.schemas.ranks import format_ranks
from eroica.topology import JobViewBuilder, build_layout, merge_announcements
from eroica.topology.recognise import kind_axes, kind_name, recognise

pytestmark = pytest.mark.unit
DUMPS = Path(__file__).resolve().parents[3] / "../shared/data/flight_recorder"

MEGATRON_NAMES = {
    "dense.tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dense.cp": "CONTEXT_PARALLEL_GROUP",
    "dense.dp": "DATA_PARALLEL_GROUP",
    "dense.dp-cp": "DATA_PARALLEL_GROUP_WITH_CP",
    "dense.pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "expert.etp": "EXPERT_TENSOR_PARALLEL_GROUP",
    "expert.ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "expert.edp": "EXPERT_DATA_PARALLEL_GROUP",
    "expert.tp-ep": "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP",
}
TITAN_NAMES = {
    "dense.pp": "mesh_pp",
    "dense.dp_replicate": "mesh_dp_replicate",
    "dense.dp_shard": "mesh_dp_shard",
    "dense.fsdp": "mesh_fsdp",
    "dense.cp": "mesh_cp",
    "dense.tp": "mesh_tp",
    "sparse.ep": "mesh_ep",
    "sparse.efsdp": "mesh_efsdp",
}
DEEPSPEED_NAMES = {"pipe": "pipe", "data": "data", "model": "model", "ep": "ep_size_2"}


def process_groups(framework: str, world: int, sizes: dict[str, Any], names: dict[str, str]) -> list[ProcessGroup]:
    layout = build_layout(framework, world, sizes)
    out = [ProcessGroup(name="0", kind="default_pg", ranks=f"0-{world - 1}")]
    for kind, description in names.items():
        out += [
            ProcessGroup(name=f"{kind}{i}", kind=description, ranks=format_ranks(g)) for i, g in enumerate(layout.groups(kind))
        ]
    return out


def announce(
    world: int,
    per_host: int = 4,
    groups: list[ProcessGroup] | None = None,
    coords: dict[str, Any] | None = None,
    **more: Any,
) -> list[JobAnnouncement]:
    """One announcement a host, each with the groups of its own ranks."""
    out = []
    for h in range(0, world, per_host):
        mine = range(h, min(h + per_host, world))
        out.append(
            JobAnnouncement(
                job="train",
                run_id=more.get("run_id", "run-1"),
                host=f"host{h // per_host}",
                world_size=world,
                ranks=[
                    RankInfo(
                        rank=r,
                        local_rank=r - h,
                        device="H200",
                        coords={} if coords is None else {a: int(v[r]) for a, v in coords.items()},
                    )
                    for r in mine
                ],
                process_groups=groups or [],
                layout=more.get("layout"),
                started_at_us=more.get("started_at_us", 1_000_000),
                announced_at_us=more.get("announced_at_us", 2_000_000),
                ended=more.get("ended", False),
            )
        )
    return out


def change(announcement: JobAnnouncement, **fields: Any) -> JobAnnouncement:
    return msgspec.structs.replace(announcement, **fields)


@pytest.mark.parametrize(
    ("framework", "sizes", "names", "axes"),
    [
        (
            "megatron",
            {"tp": 2, "pp": 4, "cp": 2, "ep": 2},
            MEGATRON_NAMES,
            ["tp", "cp", "dp", "pp", "etp", "ep", "edp"],
        ),
        ("megatron", {"tp": 2, "pp": 2, "order": "tp-cp-ep-pp-dp"}, MEGATRON_NAMES, ["tp", "dp", "pp"]),
        ("torchtitan", {"pp": 2, "dp_replicate": 2, "cp": 2, "tp": 2, "ep": 4}, TITAN_NAMES, ["pp", "tp", "cp", "ep"]),
        ("deepspeed", {"pp": 4, "tp": 2, "ep": 2}, DEEPSPEED_NAMES, ["pp", "dp", "tp", "ep"]),
    ],
)
def test_layout_is_read_from_real_process_groups(
    framework: str, sizes: dict[str, Any], names: dict[str, str], axes: list[str]
) -> None:
    world = 32
    view = merge_announcements(announce(world, groups=process_groups(framework, world, sizes, names)))
    truth = build_layout(framework, world, sizes).coordinates()
    assert view.topology_source == "process_groups"
    assert view.complete
    for axis in axes:
        assert view.placement.axes[axis].tolist() == truth[axis].tolist(), axis
    assert list(view.classes) == [f"pp{s}" for s in range(int(truth["pp"].max()) + 1)]
    for stage, ranks in enumerate(view.classes.values()):
        assert ranks.tolist() == np.flatnonzero(truth["pp"] == stage).tolist()


def test_all_sources_together_agree() -> None:
    sizes = {"tp": 2, "pp": 2, "ep": 2}
    coords = build_layout("megatron", 16, sizes).coordinates()
    view = merge_announcements(
        announce(
            16,
            groups=process_groups("megatron", 16, sizes, MEGATRON_NAMES),
            coords={a: coords[a] for a in ("tp", "pp", "dp")},
            layout=Layout(framework="megatron", sizes=sizes),
        )
    )
    assert view.topology_source == "coordinates"
    assert view.placement.agreeing == ("process_groups", "layout")
    assert view.placement.axes["ep"].tolist() == coords["ep"].tolist()


@pytest.mark.parametrize("kind", ["dense.tp", "dense.dp", "dense.pp", "expert.ep"])
def test_process_groups_that_contradict_the_preset_name_the_first_rank(kind: str) -> None:
    groups = process_groups("megatron", 16, {"tp": 2, "pp": 2, "ep": 2}, {kind: MEGATRON_NAMES[kind]})
    wrong = Layout(framework="megatron", sizes={"tp": 4, "pp": 4, "ep": 1})
    with pytest.raises(TopologyError, match=r"rank \d+ .*process groups.*layout preset"):
        merge_announcements(announce(16, groups=groups, layout=wrong))


def test_coordinates_that_contradict_the_process_groups_name_the_first_rank() -> None:
    coords = dict(build_layout("megatron", 16, {"tp": 2, "pp": 2}).coordinates())
    stages = coords["pp"].copy()
    stages[[5, 9]] = stages[[9, 5]]
    groups = process_groups("megatron", 16, {"tp": 2, "pp": 2}, MEGATRON_NAMES)
    with pytest.raises(TopologyError, match="rank 5 is pp 1 by its coordinates, but pp 0 by its process groups"):
        merge_announcements(announce(16, groups=groups, coords={"pp": stages}))


def test_same_positions_in_other_groups_are_a_contradiction() -> None:
    groups = [ProcessGroup(name=str(i), kind="mesh_tp", ranks=r) for i, r in enumerate(["0,3", "1-2"])]
    with pytest.raises(TopologyError, match="rank 1 is tp"):
        merge_announcements(announce(4, groups=groups, layout=Layout(framework="megatron", sizes={"tp": 2})))


@pytest.mark.parametrize(
    ("groups", "source", "classes"),
    [
        ([], "none", {"all": "0-7"}),
        ([ProcessGroup(name="0", kind="default_pg", ranks="0-7")], "process_groups", {"all": "0-7"}),
        (
            [
                ProcessGroup(name="0", kind="default_pg", ranks="0-7"),
                ProcessGroup(name="1", kind="undefined", ranks="0-3"),
            ],
            "none",
            {"all": "0-7"},
        ),
        (
            [ProcessGroup(name="1", kind="mesh_pp", ranks="0,4")],
            "process_groups",
            {"pp0": "0", "pp1": "4", "unplaced": "1-3,5-7"},
        ),
    ],
)
def test_classes_cover_the_world_whatever_is_known(groups: list[ProcessGroup], source: str, classes: dict[str, str]) -> None:
    view = merge_announcements(announce(8, groups=groups))
    assert view.topology_source == source
    assert {name: format_ranks(ranks) for name, ranks in view.classes.items()} == classes


def test_a_preset_alone_gives_classes() -> None:
    view = merge_announcements(announce(8, layout=Layout(framework="megatron", sizes={"pp": 2, "tp": 2})))
    assert view.topology_source == "layout"
    assert {n: format_ranks(r) for n, r in view.classes.items()} == {"pp0": "0-3", "pp1": "4-7"}


def test_a_stage_of_two_device_models_is_two_classes() -> None:
    hosts = announce(8)
    slow = change(hosts[1], ranks=[msgspec.structs.replace(r, device="NVIDIA A100 80GB") for r in hosts[1].ranks])
    view = merge_announcements([hosts[0], slow])
    assert {n: format_ranks(r) for n, r in view.classes.items()} == {"all.H200": "0-3", "all.NVIDIA-A100-80GB": "4-7"}


def test_missing_hosts_are_named_and_still_have_a_class() -> None:
    view = merge_announcements(announce(12)[:2])
    assert not view.complete
    assert view.missing.tolist() == [8, 9, 10, 11]
    assert view.class_of(11) == "all"
    assert (view.host_of(5), view.host_of(11)) == ("host1", "")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda h: [h[0], change(h[1], world_size=16)], "world of 8 ranks, host host1 one of 16"),
        (lambda h: [h[0], change(h[1], ranks=h[0].ranks)], "rank 0 is announced by two hosts, host0 and host1"),
        (lambda h: [change(a, world_size=6) for a in h], "host1 announces rank 6"),
        (
            lambda h: [change(h[0], process_groups=[ProcessGroup(name="0", kind="default_pg", ranks="0-3")]), h[1]],
            "world size is 8, but the default process group has 4",
        ),
        (
            lambda h: [change(h[0], process_groups=[ProcessGroup(name="1", kind="mesh_tp", ranks="6-9")]), h[1]],
            "names rank 9, but the world has 8",
        ),
        (
            lambda h: [
                change(a, process_groups=[ProcessGroup(name="1", kind="mesh_tp", ranks=r)])
                for a, r in zip(h, ["0-2", "2-4"], strict=True)
            ],
            "rank 2 is in two different tp process groups, 0-2 and 2-4",
        ),
        (
            lambda h: [change(a, layout=Layout(framework="megatron", sizes={"tp": t})) for a, t in zip(h, [1, 2], strict=True)],
            "host0 and host1 announce different layouts",
        ),
        (
            lambda h: [change(a, layout=Layout(framework="megatron", sizes={"tp": 3})) for a in h],
            "cannot be divided by tp 3",
        ),
        (
            lambda h: [change(h[0], process_groups=[ProcessGroup(name="1", kind="mesh_tp", ranks="1,x")]), h[1]],
            "job train, run run-1: 'x' is not a rank",
        ),
        (
            lambda h: [change(h[0], process_groups=[ProcessGroup(name="1", kind="mesh_tp", ranks="7-1")]), h[1]],
            "tp process groups are not sets of ranks",
        ),
        (
            lambda h: [change(a, layout=Layout(framework="ddp", sizes={"tp": 2, "order": 7})) for a in h],
            "ddp has no option 'tp'",
        ),
        (
            lambda h: [change(a, layout=Layout(framework="megatron", sizes={"vpp": 0})) for a in h],
            "0 stages a rank",
        ),
        (
            lambda h: [change(h[0], ranks=[RankInfo(rank=0, coords={"pp": 99})]), h[1]],
            "rank 0 says that it is pp 99",
        ),
        (lambda h: [], "no host has announced"),
        (lambda h: [change(a, world_size=2**40) for a in h], "world of 1099511627776"),
    ],
)
def test_contradictions_are_refused_with_one_error(spoil: Any, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        merge_announcements(spoil(announce(8)))


def test_the_newest_launch_wins_and_the_old_one_may_still_be_heard_for_a_while() -> None:
    old = announce(8, run_id="old", started_at_us=0, announced_at_us=30_000_000)
    new = announce(8, run_id="new", started_at_us=20_000_000, announced_at_us=31_000_000)
    assert merge_announcements([*old, *new]).run_id == "new"


def test_two_jobs_with_one_name_are_refused() -> None:
    old = announce(8, run_id="a", started_at_us=0, announced_at_us=200_000_000)
    new = announce(8, run_id="b", started_at_us=20_000_000, announced_at_us=200_000_000)
    with pytest.raises(TopologyError, match="two launches are alive under one name: a and b"):
        merge_announcements([*new, *old])
    assert merge_announcements([*new, *[change(a, ended=True) for a in old]]).run_id == "b"


def test_a_rank_may_move_to_another_host_when_its_own_has_ended() -> None:
    hosts = announce(8)
    moved = change(hosts[1], host="spare")
    view = merge_announcements([hosts[0], change(hosts[1], ended=True), moved])
    assert view.host_of(6) == "spare"
    assert not view.ended


@given(st.permutations(list(range(8))), st.lists(st.integers(0, 7), max_size=6))
@settings(max_examples=60)
def test_order_and_repetition_change_nothing(order: list[int], again: list[int]) -> None:
    said = [
        *announce(12, groups=process_groups("megatron", 12, {"pp": 3}, MEGATRON_NAMES)),
        *announce(12, run_id="former", started_at_us=0, announced_at_us=1_500_000),
        change(announce(12)[0], announced_at_us=3_000_000, framework="megatron"),
        change(announce(12)[0], announced_at_us=3_000_000, framework="other"),
    ]
    reference = merge_announcements(said)
    view = merge_announcements([said[i] for i in (*order, *again)])
    assert (view.run_id, view.hosts.names, view.process_groups) == (
        reference.run_id,
        reference.hosts.names,
        reference.process_groups,
    )
    assert view.framework == reference.framework
    assert {n: r.tolist() for n, r in view.classes.items()} == {n: r.tolist() for n, r in reference.classes.items()}


def test_a_sign_of_life_changes_nothing() -> None:
    builder = JobViewBuilder()
    hosts = announce(8)
    assert [builder.feed(a) for a in hosts] == [True, True]
    view = builder.view()
    assert not builder.feed(change(hosts[0], announced_at_us=9_000_000))
    assert builder.view() is view
    assert builder.feed(change(hosts[0], announced_at_us=10_000_000, framework="lightning"))
    assert builder.view().framework == "lightning"


def test_many_restarts_are_forgotten() -> None:
    builder = JobViewBuilder()
    for n in range(40):
        for a in announce(4, run_id=f"r{n:02}", started_at_us=n * 10**9, announced_at_us=n * 10**9):
            builder.feed(a)
        assert builder.view().run_id == f"r{n:02}"
    assert len(builder._last) <= 8


def test_another_job_is_refused() -> None:
    builder = JobViewBuilder()
    builder.feed(announce(4)[0])
    with pytest.raises(TopologyError, match="job 'other'"):
        builder.feed(change(announce(4)[0], job="other"))


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP_GLOO", "dp-cp"),
        ("MODEL_PARALLEL_GROUP", "tp-pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "etp-ep"),
        ("mesh_dp_shard_cp", "dp_shard-cp"),
        ("ep_size_8", "ep"),
        ("EMBEDDING_GROUP", None),
        ("undefined", None),
        ("", None),
    ],
)
def test_descriptions_of_groups(description: str, kind: str | None) -> None:
    axes = kind_axes(description)
    assert (None if axes is None else kind_name(axes)) == kind


def test_parts_of_a_group_under_its_own_description_are_not_a_contradiction() -> None:
    groups = [
        ProcessGroup(name=str(i), kind="CONTEXT_PARALLEL_GROUP", ranks=r) for i, r in enumerate(["0-1", "2-3", "0-3", "4-7"])
    ]
    families = recognise(groups, 8)
    assert families[frozenset({"cp"})].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


class _Plain(pickle.Unpickler):
    """Reads builtin containers and numbers only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


@pytest.mark.skipif(not DUMPS.exists(), reason="the recorded process groups are not on this machine")
def test_recorded_megatron_process_groups_equal_the_preset() -> None:
    hosts = []
    for rank in range(16):
        with (DUMPS / "lock_gil_1st" / f"_dump_{rank}").open("rb") as file:
            config = _Plain(file).load()["pg_config"]
        groups = [
            ProcessGroup(name=g["name"], kind=g["desc"], ranks=format_ranks(int(r) for r in g["ranks"].strip("[]").split(",")))
            for g in config.values()
        ]
        hosts.append(
            JobAnnouncement(
                job="j",
                run_id="r",
                host=f"h{rank:02}",
                world_size=16,
                ranks=[RankInfo(rank=rank)],
                process_groups=groups,
            )
        )
    told = Layout(framework="megatron", sizes={"tp": 4, "pp": 2, "ep": 8, "etp": 1})
    view = merge_announcements([change(h, layout=told) for h in hosts])
    assert view.topology_source == "process_groups"
    assert view.placement.agreeing == ("layout",)
    assert {n: format_ranks(r) for n, r in view.classes.items()} == {"pp0": "0-7", "pp1": "8-15"}
    with pytest.raises(TopologyError, match=r"rank \d+"):
        merge_announcements([change(h, layout=Layout(framework="megatron", sizes={"tp": 4, "pp": 4})) for h in hosts])
