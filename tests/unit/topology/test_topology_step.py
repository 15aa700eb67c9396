from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.schemas.errors import TopologyError
from eroica.topology import build_layout
from eroica.topology.lanes import Lanes
from eroica.topology.pipeline import ChunkTimes, measured_bubble
from eroica.topology.schedules import SCHEDULES
from eroica.topology.step import Step, build_step
from eroica.topology.strategy import Block, Exchange, LinkCosts, Plan

pytestmark = pytest.mark.unit

FREE = LinkCosts()


def lanes_of(ranks: int, dp: int = 1) -> Lanes:
    return Lanes.of(build_layout("megatron", ranks * dp, {"pp": ranks}))


def kinds(step: Step) -> list[str]:
    return [op.kind for op in step.graph.ops]


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_with_free_transfers_a_plan_takes_its_work_and_the_bubble(name: str) -> None:
    chunks = 1 if SCHEDULES[name].chunks == 1 else 2
    plan = Plan.of([Block("layer", 1.0)] * (4 * chunks)).place(4, chunks).split(8).order(name)
    bubble = measured_bubble(plan.make_schedule(), ChunkTimes(1, 1, 1))
    offset = 3.0 if name == "zbv" else 0.0  # its ranks have no gaps, but start one after the other
    assert build_step(plan, lanes_of(4), FREE).length() == pytest.approx(8 * chunks * 3 + bubble + offset)


def one_by_one(plan: Plan, compute: Callable[[int, str, int, int], float], send: float, reduce: float, lanes: int) -> float:
    """An independent account of the same step: each quantity asked for one at a time, by its definition."""
    schedule = plan.make_schedule()
    orders = schedule.orders

    @cache
    def posted(rank: int, k: int) -> int:
        """The rank's last action before k in the same direction, -1 if there is none."""
        way = orders[rank][k].kind == "F"
        return max((j for j in range(k) if (orders[rank][j].kind == "F") == way), default=-1)

    @cache
    def moved(lane: int, rank: int, k: int) -> float:
        """When what action k of a rank needs from its neighbour has arrived."""
        action = orders[rank][k]
        origin = action.stage + (-1 if action.kind == "F" else 1)
        if not 0 <= origin < schedule.stages:
            return 0.0
        other = schedule.rank_of(origin)
        source = next(
            j
            for j, a in enumerate(orders[other])
            if a.stage == origin and a.micro == action.micro and (a.kind == "F") == (action.kind == "F")
        )
        ready = max(ended(lane, other, source), ended(lane, rank, posted(rank, k)))
        if action.micro:
            before = next(j for j, a in enumerate(orders[rank]) if a == action._replace(micro=action.micro - 1))
            ready = max(ready, moved(lane, rank, before))
        return ready + send

    @cache
    def ended(lane: int, rank: int, k: int) -> float:
        if k < 0:
            return 0.0
        action = orders[rank][k]
        start = max(ended(lane, rank, k - 1), moved(lane, rank, k))
        return start + compute(rank, action.kind, action.micro, lane)

    last = [max(ended(lane, r, len(orders[r]) - 1) for lane in range(lanes)) for r in range(schedule.ranks)]
    return max(last) + reduce


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.data())
@settings(max_examples=60)
def test_step_times_equal_an_account_one_by_one(name: str, ranks: int, micro: int, dp: int, data: st.DataObject) -> None:
    plan = Plan.of([Block("layer", 1.0, activation_bytes=3.0, parameter_bytes=8.0)] * ranks).place(ranks).split(micro)
    plan = plan.order(name).replicate("dp")
    costs = LinkCosts(0.0, {"pp": 6.0, "dp": 4.0})
    step = build_step(plan, lanes_of(ranks, dp), costs)
    times = step.nominal()
    slow: dict[tuple[int, str, int, int], float] = {}
    for i, op in enumerate(step.graph.ops):
        if op.kind.endswith("compute"):
            for lane in range(dp):
                times[i, lane, 0] = slow[op.stage, op.kind[0].upper(), op.index, lane] = data.draw(st.integers(1, 5))
    reduce = costs.transfer("all-reduce", 8.0, dp, "dp")
    told = one_by_one(plan, lambda *key: slow[key], 0.5, reduce, dp)
    assert float(step.graph.evaluate(times).step_times()[0]) == pytest.approx(told)


def test_gradients_leave_in_buckets_beside_the_last_backward() -> None:
    blocks = [Block("layer", 1.0, parameter_bytes=8.0)]
    costs = LinkCosts(0.0, {"dp": 8.0})
    lengths = []
    for buckets in (1, 2, 4):
        plan = Plan.of(blocks).place(1).split(2).replicate("dp", buckets)
        lengths.append(build_step(plan, lanes_of(1, 2), costs).length())
    # 2 × (1 + 2) of compute; all-reduce of two members moves 8 bytes in 1, of which only the last bucket is exposed
    assert lengths == pytest.approx([7.0, 6.5, 6.25])


@pytest.mark.parametrize(("level", "gathers"), [(1, 2), (2, 2), (3, 4)])
def test_levels_of_sharding(level: Any, gathers: int) -> None:
    plan = Plan.of([Block("layer", 1.0, parameter_bytes=8.0)] * 2).place(2).split(4).order("1f1b").shard("dp", level)
    names = kinds(build_step(plan, lanes_of(2, 4), LinkCosts(0.1)))
    assert names.count("params-all-gather") == gathers
    assert names.count("grads-reduce-scatter") == 2
    assert "grads-all-reduce" not in names


