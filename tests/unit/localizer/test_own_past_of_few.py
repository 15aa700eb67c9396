"""Where peers are few, or most of them slow, a worker's own healthy past tells who has changed."""

from __future__ import annotations

import pytest
from gallery import simulated

from eroica.localizer.core import LocalizerCore
from eroica.schemas.outputs import InputRef
from eroica.schemas.ranks import parse_ranks
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Verdict

pytestmark = pytest.mark.unit

PAIRS = "{world: 4, framework: megatron, sizes: {pp: 2}, micro_batches: 8, schedule: 1f1b}"
STAGES = "{world: 12, framework: megatron, sizes: {pp: 4}, micro_batches: 4, schedule: gpipe, sharding: 3}"
DEEP = "{world: 16, framework: deepspeed, sizes: {pp: 4, tp: 2}, micro_batches: 8, schedule: gpipe, sharding: 0}"
FSDP = "{{world: {}, framework: fsdp, sharding: 3, model: {{layers_per_stage: 8}}}}"
HSDP = "{world: 32, framework: hsdp, sharding: 0, sizes: {dp_replicate: 4}, model: {layers_per_stage: 4}}"


def judged(job: str, faults: str, noise: str, seed: int) -> Verdict:
    text = (
        f"job: {job}\nfaults: [{faults}]\nnoise: {noise}\nseed: {seed}\ncluster: {{gpus_per_host: 4}}\n"
        "history: {before: 20, after: 0, baseline: true}\nprofile: {steps: 5}\n"
    )
    chunks, _ = simulated(text, every=True)
    core = LocalizerCore(LocalizeSettings())
    found = [o.message for at, chunk in enumerate(chunks) for o in core.feed(chunk, InputRef("groups", 0, at))]
    return [m for m in found if isinstance(m, Verdict)][-1]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("job", "faults", "noise", "cls", "ranks"),
    [
        pytest.param(
            PAIRS, "{fault: slow_gpu_clock, at: {ranks: '3'}, dose: 1.2}", "production", "worker", "3", id="one of a pair"
        ),
        pytest.param(
            STAGES, "{fault: leftover_process, at: {hosts: '1'}, dose: 1.3}", "production", "host", "4-7", id="two of three"
        ),
        pytest.param(
            FSDP.format(8), "{fault: pin_memory, at: {ranks: '3-4,7'}, dose: 1.3}", "noisy", "worker", "3-4,7", id="many"
        ),
        pytest.param(HSDP, "{fault: starved_loader, at: {ranks: '29'}, dose: 1.3}", "noisy", "worker", "29", id="lost in noise"),
        pytest.param(DEEP, "{fault: regression, dose: 1.3}", "noisy", "whole_job", "", id="all alike"),
        pytest.param(FSDP.format(4), "{fault: slow_storage, dose: 1.3}", "quiet", "software_pause", "", id="all load"),
    ],
)
def test_who_changed_is_named(job: str, faults: str, noise: str, cls: str, ranks: str, seed: int) -> None:
    verdict = judged(job, faults, noise, seed)
    assert {cause.class_ for cause in verdict.causes} == {cls}, verdict.coverage.notes
    if cls in ("worker", "host"):
        named = {rank for cause in verdict.causes for rank in parse_ranks(cause.suspects.ranks).tolist()}
        assert named == set(parse_ranks(ranks).tolist())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("job", [PAIRS, STAGES, DEEP, FSDP.format(4)])
def test_nobody_is_named_where_nothing_changed(job: str, seed: int) -> None:
    assert not judged(job, "", "noisy", seed).causes
