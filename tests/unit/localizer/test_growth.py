"""Without a healthy past, how much longer iterations became tells which of the things that most jobs have is the cause."""

from __future__ import annotations

import pytest
from gallery import simulated

from eroica.localizer.actions import Advice
from eroica.localizer.build import build_frame
from eroica.localizer.explain import explain_verdict
from eroica.localizer.judged import Judged
from eroica.localizer.rules.eroica import judge_eroica
from eroica.localizer.verdict import make_verdict
from eroica.schemas.settings import LocalizeSettings

pytestmark = pytest.mark.unit

TWO_STAGES = "{world: 12, framework: deepspeed, sizes: {pp: 2, tp: 2}, micro_batches: 8, schedule: gpipe, sharding: 0}"
LOADING = "{world: 8, framework: megatron, sizes: {pp: 2}, micro_batches: 2, schedule: gpipe, sharding: 0}"
FOUR_STAGES = "{world: 16, framework: deepspeed, sizes: {pp: 4, tp: 2}, micro_batches: 8, sharding: 0}"
HEAVY_END = (
    "{world: 32, framework: deepspeed, sizes: {pp: 8}, micro_batches: 4, sharding: 3, "
    "model: {layers_per_stage: 2, head_layers: 1.5}}"
)
PAIR = "{world: 2, framework: ddp}"
MANY = "{world: 64, framework: ddp, micro_batches: 2, sharding: 0}"
HALF_A_HOST = "{world: 8, framework: megatron, sizes: {pp: 4}, micro_batches: 2, schedule: gpipe, sharding: 3}"
ONE_HOST = "{world: 8, framework: ddp}"


@pytest.mark.parametrize(
    ("job", "fault", "cls", "what"),
    [
        pytest.param(TWO_STAGES, "{fault: stage_imbalance, at: {stages: [1]}, dose: 1.15}", "pipeline_stage", "1", id="of two"),
        pytest.param(LOADING, "{fault: slow_storage, dose: 1.3}", "software_pause", "loader", id="all load"),
        pytest.param(FOUR_STAGES, "{fault: allocator_churn, dose: 1.15}", "software_pause", "alloc", id="all allocate"),
        pytest.param(HEAVY_END, "{fault: regression, dose: 1.3}", "whole_job", "", id="beside a heavy stage"),
        pytest.param(PAIR, "{fault: slow_gpu_clock, at: {ranks: '1'}, dose: 1.3}", "worker", "1", id="one of a pair"),
        pytest.param(MANY, "{fault: length_imbalance, dose: 1.15}", "data_imbalance", "", id="unequal work"),
        pytest.param(HALF_A_HOST, "{fault: pin_memory, at: {ranks: '2-3'}, dose: 1.2}", "worker", "2-3", id="a stage that loads"),
        pytest.param(ONE_HOST, "{fault: regression, dose: 1.15}", "whole_job", "", id="no transfers between hosts"),
    ],
)
def test_the_growth_is_made_up_for(job: str, fault: str, cls: str, what: str) -> None:
    on_host = 4 if job == HALF_A_HOST else 8
    text = (
        f"job: {job}\nfaults: [{fault}]\nnoise: production\nseed: 5\ncluster: {{gpus_per_host: {on_host}}}\n"
        "history: {before: 20, after: 120}\nprofile: {steps: 3}\n"
    )
    chunks, _ = simulated(text)
    frame, settings, advice = build_frame(chunks), LocalizeSettings(), Advice()
    judgement = judge_eroica(frame, settings)
    verdict = make_verdict(frame, judgement, settings, advice)
    first = verdict.causes[0]
    assert first.class_ == cls, [(c.class_, c.confidence) for c in verdict.causes]
    told = {"pipeline_stage": first.suspects.stages, "software_pause": first.functions, "worker": [first.suspects.ranks]}
    assert [str(x) for x in told.get(cls, [""])] == [what]
    assert first.confidence >= settings.accuse_confidence
    items = list(explain_verdict(Judged(frame, None, judgement, advice, settings, verdict)))
    assert items and all(item.explanation is not None and item.explanation.agrees(item.evidence) for item in items)


def test_where_nobody_knows_it_is_said_that_the_network_could_have_done_it() -> None:
    text = (
        "job: {world: 16, framework: fsdp}\nfaults: [{fault: ecmp_collision, dose: 1.3}]\nseed: 5\ncluster: {gpus_per_host: 8}\n"
        "history: {before: 20, after: 120}\nprofile: {steps: 3}\n"
    )
    chunks, _ = simulated(text)
    judgement = judge_eroica(build_frame(chunks), LocalizeSettings())
    assert {f.cls for f in judgement.findings} == {"unknown"}
    assert any(note.startswith("a slower network could explain it") for note in judgement.notes)


def test_what_is_heavier_than_the_others_explains_no_growth_of_another_size() -> None:
    """The stage was as heavy before: iterations of the same job without a fault are no longer than they were."""
    text = f"job: {HEAVY_END}\nseed: 5\ncluster: {{gpus_per_host: 8}}\nhistory: {{before: 20}}\nprofile: {{steps: 3}}\n"
    chunks, _ = simulated(text)
    judgement = judge_eroica(build_frame(chunks), LocalizeSettings())
    assert {f.cls for f in judgement.findings} == {"pipeline_stage"}
