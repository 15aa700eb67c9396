"""Step times against a plain event-by-event simulation that shares no code with the step graph."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
import pytest

from eroica.simulator.effects import Effects
from eroica.simulator.engine import NO_NOISE, Engine
from eroica.simulator.simulation import Simulation
from eroica.simulator.source import parse_scenario
from eroica.simulator.workload import Workload, build_workload

pytestmark = pytest.mark.unit


def _engine(text: str) -> Engine:
    return Engine(build_workload(parse_scenario(text)))


def _slow(world: int, steps: int, seed: int) -> Effects:
    """Other factors on each rank, step and resource."""
    rng = np.random.default_rng(seed)
    out = Effects(world, steps)
    for resource in ("sm", "hbm", "storage"):
        out.slow(resource, 1.0 + rng.random((world, steps)))  # type: ignore[arg-type]
    return out


def _shares(engine: Engine, effects: Effects, family: str, rank: int, step: int) -> float:
    total = 0.0
    for f in engine.functions:
        if f.family == family:
            factor = effects.resources.get(f.bound)
            total += f.share * (1.0 if factor is None else float(factor[rank, step]))
    return total


class Machine:
    """A discrete-event machine: processes that compute, post transfers, and wait for them; one event at a time."""

    def __init__(self) -> None:
        self.queue: list[tuple[float, int, object]] = []
        self.count = 0

    def at(self, time: float, call: object) -> None:
        self.count += 1
        heapq.heappush(self.queue, (time, self.count, call))

    def run(self) -> None:
        while self.queue:
            time, _, call = heapq.heappop(self.queue)
            call(time)  # type: ignore[operator]


def test_data_parallel_steps_equal_the_event_by_event_ones() -> None:
    """Loading, forward, backward in buckets whose all-reduces run beside it, optimizer; ranks carry their lag over."""
    engine = _engine("job: {world: 4, model: {layers_per_stage: 2}, buckets: 3}\ncluster: {gpus_per_host: 2}")
    work, steps = engine.work, 3
    effects = _slow(4, steps, 1)
    run = engine.run(effects, NO_NOISE, 0)
    by_kind = {
        k: [float(t) for o, t in zip(work.step.graph.ops, engine.nominal, strict=True) if o.kind == k]
        for k in work.step.graph.kinds
    }
    reduce_us = by_kind["grads-all-reduce"]
    ready = [0.0] * 4
    for count, step in enumerate([0, 0, 1, 2]):  # the first is the one before those that count
        began = list(ready)
        machine = Machine()
        arrived = [[0.0] * 4 for _ in reduce_us]
        for rank in range(4):
            time = began[rank] + by_kind["loading"][0] * _shares(engine, effects, "loading", rank, step)
            time += by_kind["forward-compute"][0] * _shares(engine, effects, "forward", rank, step)
            for bucket, part in enumerate(by_kind["backward-compute"]):
                time += part * _shares(engine, effects, "backward", rank, step)
                machine.at(time, lambda t, r=rank, row=arrived[bucket]: row.__setitem__(r, t))
        machine.run()
        done = 0.0
        for bucket, cost in enumerate(reduce_us):
            done = max(done, *arrived[bucket]) + cost
        ready = [done + by_kind["optimizer"][0] * _shares(engine, effects, "optimizer", r, step) for r in range(4)]
        if count:
            assert run.step_us[:, count - 1] == pytest.approx(np.array(ready) - np.array(began), rel=1e-9)


def test_steps_of_replicated_shards_equal_the_event_by_event_ones() -> None:
    """HSDP: parameters gathered before the forward and again before the backward, gradients reduced inside a shard group and then
    over the replicas, in buckets; every collective after its stream's last."""
    engine = _engine("job: {world: 6, framework: hsdp, sizes: {dp_replicate: 2}, sharding: 3, buckets: 2}")
    effects = _slow(6, 2, 3)
    run = engine.run(effects, NO_NOISE, 0)
    nominal: dict[str, list[float]] = {}
    for op, t in zip(engine.work.step.graph.ops, engine.nominal, strict=True):
        nominal.setdefault(op.kind, []).append(float(t))
    shards, twins = [[0, 1, 2], [3, 4, 5]], [[0, 3], [1, 4], [2, 5]]
    ready = [0.0] * 6
    for count, step in enumerate([0, 0, 1]):
        began, stream = list(ready), [0.0] * 6

        def meet(groups: list[list[int]], arrives: list[float], cost: float, stream: list[float] = stream) -> None:
            for group in groups:
                end = max(max(arrives[r], stream[r]) for r in group) + cost
                for r in group:
                    stream[r] = end

        def work(family: str, kind: str, part: int, rank: int, step: int = step) -> float:
            return nominal[kind][part] * _shares(engine, effects, family, rank, step)

        time = [began[r] + work("loading", "loading", 0, r) for r in range(6)]
        opened = list(time)
        meet(shards, opened, nominal["params-all-gather"][0])
        time = [max(time[r], stream[r]) + work("forward", "forward-compute", 0, r) for r in range(6)]
        meet(shards, opened, nominal["params-all-gather"][1])
        time = [max(time[r], stream[r]) for r in range(6)]
        for bucket in range(2):
            time = [time[r] + work("backward", "backward-compute", bucket, r) for r in range(6)]
            meet(shards, time, nominal["grads-reduce-scatter"][bucket])
            meet(twins, time, nominal["grads-replica-all-reduce"][bucket])
        clipped = max(max(t, s) for t, s in zip(time, stream, strict=True))
        ready = [clipped + work("optimizer", "optimizer", 0, r) for r in range(6)]
        if count:
            assert run.step_us[:, count - 1] == pytest.approx(np.array(ready) - np.array(began), rel=1e-9)


