"""Every item of evidence of every verdict can be made again, and comes out the same."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from gallery import GALLERY, simulated
from scenes import Scene, steady, stuck

from eroica.localizer.core import LocalizerCore
from eroica.localizer.explain import Explained, Unexplained, explain, explain_verdict
from eroica.localizer.judged import Judged
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef
from eroica.schemas.ranks import parse_ranks
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Evidence
from eroica.simulator.faults import FAULTS
from eroica.simulator.hangs import HANGS

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[3]

UNDOSED = {"pcie_downgrade", "cpu_contention", *HANGS}
JOB = "{name: x, world: 32, framework: megatron, sizes: {tp: 2, pp: 2}, micro_batches: 4, sharding: 1}"
DDP = "{name: x, world: 24, framework: ddp, model: {layers_per_stage: 4}}"


def judged(chunks: list[GroupChunk], rules: str = "eroica") -> list[Judged]:
    seen: list[Judged] = []
    core = LocalizerCore(LocalizeSettings(rules=rules), watch=seen.append)  # type: ignore[arg-type]
    for offset, chunk in enumerate(chunks):
        core.feed(chunk, InputRef("groups", 0, offset))
    return seen


def assert_made_again(seen: list[Judged]) -> list[Explained]:
    """All evidence of all verdicts comes out the same, from tables that are not empty."""
    found = []
    for one in seen:
        items = list(explain_verdict(one))
        printed = [e for cause in one.verdict.causes for e in cause.evidence]
        assert Counter(map(repr, printed)) <= Counter(repr(i.evidence) for i in items)
        for item in items:
            made = item.explanation
            assert made is not None, f"{item.evidence.rule}: {item.why_not}"
            assert made.agrees(item.evidence), (item.evidence, made)
            assert made.how
            assert_score_is_what_it_says(item.evidence)
            assert all(len(row) == len(made.columns) for row in made.rows)
            assert made.rows or item.evidence.metric.startswith(("share of stacks", "share of the named"))
        found += items
    return found


def assert_score_is_what_it_says(evidence: Evidence) -> None:
    kind, score, value, expected = evidence.score_kind, evidence.score, evidence.value, evidence.expected
    assert kind in {"z", "ratio", "share", "correlation", "value"}, evidence
    assert kind != "share" or 0 <= score <= 1, evidence
    assert kind != "value" or abs(score - value) <= 1e-3 * max(1, abs(value)), evidence
    # A median of ratios is not the ratio of medians, but lies on the same side.
    assert kind != "ratio" or expected == 0 or (score - 1) * (value / expected - 1) >= -0.01, evidence


def test_every_writer_of_evidence_says_what_the_score_is() -> None:
    calls = [
        (file.name, {keyword.arg for keyword in node.keywords})
        for room in ("localizer", "offline")
        for file in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Evidence"
    ]
    assert len(calls) >= 15
    assert [name for name, given in calls if "score_kind" not in given] == []


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery(name: str) -> None:
    """All evidence comes out the same; and where the rules find the place, the playbook finds the fault."""
    chunks, truth = simulated(name, every=True)
    seen = judged(chunks)
    items = assert_made_again(seen)
    if any(cause["class"] in ("worker", "host") for cause in truth["causes"]):
        assert items, "a slow worker's verdict holds evidence"
    last = next(one.verdict for one in seen if one.frame.request.request == truth["request"])
    for wanted in truth["causes"]:
        ranks = set(parse_ranks(wanted["suspects"]["ranks"]).tolist())
        for cause in last.causes:
            same = cause.class_ == wanted["class"] and (not ranks or ranks & set(parse_ranks(cause.suspects.ranks).tolist()))
            if same and cause.class_ != "hang":
                assert cause.fault is not None
                assert cause.fault.split(".")[0] == wanted["fault"]


@pytest.mark.parametrize("rules", ["paper", "guide"])
@pytest.mark.parametrize("name", ["slow-gpu", "nic-down", "slow-storage", "unsynchronised-gc"])
def test_the_published_rules(name: str, rules: str) -> None:
    assert assert_made_again(judged(simulated(name, every=True)[0], rules))


OTHERS = [(JOB, fault) for fault in (*FAULTS, *HANGS)]
OTHERS += [(DDP, fault) for fault in FAULTS if fault not in ("stage_imbalance", "nvlink_down")]
"""Replicas alone have no stages, and their collectives go over the NICs."""


@pytest.mark.parametrize(("job", "fault"), OTHERS)
def test_every_fault_in_other_layouts(job: str, fault: str) -> None:
    dose = "" if fault in UNDOSED else ", dose: 1.3"
    assert_made_again(judged(simulated(f"name: x\njob: {job}\nfaults: [{{fault: {fault}{dose}}}]\n")[0]))


def test_without_collectives() -> None:
    items = assert_made_again(judged(Scene(8, steady(60_000.0, {5: 2.0}), collectives_seen=False).chunks()))
    assert items[0].evidence.metric == "time per step above the peers, all functions"


def test_stacks() -> None:
    same = "main;step;ncclAllReduce"
    items = assert_made_again(judged([stuck({r: "main;load;lock_acquire" if r == 3 else same for r in range(8)})]))
    assert items[0].evidence.kind == "stack"


def test_a_figure_that_is_not_what_the_recording_says_is_found() -> None:
    [one] = judged(Scene(8, steady(50_000.0, {2: 1.8})).chunks())
    [cause, *_] = one.verdict.causes
    for evidence in cause.evidence:
        assert explain(evidence, cause, one).agrees(evidence)
        for field in ("value", "expected", "score"):
            wrong = msgspec.structs.replace(evidence, **{field: getattr(evidence, field) * 1.01 + 0.01})
            assert not explain(evidence, cause, one).agrees(wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"metric": "phase of the moon"},
        {"rule": "astrology"},
        {"metric": "own time per step", "subject": "rank 99"},
        {"metric": "exclusive time per step", "subject": "rank 2: no such function"},
        {"metric": "usual own time per step", "rule": "eroica/past"},
        {"metric": "transfer without waiting", "rule": "eroica/transfers"},
        {"metric": "sm_clock", "rule": "playbook/no_such_fault"},
    ],
)
def test_what_cannot_be_made_again_says_why(change: dict[str, str]) -> None:
    [one] = judged(Scene(8, steady(50_000.0, {2: 1.8})).chunks())
    cause = one.verdict.causes[0]
    evidence = next(e for e in cause.evidence if e.kind == "step")
    with pytest.raises(Unexplained) as error:
        explain(msgspec.structs.replace(evidence, **change), cause, one)
    assert str(error.value)
