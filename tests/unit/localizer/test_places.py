"""Where a cause is, in jobs whose hosts, stages and groups cut across each other; none has a healthy profile."""

from __future__ import annotations

import numpy as np
import pytest
from gallery import simulated

from eroica.localizer.build import build_frame
from eroica.localizer.causes.places import RowsOfHosts, places
from eroica.localizer.judgement import Judgement
from eroica.localizer.rules.eroica import judge_eroica
from eroica.schemas.settings import LocalizeSettings

pytestmark = pytest.mark.unit

ALONE = "history: {before: 0, after: 0}"


def judged(job: str, fault: str, seed: int) -> Judgement:
    chunks, _ = simulated(f"seed: {seed}\n{job}\nfaults: [{fault}]\n{ALONE}\n")
    return judge_eroica(build_frame(chunks), LocalizeSettings())


@pytest.mark.parametrize(
    ("excess", "guilty", "found"),
    [
        ([9, 9, 9, 9, 0, 0, 0, 0], [0, 1, 2, 3], [([0, 1, 2, 3], ["a"])]),
        ([9, 9, 9, 3, 0, 0, 0, 0], [0, 1, 2], [([0, 1, 2], ["a"])]),
        ([9, 9, 9, 0, 0, 0, 0, 0], [0, 1, 2], [([0], []), ([1], []), ([2], [])]),
        ([9, 9, 0, 0, 0, 0, 0, 0], [0, 1], [([0], []), ([1], [])]),
        ([9, 9, 9, 9, 9, 0, 0, 0], [0, 1, 2, 3, 4], [([0, 1, 2, 3], ["a"]), ([4], [])]),
    ],
)
def test_a_host_is_slow_where_all_of_it_is_somewhat(
    excess: list[float], guilty: list[int], found: list[tuple[list[int], list[str]]]
) -> None:
    by_host = RowsOfHosts(np.repeat([0, 1], 4), ["a", "b"])
    assert [(rows.tolist(), hosts) for rows, hosts in places(np.array(guilty), by_host, np.array(excess, float))] == found