@pytest.mark.parametrize("micro", [1, 4, 7])
def test_pipeline_steps_equal_the_event_by_event_ones(micro: int) -> None:
    """1F1B on three stages: each rank works through its list, a receive is posted when the last work of its direction is done."""
    text = f"job: {{world: 3, framework: megatron, sizes: {{pp: 3}}, micro_batches: {micro}, model: {{layers_per_stage: 1}}}}"
    engine = _engine(text)
    effects = _slow(3, 1, 2)
    length = engine.work.step.graph.evaluate(
        engine._times(effects, engine.family_weights(effects), NO_NOISE, np.ones(3), 0, np.random.default_rng(0))[:, :, None]
    ).step_times()[0]
    assert length == pytest.approx(_pipeline_by_events(engine.work, engine, effects, micro), rel=1e-9)


def _pipeline_by_events(work: Workload, engine: Engine, effects: Effects, micro: int) -> float:
    stages = 3
    nominal = {(o.stage, o.kind): float(t) for o, t in zip(work.step.graph.ops, engine.nominal, strict=True)}
    cost = {
        (s, way): nominal[s, f"{name}-compute"] * _shares(engine, effects, name, s, 0)
        for s in range(stages)
        for way, name in (("F", "forward"), ("B", "backward"))
    }
    send = nominal[0, "forward-send"]
    order: list[deque[tuple[str, int]]] = []
    for s in range(stages):
        ahead = min(stages - 1 - s, micro)
        todo = [("F", m) for m in range(ahead)]
        for m in range(micro - ahead):
            todo += [("F", ahead + m), ("B", m)]
        todo += [("B", m) for m in range(micro - ahead, micro)]
        order.append(deque(todo))
    opened = [nominal[s, "loading"] * _shares(engine, effects, "loading", s, 0) for s in range(stages)]
    free = list(opened)
    done: dict[tuple[int, str, int], float] = {}
    sent: dict[tuple[int, str, int], float] = {}
    posted = {(s, way): opened[s] for s in range(stages) for way in "FB"}
    link: dict[tuple[int, str], float] = {}
    while any(order):
        moved = False
        for s in range(stages):
            while order[s]:
                way, m = order[s][0]
                source = s - 1 if way == "F" else s + 1
                start = free[s]
                if 0 <= source < stages:
                    if (source, way, m) not in done:
                        break
                    begin = max(done[source, way, m], posted[s, way], link.get((source, way), 0.0))
                    sent[source, way, m] = link[source, way] = begin + send
                    start = max(start, begin + send)
                order[s].popleft()
                free[s] = done[s, way, m] = posted[s, way] = start + cost[s, way]
                moved = True
        assert moved
    clip = max(free)
    return max(clip + nominal[s, "optimizer"] * _shares(engine, effects, "optimizer", s, 0) for s in range(stages))


def test_a_slow_rank_waits_least_and_arrives_last() -> None:
    engine = _engine("job: {world: 8, model: {layers_per_stage: 2}}\ncluster: {gpus_per_host: 4}")
    effects = Effects(8, 2)
    factor = np.ones((8, 2))
    factor[5] = 1.6
    effects.slow("sm", factor)
    run = engine.run(effects, NO_NOISE, 0)
    first = next(op for op, t in engine.work.traffic.items() if t.op == "all_reduce")
    waited = (run.duration[first] - run.own[first]).mean(axis=1)
    assert waited.argmin() == 5
    assert waited[5] == pytest.approx(0.0, abs=0.5)
    assert (np.delete(waited, 5) > 1_000).all()


def test_the_same_seed_gives_the_same_run_and_another_one_does_not() -> None:
    engine = _engine("job: {world: 4}")
    noise = parse_scenario("").noise
    from eroica.simulator.noise import noise_of

    runs = [engine.run(Effects(4, 2), noise_of(noise), seed) for seed in (3, 3, 4)]
    assert np.array_equal(runs[0].duration, runs[1].duration)
    assert not np.array_equal(runs[0].duration, runs[2].duration)


def test_machines_are_the_same_in_the_healthy_profile_and_later() -> None:
    text = "job: {world: 8}\nnoise: {compute: 0, rank: 0.05, transfer: 0, latency_us: 0, host: 0, spikes: 0, surges: 0}\n"
    simulation = Simulation(parse_scenario(text))
    before, now = simulation.run_healthy(), simulation.run_broken()
    spread = np.ptp(now.own[simulation.engine.rank_of_op.shape[0] // 2, :, 0])
    assert spread > 0
    np.testing.assert_allclose(before.own, now.own, rtol=1e-6)