def test_replicas_of_sharded_groups_reduce_what_each_rank_holds() -> None:
    lanes = Lanes.of(build_layout("hsdp", 8, {"dp_replicate": 2}))
    # 4 ranks shard 8 bytes: reduce-scatter moves 3/4 of them, the 2 replicas then reduce 2 bytes.
    costs = LinkCosts(0.0, {"dp_shard": 8.0, "dp_replicate": 1.0})
    plan = Plan.of([Block("layer", 1.0, parameter_bytes=8.0)]).shard("dp_shard", 1, replicas="dp_replicate")
    step = build_step(plan, lanes, costs)
    names = kinds(step)
    assert (names.count("grads-reduce-scatter"), names.count("grads-replica-all-reduce")) == (1, 1)
    assert step.length() == pytest.approx(0.75 + 3.0 + 0.75 + 2.0)
    both = Plan.of([Block("layer", 1.0, parameter_bytes=8.0)]).replicate("dp_shard", replicas="dp_replicate")
    assert build_step(both, lanes, costs).length() == pytest.approx(3.0 + 1.5 + 8.0)


def test_a_late_rank_of_one_replica_holds_up_its_twin_in_the_other() -> None:
    lanes = Lanes.of(build_layout("hsdp", 8, {"dp_replicate": 2}))
    plan = Plan.of([Block("layer", 1.0, parameter_bytes=8.0)]).shard("dp_shard", 1, replicas="dp_replicate")
    step = build_step(plan, lanes, LinkCosts(0.01))
    times = step.nominal()
    backward = kinds(step).index("backward-compute")
    times[backward, 5] += 10.0
    timing = step.graph.evaluate(times)
    scatter, reduce = kinds(step).index("grads-reduce-scatter"), kinds(step).index("grads-replica-all-reduce")
    assert (timing.end[scatter, 4:, 0] > 10).all()
    assert (timing.end[scatter, :4, 0] < 10).all()
    assert (timing.end[reduce, :, 0] > 10).all()


def test_blocking_exchanges_lengthen_the_step_and_rings_hide() -> None:
    lanes = Lanes.of(build_layout("megatron", 4, {"tp": 2, "cp": 2}))
    costs = LinkCosts(0.0, {"tp": 4.0, "cp": 4.0})

    def length(*exchanges: Exchange) -> float:
        return build_step(Plan.of([Block("layer", 1.0, exchanges=exchanges)]), lanes, costs).length()

    assert length() == pytest.approx(3.0)
    assert length(Exchange("all-reduce", "tp", 2.0)) == pytest.approx(4.0)
    assert length(Exchange("ring", "cp", 4.0)) == pytest.approx(3.0)
    assert length(Exchange("ring", "cp", 16.0)) == pytest.approx(2.0 + 2.0)


def test_an_expert_exchange_makes_its_group_wait_and_nobody_else() -> None:
    lanes = Lanes.of(build_layout("megatron", 8, {"ep": 4}))
    plan = Plan.of([Block("moe", 1.0, exchanges=(Exchange("all-to-all", "ep", 1.0),))])
    step = build_step(plan, lanes, FREE)
    times = step.nominal()
    forward = kinds(step).index("forward-compute")
    times[forward, 1] = 5.0
    exchange = kinds(step).index("forward-ep-all-to-all")
    assert step.graph.evaluate(times).end[exchange, :, 0].tolist() == [5.0] * 4 + [1.0] * 4


def test_a_slow_rank_holds_up_its_pipeline_and_then_the_world() -> None:
    plan = Plan.of([Block("layer", 1.0)] * 4).place(4).split(8).order("1f1b").replicate("dp")
    step = build_step(plan, lanes_of(4, 3), FREE)
    times = step.nominal(2)
    times[(step.graph.stage == 2), 1, 1] *= 2
    healthy, slowed = step.graph.evaluate(times).step_times().tolist()
    assert healthy == pytest.approx(step.length())
    assert slowed > healthy * 1.5


@pytest.mark.parametrize("merge", [(), ("tp",)])
def test_lanes_are_pipelines(merge: tuple[str, ...]) -> None:
    layout = build_layout("megatron", 32, {"tp": 2, "pp": 4, "ep": 2})
    lanes = Lanes.of(layout, merge)
    pipes = layout.groups("dense.pp").tolist()
    for lane in range(lanes.count):
        for k in range(lanes.ranks.shape[2]):
            assert lanes.ranks[:, lane, k].tolist() in pipes
    assert sorted(lanes.ranks.reshape(-1).tolist()) == list(range(32))
    assert np.unique(lanes.partition("expert.ep")).size == (2 if merge else 4)


def test_merged_ranks_join_the_groups_of_both() -> None:
    """With an expert tensor size of 1 an expert group cuts across tensor and data ranks."""
    layout = build_layout("megatron", 8, {"tp": 2, "ep": 4, "etp": 1})
    assert Lanes.of(layout, ("tp",)).partition("expert.ep").tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (lambda: Plan.of([]), "at least one block"),
        (lambda: Plan.of([Block("a", 1.0)]).place(2), "cannot be placed on 2 stages"),
        (lambda: Plan.of([Block("a", 1.0)] * 3).place(2, cuts=[3]), "cannot be placed"),
        (lambda: Plan.of([Block("a", 1.0)] * 4).place(4), "4 pipeline ranks, the layout 2"),
        (lambda: Plan.of([Block("a", 1.0)] * 4).place(2).replicate("dp_shard"), "no group kind 'dp_shard'"),
    ],
)
def test_plans_that_do_not_fit_are_refused(plan: Callable[[], Plan], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        build_step(plan(), lanes_of(2), FREE)


def test_cuts_place_blocks_by_hand() -> None:
    blocks = [Block(n, 1.0) for n in "abcde"]
    assert [[b.name for b in s] for s in Plan.of(blocks).place(2, cuts=[4]).stages()] == [list("abcd"), ["e"]]
    assert [len(s) for s in Plan.of(blocks).place(2).stages()] == [3, 2]
