"""What repeats is told once, and figures stand in units and words that people read."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from eroica.consumers.figures import say_metric, say_score, say_times, say_value
from eroica.consumers.render import render_verdict
from eroica.consumers.tables import render_explained
from eroica.schemas.verdicts import (
    Action,
    Cause,
    Coverage,
    Evidence,
    IsolationGroup,
    Provenance,
    RequestRef,
    Suspects,
    Verdict,
)

pytestmark = pytest.mark.unit

RANKS = Evidence(
    kind="metric",
    metric="sm_clock",
    subject="rank 2",
    value=1310.0,
    unit="MHz",
    expected=1981.0,
    score=0.66,
    rule="links",
    compared_with="ranks 0-1",
)


def cause(rank: int, function: str = "pin_memory", evidence: list[Evidence] | None = None) -> Cause:
    return Cause(
        class_="worker",
        fault="pin_memory",
        suspects=Suspects(ranks=str(rank), hosts=[f"host-{rank}"]),
        isolation_group=IsolationGroup(kind="dp", ranks="0-31"),
        functions=[function],
        explains=0.3,
        confidence=0.8,
        evidence=evidence or [],
        action=Action(kind="tune", text="turn pin_memory off", playbook="pin_memory"),
    )


def shown(causes: list[Cause], notes: list[str] | None = None) -> str:
    one = Verdict(
        verdict_id="v-1",
        job="train",
        request=RequestRef(id="r", reason="degradation", steps=(0, 4)),
        status="culprit_found",
        headline="h",
        event_time="2026-01-02T03:04:05Z",
        causes=causes,
        coverage=Coverage(expected=32, received=32, notes=notes or []),
        provenance=Provenance(settings_digest="d", software="0", rules="eroica"),
    )
    console = Console(file=io.StringIO(), width=140)
    console.print(render_verdict(one))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_cause_that_repeats_is_one_line() -> None:
    text = shown([cause(1), cause(4, "other"), cause(2), cause(3)])
    assert text.count("turn pin_memory off") == 2
    assert "  3. the same on rank 2; host host-2  explains 30% of the waiting, 80% sure" in text
    assert text.index("1. worker") < text.index("3. the same") < text.index("4. the same") < text.index("2. worker")


@pytest.mark.parametrize(("count", "said"), [(9, ""), (10, "the same in 1 more place"), (40, "the same in 31 more places")])
def test_many_repeats_are_counted(count: int, said: str) -> None:
    text = shown([cause(rank) for rank in range(count)])
    assert text.count("the same on") == min(count - 1, 8)
    assert said in text
    assert ("more place" in text) == bool(said)
    assert "more cause" not in text


def test_causes_that_differ_are_told_up_to_five() -> None:
    text = shown([cause(rank, f"f{rank}") for rank in range(7)])
    assert "  5. worker" in text and "  6. worker" not in text
    assert "and 2 more causes" in text


def test_what_a_rule_and_a_signature_both_measured_is_shown_once() -> None:
    text = shown([cause(2, evidence=[RANKS, RANKS])])
    assert text.count("1,310 MHz") == 1
    assert "SM clock" in text and "sm_clock" not in text


@pytest.mark.parametrize(
    ("value", "expected", "unit", "said"),
    [
        (0.0402, 0.0101, "ms", ("40.2 µs", "10.1")),
        (159.532, 40.376, "ms", ("160 ms", "40.4")),
        (0.4, 40.0, "ms", ("0.4 ms", "40")),
        (12_345.0, 900.0, "ms", ("12.3 s", "0.9")),
        (0.0, 0.0, "ms", ("0 ms", "0")),
        (0.97, 0.4, "share", ("97%", "40%")),
        (91.0, 61.7, "C", ("91 °C", "61.7")),
        (3.0, 0.0, "count", ("3", "0")),
        (2.5, 1.0, "1", ("2.5", "1")),
    ],
)
def test_value_and_expected_stand_in_one_unit(value: float, expected: float, unit: str, said: tuple[str, str]) -> None:
    assert say_value(value, expected, unit) == said


@pytest.mark.parametrize(
    ("score", "kind", "said"),
    [
        (15.49, "z", "z 15.5"),
        (3.951, "ratio", "3.95×"),
        (0.82, "share", "82%"),
        (0.93, "correlation", "r 0.93"),
        (12.0, "value", ""),
        (0.66, "", "0.66"),
        (0.66, "of a later version", "0.66"),
    ],
)
def test_a_score_says_what_it_is(score: float, kind: str, said: str) -> None:
    assert say_score(score, kind) == said
    item = msgspec.structs.replace(RANKS, score=score, score_kind=kind)
    text = shown([cause(2, evidence=[item])])
    assert f" {said} " in next(line for line in text.splitlines() if "SM clock" in line)


def test_evidence_of_an_older_version_is_read() -> None:
    raw = msgspec.json.encode(RANKS)
    fields = msgspec.json.decode(raw)
    del fields["score_kind"]
    assert msgspec.json.decode(msgspec.json.encode(fields), type=Evidence) == RANKS


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu_temperature", "device temperature"),
        ("mlx5_0:nic_link", "mlx5_0: rate of the network link"),
        ("gpu_fan_speed", "device fan speed"),
        ("own time per step", "own time per step"),
        ("share of the excess in torch_npu kernels", "share of the excess in torch_npu kernels"),
        ("p50", "p50"),
    ],
)
def test_readings_have_words(name: str, said: str) -> None:
    assert say_metric(name) == said


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("rank 3: 0.0123 ms against 2345.678 ms", "rank 3: 12.3 µs against 2.35 s"),
        ("1,234.5 ms in all", "1.23 s in all"),
        ("7 ms", "7 ms"),
        ("step5.7 ms", "step5.7 ms"),
        ("limit 5 msg", "limit 5 msg"),
    ],
)
def test_times_in_notes_stand_in_a_fitting_unit(note: str, said: str) -> None:
    assert say_times(note) == said
    assert said in shown([], [note])


def test_a_table_of_small_times_is_in_microseconds() -> None:
    console = Console(file=io.StringIO(), width=140)
    rows = [("→ rank 1", "0.0123", "12"), ("rank 2", "–", "1"), ("and 3 more peers", "", "")]
    console.print(render_explained(None, RANKS, "how", ("", "own time, ms", "z"), rows, (1310.0, 1981.0, 0.66), agrees=True))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()[-6:]]
    assert ["own", "time,", "µs", "z"] in lines
    assert ["→", "rank", "1", "12.3", "12"] in lines
    assert ["rank", "2", "–", "1"] in lines


@pytest.mark.parametrize(("count", "said"), [(6, ""), (7, "and 1 more note: --json shows all"), (20, "and 14 more notes")])
def test_notes_that_are_left_out_are_counted(count: int, said: str) -> None:
    text = shown([], [f"note number {n}" for n in range(count)])
    assert text.count("note number") == min(count, 6)
    assert said in text and ("more note" in text) == bool(said)
