"""The accuracy bench scores what it says, and its cases are what it covers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eroica.schemas.verdicts import (
    Action,
    Cause,
    CauseClass,
    Coverage,
    IsolationGroup,
    Provenance,
    RequestRef,
    Suspects,
    Verdict,
)
from eroica.simulator.faults import FAULTS

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
from accuracy_cases import DOSES, LAYOUTS, cases
from accuracy_report import report
from accuracy_score import score
from accuracy_stages import Stopwatch, stage_table

pytestmark = pytest.mark.unit


def _verdict(cls: CauseClass | None, confidence: float = 0.9, **suspects: Any) -> Verdict:
    causes = []
    if cls is not None:
        causes = [
            Cause(
                class_=cls,
                suspects=Suspects(**suspects),
                isolation_group=IsolationGroup(kind="dp", ranks="0-7"),
                explains=1.0,
                confidence=confidence,
                action=Action(kind="check", text=""),
            )
        ]
    return Verdict(
        verdict_id="v",
        job="j",
        request=RequestRef(id="r", reason="degradation", steps=(0, 4)),
        status="culprit_found" if causes else "no_fault_found",
        headline="",
        event_time="",
        causes=causes,
        coverage=Coverage(expected=8, received=8),
        provenance=Provenance(settings_digest="", software="", rules="eroica"),
    )


def _truth(cls: str, waiters: str = "", **more: Any) -> dict[str, Any]:
    suspects = {"ranks": "", "hosts": [], "links": [], "stages": [], **more.pop("suspects", {})}
    return {"causes": [{"class": cls, "suspects": suspects, **more}], "waiters": waiters}


WORKER = _truth("worker", "0-2,4-7", suspects={"ranks": "3"})
HOST = _truth("host", "4-7", suspects={"ranks": "0-3", "hosts": ["a"]})
LINK = _truth("link", "0-7", suspects={"ranks": "3", "links": ["rank 3"]}, lookalikes="3,5")
PAIR = _truth("link", "2-7", suspects={"hosts": ["a", "b"], "links": ["a|b"]})
STAGE = _truth("pipeline_stage", suspects={"ranks": "4-7", "stages": [1]})
STAGE_HOST = _truth("host", suspects={"ranks": "4-7", "hosts": ["b"], "stages": [1]}, alternatives=["pipeline_stage"])
ALONE = _truth("worker", suspects={"ranks": "1", "hosts": ["b"]}, alternatives=["host"])
FABRIC = _truth("fabric")
FABRIC_OF_TWO = _truth("fabric", suspects={"hosts": ["a", "b"]}, alternatives=["link"])
HEALTHY: dict[str, Any] = {"causes": [], "waiters": ""}
LOPSIDED: dict[str, Any] = {**HEALTHY, "imbalances": ["pipeline_stage"]}


@pytest.mark.parametrize(
    ("verdict", "truth", "right", "accused", "waiter"),
    [
        (_verdict("worker", ranks="3"), WORKER, True, True, False),
        (_verdict("worker", ranks="4"), WORKER, False, True, True),
        (_verdict("worker", ranks="3-4"), WORKER, False, True, True),
        (_verdict("host", ranks="3", hosts=["a"]), WORKER, False, True, False),
        (_verdict("worker", 0.4, ranks="3"), WORKER, False, False, False),
        (_verdict(None), WORKER, False, False, False),
        (_verdict("host", ranks="0-3", hosts=["a"]), HOST, True, True, False),
        (_verdict("host", ranks="4-7", hosts=["b"]), HOST, False, True, True),
        (_verdict("link", ranks="5"), LINK, True, True, False),
        (_verdict("link", ranks="6"), LINK, False, True, True),
        (_verdict("link", links=["a|b"]), PAIR, True, True, False),
        (_verdict("link", links=["a|c"]), PAIR, False, True, False),
        (_verdict("pipeline_stage", stages=[1]), STAGE, True, False, False),
        (_verdict("pipeline_stage", stages=[0]), STAGE, False, False, False),
        (_verdict("pipeline_stage"), STAGE, False, False, False),
        (_verdict("pipeline_stage", ranks="4-5"), STAGE, True, False, False),
        (_verdict("pipeline_stage", stages=[1]), STAGE_HOST, True, False, False),
        (_verdict("pipeline_stage", stages=[0]), STAGE_HOST, False, False, False),
        (_verdict("host", hosts=["b"]), STAGE_HOST, True, True, False),
        (_verdict("host", hosts=["b"]), ALONE, True, True, False),
        (_verdict("host", hosts=["a"]), ALONE, False, True, False),
        (_verdict("fabric"), FABRIC, True, False, False),
        (_verdict("link", ranks="1"), FABRIC, False, True, False),
        (_verdict("fabric"), FABRIC_OF_TWO, True, False, False),
        (_verdict("link", hosts=["a", "b"], links=["a|b"]), FABRIC_OF_TWO, True, True, False),
        (_verdict("link", hosts=["a", "c"], links=["a|c"]), FABRIC_OF_TWO, False, True, False),
        (_verdict("pipeline_stage", stages=[3]), LOPSIDED, True, False, False),
        (_verdict("worker", ranks="3"), LOPSIDED, False, True, False),
        (_verdict("data_imbalance"), LOPSIDED, False, False, False),
        (_verdict(None), HEALTHY, True, False, False),
        (_verdict("worker", ranks="1"), HEALTHY, False, True, False),
        (_verdict("data_imbalance"), HEALTHY, False, False, False),
    ],
)
def test_scores(verdict: Verdict, truth: dict[str, Any], right: bool, accused: bool, waiter: bool) -> None:
    found = score(verdict, truth)
    assert (found.right, found.accused, found.waiter) == (right, accused, waiter)


def test_the_matrix_covers_every_fault_dose_and_layout_with_seeds_of_its_own() -> None:
    matrix = list(cases(tuple(LAYOUTS), 2, 2, 1))
    faults = {(c.layout, c.what, c.level) for c in matrix if c.kind == "fault"}
    assert faults == {(n, f, d) for n in LAYOUTS for f in FAULTS for d in DOSES}
    assert {c.kind for c in matrix} == {"fault", "healthy", "uneven", "pair", "nuisance", "blind"}
    alone = [c.seed for c in matrix if c.kind not in ("nuisance", "blind")]
    assert len(set(alone)) == len(alone)
    for case in matrix[::50]:
        assert case.scenario().seed == case.seed


def test_a_true_imbalance_of_the_job_is_passed_over_in_the_search_for_the_fault() -> None:
    verdict = _verdict("pipeline_stage", 0.9, stages=[3])
    verdict = msgspec.structs.replace(verdict, causes=[*verdict.causes, *_verdict("worker", 0.8, ranks="3").causes])
    found = score(verdict, {**WORKER, "imbalances": ["pipeline_stage"]})
    assert (found.right, found.said, found.confidence, found.found) == (True, "worker", 0.8, 1)
    assert not score(verdict, WORKER).right


def test_a_bad_delivery_is_held_against_the_same_cases_delivered_well() -> None:
    matrix = [c for c in cases(("ddp-16",), 1, 1, 1) if (c.what, c.level) == ("nic_down", "loud") and c.kind != "blind"]
    rows = [(c, [score(_verdict("link", ranks="3") if c.kind == "fault" else _verdict(None), LINK)]) for c in matrix]
    assert {c.kind for c, _ in rows} == {"fault", "nuisance"}
    assert len({c.seed for c, _ in rows}) == 1
    text = report(rows, "test")
    assert "| eroica | 1 | 100.0 % | 0.0 % | 100.0 points | 100.0 % |" in text
    assert "| loud (1.3) | eroica | 1 | 100.0 % | 100.0 % | 100.0 % | 100.0 % | 100.0 % | 0.0 % |" in text


def test_stage_times_add_up() -> None:
    watch = Stopwatch()
    for _ in range(2):
        with watch.stage("group"):
            pass
    assert list(watch.seconds) == ["group"]
    lines = stage_table([{"group": 1.0, "truth": 1.0}, {"group": 2.0}]).splitlines()
    assert lines[1].split() == ["group", "3.0", "75.0%", "1500.0", "2000"]
    assert lines[2].split() == ["truth", "1.0", "25.0%", "1000.0", "1000"]
