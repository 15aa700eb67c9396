"""The headline: one sentence that says each thing once."""

from __future__ import annotations

import pytest
from gallery import simulated

from eroica.localizer.core import LocalizerCore
from eroica.localizer.explain import explain_verdict
from eroica.localizer.judged import Judged
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import LocalizeSettings

pytestmark = [pytest.mark.unit, pytest.mark.timeout(120)]

EXPERTS = """job: {name: moe, world: 16, framework: megatron, sizes: {ep: 8}, model: {experts: true}}
cluster: {gpus_per_host: 1}
faults: [{fault: nic_halved, at: {ranks: 5}, dose: 1.3}]
profile: {receive_waits: true}
"""


def judged(text_or_name: str) -> Judged:
    seen: list[Judged] = []
    core = LocalizerCore(LocalizeSettings(), watch=seen.append)
    for offset, chunk in enumerate(simulated(text_or_name)[0]):
        core.feed(chunk, InputRef("groups", 0, offset))
    [one] = seen
    return one


@pytest.mark.parametrize(
    ("scenario", "says", "never"),
    [
        (
            "pin-memory",
            "ranks 7,29,50 on node-0, node-3, node-6 are slow in pin_memory < torch/utils/data/dataloader.py:__next__: page",
            ["more cause", "page locking of batches is slow"],
        ),
        ("lossy-link", "the link node-2|node-5 is slow: packets are lost and sent again", ["packets get lost"]),
        ("two-culprits", "; 1 more cause; the others wait", []),
        ("leftover-process", "ranks 32-39 (all of node-4) are slow in ", ["are most of"]),
        ("hang", " stands elsewhere than the rest of the stuck job, in ", []),
        ("slow-gpu", "the device throttles for heat; check fans", []),
    ],
)
def test_it_says_each_thing_once(scenario: str, says: str, never: list[str]) -> None:
    headline = judged(scenario).verdict.headline
    assert says in headline
    assert [words for words in never if words in headline] == []


def test_the_matrix_of_receive_waits_is_shown() -> None:
    tables = {e.evidence.metric: e.explanation for e in explain_verdict(judged(EXPERTS)) if "per step" in e.evidence.metric}
    source, destination = tables["wait for the source per step"], tables["wait of the destination per step"]
    assert source is not None and destination is not None
    assert source.columns == ("", "median, ms", *(f"at {rank}, ms" for rank in range(8)))
    assert destination.columns == ("", "median, ms", *(f"from {rank}, ms" for rank in range(8)))
    by_source = {row[0].rpartition(" ")[2]: row[2:] for row in source.rows}
    by_destination = {row[0].rpartition(" ")[2]: row[2:] for row in destination.rows}
    for s in range(8):
        for d in range(8):
            assert by_source[str(s)][d] == by_destination[str(d)][s]
            assert (by_source[str(s)][d] == "–") == (s == d), "a rank does not wait for itself"
