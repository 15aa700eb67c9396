"""The messages of a simulated job: of the real schema, accepted by the real cores, consistent in themselves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import pytest

from eroica.schemas.codec import decode, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import GroupChunk
from eroica.schemas.iterations import IterationBatch
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.ranks import parse_ranks
from eroica.schemas.settings import DetectSettings, GroupSettings
from eroica.schemas.summaries import CloseClass, Expectation, StackEvidence, Summary, SummaryError
from eroica.simulator.faults import FAULTS
from eroica.simulator.hangs import HANGS
from eroica.simulator.messages import Emission
from eroica.simulator.simulation import Simulation
from eroica.simulator.source import parse_scenario
from eroica.simulator.truth import labels
from eroica.streams.collect import GroupCore
from eroica.streams.job import JobCore
from eroica.streams.shard import ShardCore
from eroica.topology import merge_announcements

pytestmark = pytest.mark.unit

PIPELINE = """
job: {world: 32, framework: megatron, sizes: {tp: 2, pp: 2}, micro_batches: 4, sharding: 1, model: {layers_per_stage: 2}}
cluster: {gpus_per_host: 4}
history: {before: 12, after: 12}
"""
LAYOUTS = {
    "ddp": "job: {world: 8}\ncluster: {gpus_per_host: 4}\nhistory: {before: 0, after: 0}",
    "pipeline": PIPELINE,
    "experts": "job: {world: 16, framework: megatron, sizes: {tp: 2, pp: 2, ep: 2}, micro_batches: 2, model: {experts: true}}",
    "fsdp": "job: {world: 8, framework: fsdp, sharding: 3}",
    "hsdp": "job: {world: 8, framework: hsdp, sharding: 3, sizes: {dp_replicate: 2}}",
    "context": "job: {world: 16, framework: torchtitan, sharding: 3, sizes: {cp: 2, tp: 2}}",
    "v": "job: {world: 8, framework: torchtitan, sizes: {pp: 4}, schedule: zbv, micro_batches: 8}",
    "interleaved": "job: {world: 8, framework: megatron, sizes: {pp: 4}, chunks: 2, micro_batches: 4, schedule: looped-bfs}",
    "deepspeed": "job: {world: 16, framework: deepspeed, sizes: {pp: 2, tp: 2}, micro_batches: 4, sharding: 1}",
    "two devices": "job: {world: 8}\ncluster: {gpus_per_host: 4, other_devices: {'1': A100}, other_speed: {A100: 0.5}}",
    "replicas of shards with tp": "job: {world: 16, framework: torchtitan, sharding: 3, sizes: {dp_replicate: 2, tp: 2}}",
    "experts alone": "job: {world: 16, framework: deepspeed-moe, sizes: {pp: 2, ep: 2}, model: {experts: true}}",
    "custom": """
job:
  world: 12
  framework: custom
  coordinates: {pp: [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1], dp: [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]}
  micro_batches: 3
  sharding: 1