HOSTS_ACROSS_STAGES = """job: {world: 12, framework: megatron, sizes: {tp: 1, pp: 4}, micro_batches: 16}
cluster: {gpus_per_host: 4}"""
HOSTS_ARE_STAGES = "job: {world: 32, framework: megatron, sizes: {tp: 2, pp: 4}, micro_batches: 8}"
SHARDS_OF_TWO_HOSTS = """job: {world: 32, framework: hsdp, sizes: {dp_replicate: 4, dp_shard: 8}, sharding: 3}
cluster: {gpus_per_host: 4}"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stage_of_which_only_some_workers_are_slow_has_no_more_work(seed: int) -> None:
    # Ranks 4 to 7 are a host: two of the three workers of stage 1, and of stage 2. No reading tells of slow storage.
    found = judged(HOSTS_ACROSS_STAGES, "{fault: slow_storage, dose: 1.3, at: {hosts: 1}}", seed)
    assert "pipeline_stage" not in {f.cls for f in found.findings}
    assert any("not on all of its workers" in note for note in found.notes)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("fault", ["leftover_process", "cpu_contention"])
def test_readings_tell_which_part_of_a_role_is_sick_though_it_is_the_larger(fault: str, seed: int) -> None:
    (found,) = judged(HOSTS_ACROSS_STAGES, f"{{fault: {fault}, dose: 1.3, at: {{hosts: 1}}}}", seed).findings
    assert (found.cls, found.hosts, found.ranks.tolist()) == ("host", ["node-1"], [4, 5, 6, 7])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stage_that_is_heavy_on_all_of_its_workers_is_said_with_doubt_as_long_as_no_past_tells(seed: int) -> None:
    found = judged(HOSTS_ACROSS_STAGES, "{fault: stage_imbalance, dose: 1.3}", seed)
    assert [f.cls for f in found.findings] == ["pipeline_stage"]
    assert found.findings[0].confidence <= 0.8
    stage = found.findings[0].stages[0]
    assert not np.isin(np.arange(3 * stage, 3 * stage + 3), found.waiters).any()
    # Layers that are moved make the other stages longer: that gives back less than the fault took.
    assert found.ideal_step_us is not None and 1.1 < found.step_us / found.ideal_step_us < 1.3


@pytest.mark.parametrize("fault", ["leftover_process", "cpu_contention", "slow_storage"])
def test_a_host_that_is_a_whole_stage_is_told_from_its_layers_by_readings_or_by_what_it_does(fault: str) -> None:
    found = judged(HOSTS_ARE_STAGES, f"{{fault: {fault}, dose: 1.2, at: {{hosts: 1}}}}", 1)
    (one,) = found.findings
    assert (one.cls, one.hosts, one.ranks.tolist()) == ("host", ["node-1"], list(range(8, 16)))
    assert found.ideal_step_us is not None and found.step_us / found.ideal_step_us == pytest.approx(1.2, abs=0.1)


def test_a_heavy_stage_that_is_one_host_is_told_beside_it() -> None:
    found = judged(HOSTS_ARE_STAGES, "{fault: stage_imbalance, dose: 1.3, at: {stages: [1]}}", 1)
    assert [f.cls for f in found.findings] == ["pipeline_stage"]
    assert any("stage 1 is all of host node-1" in note for note in found.notes)


@pytest.mark.parametrize(
    ("fault", "cls"), [("slow_gpu_clock", "worker"), ("pcie_downgrade", "worker"), ("stage_imbalance", "pipeline_stage")]
)
def test_a_stage_of_one_worker_is_told_from_its_worker(fault: str, cls: str) -> None:
    place = "stages: [2]" if fault == "stage_imbalance" else "ranks: 2"
    job = "job: {world: 4, framework: megatron, sizes: {tp: 1, pp: 4}, micro_batches: 8}"
    (found,) = judged(job, f"{{fault: {fault}, dose: 1.3, at: {{{place}}}}}", 1).findings
    assert (found.cls, found.ranks.tolist() or found.stages) == (cls, [2])


PAIRS = """job: {world: 8, framework: megatron, sizes: {tp: 2, pp: 4}, micro_batches: 8}
cluster: {gpus_per_host: 2}"""


@pytest.mark.parametrize("fault", ["slow_gpu_clock", "slow_hbm", "starved_loader", "pcie_downgrade"])
def test_one_of_two_that_differ_far_more_than_the_other_pairs_is_slow(fault: str) -> None:
    found = judged(PAIRS, f"{{fault: {fault}, dose: 1.3, at: {{ranks: 5}}}}", 1)
    assert [(f.cls, f.ranks.tolist()) for f in found.findings] == [("worker", [5])]


@pytest.mark.parametrize("noise", ["quiet", "production", "noisy"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_pairs_of_equal_workers_accuse_nobody(noise: str, seed: int) -> None:
    chunks, _ = simulated(f"seed: {seed}\n{PAIRS}\nnoise: {noise}\n{ALONE}\n")
    assert judge_eroica(build_frame(chunks), LocalizeSettings()).findings == []


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("fault", "cls", "links"), [("link_loss", "link", ["node-0|node-1"]), ("ecmp_collision", "fabric", [])])
def test_between_two_hosts_their_counters_tell_a_bad_link_from_the_fabric(
    fault: str, cls: str, links: list[str], seed: int
) -> None:
    (found,) = judged(SHARDS_OF_TWO_HOSTS, f"{{fault: {fault}, dose: 1.3, at: {{hosts: 0-1}}}}", seed).findings
    assert (found.cls, found.hosts, found.links) == (cls, ["node-0", "node-1"], links)


def test_a_slow_link_that_no_past_and_no_counter_calls_bad_is_no_more_than_a_note() -> None:
    job = "job: {world: 12, framework: megatron, sizes: {tp: 1, pp: 6}, micro_batches: 8, sharding: 1, buckets: 4}"
    rest = "cluster: {gpus_per_host: 4, nic_gbytes: 50}\nprofile: {steps: 4, sampling: true}\nnoise: noisy"
    chunks, _ = simulated(f"seed: 1045\n{job}\n{rest}\nhistory: {{before: 20, after: 0}}\n")
    frame = build_frame(chunks)
    found = judge_eroica(frame, LocalizeSettings()).findings
    assert all(f.cls == "link" and f.confidence < LocalizeSettings().accuse_confidence for f in found)


@pytest.mark.parametrize(
    ("second", "hosts"),
    [
        pytest.param("slow_storage", [["node-3"], ["node-4"]], id="one computes slowly, one waits for data"),
        pytest.param("cpu_contention", [["node-3", "node-4"]], id="both compute slowly"),
    ],
)
def test_hosts_that_are_slow_in_different_things_are_causes_of_their_own(second: str, hosts: list[list[str]]) -> None:
    job = "job: {world: 64, framework: ddp}\ncluster: {gpus_per_host: 8}\nprofile: {steps: 8}"
    faults = f"{{fault: cpu_contention, at: {{hosts: 3}}, dose: 1.2}}, {{fault: {second}, at: {{hosts: 4}}, dose: 1.2}}"
    found = judged(job, faults, 7).findings
    assert {f.cls for f in found} == {"host"}
    assert sorted(f.hosts for f in found) == hosts


def test_two_that_are_slow_after_each_other_are_named_though_each_gives_back_little() -> None:
    """A delay of loading and a slow device add up in sharded jobs: the step grew by both, and own times tell of the slower."""
    job = "job: {world: 32, framework: fsdp, sharding: 3}\ncluster: {gpus_per_host: 8}\nprofile: {steps: 8}\nnoise: noisy"
    faults = "{fault: slow_storage, at: {hosts: 1}, dose: 1.25}, {fault: slow_gpu_clock, at: {ranks: '17'}, dose: 1.25}"
    chunks, _ = simulated(f"seed: 3\n{job}\nfaults: [{faults}]\nhistory: {{before: 20, after: 120}}\n")
    found = judge_eroica(build_frame(chunks), LocalizeSettings()).findings
    assert {(f.cls, tuple(f.hosts)) for f in found} == {("host", ("node-1",)), ("worker", ("node-2",))}