cluster: {gpus_per_host: 3}
""",
    "one rank": "job: {world: 1}",
}


def _emit(text: str, *assignments: str) -> tuple[Simulation, Emission, list[Output]]:
    simulation = Simulation(parse_scenario(text, assignments))
    emission = Emission(simulation)
    return simulation, emission, list(emission.all())


def _of(outputs: Iterable[Output], kind: type) -> list[Output]:
    return [o for o in outputs if isinstance(o.message, kind)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_messages_that_the_real_readers_take(name: str) -> None:
    simulation, emission, outputs = _emit(LAYOUTS[name])
    for output in outputs:
        assert decode(output.topic, encode(output.message)) == output.message
    view = merge_announcements(o.message for o in _of(outputs, JobAnnouncement))  # type: ignore[misc]
    assert view.complete
    assert {n: r.tolist() for n, r in view.classes.items()} == {n: r.tolist() for n, r in simulation.work.classes.items()}
    core, chunks = GroupCore(GroupSettings()), []
    for offset, output in enumerate(o for o in outputs if o.topic == "summaries"):
        chunks += [c.message for c in core.feed(output.message, InputRef("summaries", 0, offset))]  # type: ignore[arg-type]
    received = sorted(
        r for c in {c.cls: c for c in chunks if isinstance(c, GroupChunk)}.values() for r in parse_ranks(c.received)
    )
    assert received == list(range(simulation.work.world))
    assert all(c.closed_by == "complete" for c in chunks if isinstance(c, GroupChunk))
    assert core.counters.foreign == core.counters.late == core.counters.repeated == 0
    assert emission.request.world_size == simulation.work.world


@pytest.mark.parametrize("name", LAYOUTS)
def test_members_of_a_collective_end_together_and_one_of_them_waits_for_nobody(name: str) -> None:
    """Whoever arrives last has the shortest duration; no member is shorter than the transfer."""
    _, _, outputs = _emit(LAYOUTS[name], "noise=none")
    met: dict[tuple[object, ...], list[tuple[int, float]]] = defaultdict(list)
    for output in _of(outputs, Summary):
        summary = output.message
        assert isinstance(summary, Summary)
        for communicator in summary.communicators:
            for slot in communicator.slots:
                # The k-th send of one end is the k-th receive of the other.
                low = summary.who.rank == min(parse_ranks(communicator.ranks), default=-1)
                way = ("up" if (slot.op == "send") == low else "down") if slot.op in ("send", "recv") else ""
                for step, duration in zip(slot.step, slot.duration_us, strict=True):
                    key = (communicator.name + way, communicator.size, slot.index, step)
                    met[key].append((summary.who.rank, duration))
    for (_, size, _, _), members in met.items():
        assert len(members) == size
        assert len({rank for rank, _ in members}) == size
    if name != "one rank":
        assert met
    # Without noise the transfer is the same in every step, so the last to come always needs just that long.
    shortest: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for (communicator_name, _, index, _), members in met.items():
        shortest[communicator_name, index].append(min(duration for _, duration in members))
    for values in shortest.values():
        assert values == pytest.approx([values[0]] * len(values), abs=1.0)


@pytest.mark.parametrize("name", ["ddp", "pipeline", "context"])
def test_figures_of_a_summary_fit_together(name: str) -> None:
    _, _, outputs = _emit(LAYOUTS[name])
    for output in _of(outputs, Summary):
        summary = output.message
        assert isinstance(summary, Summary)
        assert len(encode(summary)) <= 100_000
        assert summary.window_us == pytest.approx(sum(s.duration_us for s in summary.steps), abs=1)
        for step in summary.steps:
            assert sum(step.phases_us.values()) == pytest.approx(step.duration_us, rel=0.02)
        for f in summary.functions:
            assert 0 <= f.beta <= 1
            assert f.beta == pytest.approx(f.exclusive_us / summary.window_us, abs=2e-5)
            assert f.p50_us <= f.p90_us <= f.p99_us <= f.max_us
            assert f.total_us == pytest.approx(f.count * f.mean_us, rel=0.02)
            assert (f.stack >= 0) == (f.category == "python")
        own = sum(f.beta for f in summary.functions if f.category != "collective")
        assert 0.2 < own <= 1.001
        for communicator in summary.communicators:
            for slot in communicator.slots:
                assert not slot.exposed_us or all(e <= d + 0.1 for e, d in zip(slot.exposed_us, slot.duration_us, strict=True))
                ends = [s + d for s, d in zip(slot.start_us, slot.duration_us, strict=True)]
                assert all(end <= step.duration_us + 1 for end, step in zip(ends, summary.steps, strict=bool(ends)))


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    text = PIPELINE + "faults: [{fault: slow_gpu_clock, dose: 1.2}]\nnuisance: {missing: 0.1, duplicate: 0.1, late: 0.2}"
    runs = [[(o.key, encode(o.message), o.event_time_us) for o in _emit(text, f"seed={seed}")[2]] for seed in (5, 5, 6)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dose", [1.05, 1.3])
def test_a_dose_is_what_the_step_grows_by(fault: str, dose: float) -> None:
    simulation = Simulation(parse_scenario(PIPELINE, (f"faults=[{{fault: {fault}, dose: {dose}}}]", "noise=none")))
    truth = labels(simulation, "r")
    assert truth["causes"][0]["step_growth"] == pytest.approx(dose, abs=0.002)
    # With the lag carried from step to step it is nearly so; pauses that strike elsewhere each time overlap in part.
    grown = simulation.run_broken().mean_step_us() / simulation.run_healthy().mean_step_us()
    assert grown == pytest.approx(dose, abs=0.25 * (dose - 1) + 0.005)
    assert simulation.faults[0].strength > 0


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("{fault: slow_gpu_clock, at: {ranks: '9'}}", ("worker", "9")),
        ("{fault: slow_gpu_clock, at: {hosts: '2'}}", ("host", "8-11")),
        ("{fault: slow_storage, at: {ranks: '3'}}", ("worker", "3")),
        ("{fault: slow_storage, at: {ranks: '0-31'}}", ("software_pause", "")),
        ("{fault: leftover_process, at: {hosts: '1'}}", ("host", "4-7")),
        ("{fault: nic_down, at: {ranks: '5'}}", ("link", "5")),
        ("{fault: link_loss, at: {hosts: '0,1'}}", ("link", "")),
        ("{fault: stage_imbalance, at: {stages: [-1]}}", ("pipeline_stage", "16-31")),
        ("{fault: regression}", ("whole_job", "")),
        ("{fault: length_imbalance}", ("data_imbalance", "")),
    ],
)
def test_labels_say_what_is_broken(fault: str, cause: tuple[str, str]) -> None:
    truth = labels(Simulation(parse_scenario(PIPELINE, (f"faults=[{fault}]",))), "r")["causes"][0]
    assert (truth["class"], truth["suspects"]["ranks"]) == cause


def test_waiters_are_those_who_wait_because_of_the_culprit() -> None:
    text = "job: {world: 8}\ncluster: {gpus_per_host: 4}\nfaults: [{fault: slow_gpu_clock, at: {ranks: '3'}, dose: 1.4}]"
    assert labels(Simulation(parse_scenario(text)), "r")["waiters"] == "0-2,4-7"


def test_only_the_broken_resource_shows_on_the_culprit() -> None:
    _, _, outputs = _emit(PIPELINE + "faults: [{fault: slow_hbm, at: {ranks: '6'}, strength: 1.0}]", "noise=none")
    mean: dict[int, dict[str, float]] = {}
    for output in _of(outputs, Summary):
        assert isinstance(output.message, Summary)
        mean[output.message.who.rank] = {f.name: f.mean_us for f in output.message.functions if f.category == "compute"}
    ratio = {name: mean[6][name] / mean[4][name] for name in mean[6]}
    bound = {"vectorized_elementwise_kernel", "layer_norm_fwd_kernel", "elementwise_backward_kernel", "layer_norm_bwd_kernel"}
    for name, value in ratio.items():
        assert value == pytest.approx(2.0 if name in bound | {"multi_tensor_apply_kernel"} else 1.0, rel=0.01)


def test_a_ring_with_a_dead_nic_has_the_published_signature() -> None:
    """[P]: culprit low mean and low deviation, victims low mean and high deviation, others high mean."""
    text = PIPELINE + "faults: [{fault: nic_down, at: {ranks: '5'}, strength: 3}]\nprofile: {sampling: true}"
    simulation, _, outputs = _emit(text)
    groups = simulation.work.group_of["dp"]
    ring = set(np.flatnonzero(groups == groups[5]).tolist())
    seen = {}
    for output in _of(outputs, Summary):
        assert isinstance(output.message, Summary)
        f = next(f for f in output.message.functions if "ReduceScatter" in f.name)
        assert f.resource == "nic"
        seen[output.message.who.rank] = (f.mu, f.sigma)
    for rank, (mu, sigma) in seen.items():
        assert (mu < 0.5) == (rank in ring)
        assert (sigma > 0.1) == (rank in ring - {5})


def test_bad_delivery_is_what_was_ordered() -> None:
    nuisance = (
        "nuisance: {missing: 0.1, duplicate: 0.2, late: 0.2, late_start: 0.2, truncated: 0.2, errors: 0.1, clock_offset_s: 30}"
    )
    simulation, emission, outputs = _emit(PIPELINE + nuisance)
    heard = Counter(o.message.who.rank for o in _of(outputs, Summary))  # type: ignore[attr-defined]
    failed = {o.message.who.rank for o in _of(outputs, SummaryError)}  # type: ignore[attr-defined]
    assert max(heard.values()) == 2
    assert failed
    assert not failed & set(heard)
    missing = set(range(32)) - set(heard) - failed
    assert missing
    closed = {o.message.cls for o in _of(outputs, CloseClass)}  # type: ignore[attr-defined]
    assert closed == {n for n, r in simulation.work.classes.items() if missing & set(r.tolist())}
    windows = Counter(
        (s.first_step - emission.request.start_step, s.last_step - s.first_step + 1)
        for s in (o.message for o in _of(outputs, Summary))
        if isinstance(s, Summary)
    )
    assert {late for late, _ in windows} > {0}
    assert min(length for _, length in windows) < 5
    for output in _of(outputs, Summary):
        assert isinstance(output.message, Summary)
        assert len(output.message.steps) == output.message.last_step - output.message.first_step + 1


def test_iterations_tell_of_the_slow_down_and_no_step_twice() -> None:
    _, emission, outputs = _emit(PIPELINE + "faults: [{fault: starved_loader, dose: 1.5}]")
    seen: dict[int, list[int]] = defaultdict(list)
    for output in _of(outputs, IterationBatch):
        batch = output.message
        assert isinstance(batch, IterationBatch)
        for rank in batch.ranks:
            assert rank.first_step == len(seen[rank.rank])
            seen[rank.rank] += rank.duration_us
    assert {len(v) for v in seen.values()} == {24}
    assert np.mean(seen[0][12:]) / np.mean(seen[0][:12]) == pytest.approx(1.5, rel=0.05)
    times = [o.event_time_us for o in outputs if o.topic in ("jobs", "iterations", "control")]
    assert times == sorted(times)
    assert emission.request.start_step >= 12


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [("{fault: leftover_process, dose: 1.3}", ["degradation"]), ("{fault: hang_before}", ["blocked"]), ("", [])],
)
def test_detect_asks_by_itself_on_simulated_iterations(fault: str, reasons: list[str]) -> None:
    text = PIPELINE.replace("before: 12, after: 12", "batch_ms: 2000") + f"faults: [{fault}]"
    _, _, outputs = _emit(text)
    announced = [o.message for o in _of(outputs, JobAnnouncement)]
    shard, job, asked = ShardCore(DetectSettings()), JobCore(DetectSettings()), []
    job.feed_job(merge_announcements(announced))  # type: ignore[arg-type]
    for output in _of(outputs, IterationBatch):
        for partial in shard.feed(output.message):  # type: ignore[arg-type]
            asked += [o.message.reason for o in job.feed(partial.message)]  # type: ignore[arg-type,union-attr]
    assert asked == reasons


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_gives_stacks_in_which_the_culprits_differ(name: str) -> None:
    _, emission, outputs = _emit(PIPELINE + f"faults: [{{fault: {name}, at: {{ranks: '3,7'}}}}]")
    assert emission.request.mode == "stacks"
    assert not _of(outputs, Summary)
    stacks = {o.message.who.rank: o.message.threads[0].partition(": ")[2] for o in _of(outputs, StackEvidence)}  # type: ignore[attr-defined]
    assert len(stacks) == 32
    common = Counter(stacks.values()).most_common(1)[0][0]
    assert {rank for rank, stack in stacks.items() if stack != common} == {3, 7}


def test_a_baseline_is_a_second_profile_without_the_fault() -> None:
    _, emission, outputs = _emit(PIPELINE + "faults: [{fault: regression, dose: 1.3}]", "history.baseline=true")
    requests = [o.message for o in _of(outputs, ProfileRequest)]
    assert len(requests) == 2
    assert len(_of(outputs, Expectation)) == 4
    step = defaultdict(list)
    for output in _of(outputs, Summary):
        assert isinstance(output.message, Summary)
        step[output.message.who.request].append(output.message.window_us)
    assert emission.baseline is not None
    assert np.mean(step[emission.request.request]) / np.mean(step[emission.baseline.request]) == pytest.approx(1.3, rel=0.03)
