"""Verdicts for people: every fact is there, each verdict once, nothing hostile gets through."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from eroica.bus import Incoming
from eroica.consumers.render import is_routine, render_verdict, short_line
from eroica.consumers.verdicts import MAX_TOLD, Latest, ReadVerdict, VerdictFilter, is_finding
from eroica.schemas.codec import encode
from eroica.schemas.verdicts import (
    Action,
    Cause,
    Coverage,
    Evidence,
    Impact,
    IsolationGroup,
    Provenance,
    RequestRef,
    Suspects,
    Verdict,
    Waiters,
)

pytestmark = pytest.mark.unit


def verdict(**changes: object) -> Verdict:
    evidence = Evidence(
        kind="function",
        metric="read_sample exclusive time",
        subject="rank 2",
        value=81.3,
        unit="ms",
        expected=16.2,
        score=9.5,
        rule="eroica",
        compared_with="ranks 0-1,3",
    )
    cause = Cause(
        class_="worker",
        fault="slow storage read",
        suspects=Suspects(ranks="2", hosts=["host-b"]),
        isolation_group=IsolationGroup(kind="dp", ranks="0-3"),
        functions=["read_sample (job.py:70)"],
        explains=0.94,
        confidence=0.88,
        evidence=[evidence],
        action=Action(kind="check", text="look at the storage of host-b", playbook=""),
    )
    made = Verdict(
        verdict_id="v-1",
        job="train",
        request=RequestRef(id="req-1", reason="degradation", steps=(240, 244)),
        status="culprit_found",
        headline="rank 2 on host-b reads its data slowly",
        event_time="2026-01-02T03:04:05Z",
        causes=[cause],
        waiters=Waiters(ranks="0-1,3", wait_share=0.55),
        impact=Impact(step_ms=110.0, ideal_step_ms=48.0, slowdown=2.29, waste=0.56),
        coverage=Coverage(expected=4, received=4, topology_source="process_groups"),
        provenance=Provenance(settings_digest="d", software="0", rules="eroica"),
    )
    return msgspec.structs.replace(made, **changes)


def shown(one: Verdict, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render_verdict(one))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "fact",
    [
        "rank 2 on host-b reads its data slowly",
        "worker, slow storage read",
        "rank 2; host host-b",
        "explains 94% of the waiting, 88% sure",
        "ranks 0-1,3, 55% of their step",
        "step 110 ms (would be 48 ms), slowdown 2.29×, 56% wasted",
        "4 of 4 ranks",
        "read_sample (job.py:70)",
        "81.3 ms",
        "look at the storage of host-b",
        "2026-01-02T03:04:05Z",
    ],
)
def test_every_fact_is_on_the_page(fact: str) -> None:
    assert fact in shown(verdict())


@pytest.mark.parametrize(
    ("unit", "value", "text"), [("1", 0.25, " 0.25  "), ("", 0.25, " 0.25  "), ("ms", 81.3, "81.3 ms"), ("", 12_345.6, "12,346")]
)
def test_a_ratio_has_no_unit(unit: str, value: float, text: str) -> None:
    [cause] = verdict().causes
    item = msgspec.structs.replace(cause.evidence[0], value=value, unit=unit)
    assert text in shown(verdict(causes=[msgspec.structs.replace(cause, evidence=[item])]))


def test_nothing_explained_is_not_said_and_ranks_are_cut_between_two() -> None:
    [cause] = verdict().causes
    many = ",".join(f"{n}-{n + 50}" for n in range(1_000, 3_000, 100))
    item = msgspec.structs.replace(cause.evidence[0], compared_with=f"ranks {many}")
    page = shown(
        verdict(causes=[msgspec.structs.replace(cause, explains=0.0, evidence=[item], suspects=Suspects(ranks=many))]), 250
    )
    assert "of the waiting" not in page and "88% sure" in page
    assert page.count("1400-1450,1500-1550 … and 714 more") == 2


def test_several_of_a_kind_have_their_plural() -> None:
    [cause] = verdict().causes
    several = msgspec.structs.replace(cause, suspects=Suspects(ranks="1,3", hosts=["a", "b"], stages=[2]))
    page = shown(verdict(causes=[several], waiters=Waiters(ranks="0", wait_share=0.5)))
    assert "ranks 1,3; hosts a, b; stage 2" in page
    assert "rank 0, 50% of their step" in page


def test_markup_and_escapes_in_a_headline_are_text() -> None:
    page = shown(verdict(headline="[red]x[/red] \x1b[31m", job="[link=http://evil]j[/link]"))
    assert "[red]x[/red]" in page
    assert "[link=http://evil]j[/link]" in page
    assert "\x1b" not in page


def test_it_fits_a_narrow_terminal() -> None:
    assert max(len(line) for line in shown(verdict(), width=60).splitlines()) <= 60


def record(value: bytes, offset: int = 0) -> Incoming:
    return Incoming("eroica.verdicts", 0, offset, b"train", value, (), 0)


def test_a_repeated_verdict_is_given_once() -> None:
    accepted = VerdictFilter()
    first, again = accepted.feed(record(encode(verdict()))), accepted.feed(record(encode(verdict()), 1))
    assert first is not None
    assert first.raw == encode(verdict())
    assert again is None


def test_other_jobs_and_unreadable_records_are_passed_over() -> None:
    accepted = VerdictFilter("other")
    assert accepted.feed(record(encode(verdict()))) is None
    assert accepted.feed(record(b"\xff")) is None
    assert accepted.bad == 1


def test_a_verdict_of_another_major_version_is_passed_over_and_said(caplog: pytest.LogCaptureFixture) -> None:
    accepted = VerdictFilter()
    assert accepted.feed(record(encode(verdict(schema_version="2.0")))) is None
    assert accepted.bad == 1
    assert "upgrade this reader" in caplog.text


@pytest.mark.parametrize(
    ("bad", "lines"), [(0, 0), (1, 1), (MAX_TOLD - 1, MAX_TOLD - 1), (MAX_TOLD, MAX_TOLD + 1), (500, MAX_TOLD + 2)]
)
def test_a_flood_of_unreadable_records_is_a_few_lines_and_a_count(
    bad: int, lines: int, own_log: pytest.LogCaptureFixture
) -> None:
    accepted = VerdictFilter()
    for offset in range(bad):
        assert accepted.feed(record(b"\xff", offset)) is None
    accepted.close()
    assert len(own_log.messages) == lines
    if bad > MAX_TOLD:
        assert own_log.messages[-1].startswith(f"skipped {bad} messages")


@pytest.mark.parametrize(
    ("status", "finding"),
    [("culprit_found", True), ("shared_cause", True), ("no_fault_found", False), ("insufficient_data", False)],
)
def test_what_counts_as_a_finding(status: str, finding: bool) -> None:
    assert is_finding(verdict(status=status)) is finding


@pytest.mark.parametrize(
    ("reason", "status", "quiet"),
    [
        ("scheduled", "no_fault_found", True),
        ("scheduled", "insufficient_data", True),
        ("scheduled", "culprit_found", False),
        ("scheduled", "shared_cause", False),
        ("manual", "no_fault_found", False),
        ("degradation", "no_fault_found", False),
    ],
)
def test_a_scheduled_verdict_that_finds_nothing_is_one_line(reason: str, status: str, quiet: bool) -> None:
    one = verdict(status=status, request=RequestRef(id="req-1", reason=reason, steps=(240, 244)))  # type: ignore[arg-type]
    if not is_finding(one):
        one = msgspec.structs.replace(one, causes=[], waiters=Waiters())
    assert is_routine(one) is quiet
    assert (len(shown(one, 400).strip().splitlines()) == 1) is quiet
    assert "240–244" in shown(one) and "v-1" in shown(one)


@pytest.mark.parametrize(
    ("notes", "mark"),
    [
        pytest.param(["ranks 2-3 were not in the folder"], "✔", id="nothing was seen"),
        pytest.param(["not enough to accuse: rank 1 causes 91% of the waiting"], "○", id="a suspicion was seen"),
    ],
)
def test_nobody_at_fault_is_only_green_without_a_suspicion(notes: list[str], mark: str) -> None:
    coverage = Coverage(expected=4, received=4, topology_source="none", notes=notes)
    page = shown(verdict(status="no_fault_found", causes=[], coverage=coverage))
    assert page.startswith(f"{mark} ")
    assert "4 of 4 ranks, all compared alike, since nothing tells their roles" in page


def read(number: int, when: str) -> ReadVerdict:
    return ReadVerdict(verdict(verdict_id=f"v-{number}", event_time=when), b"", "")


@pytest.mark.parametrize(
    ("days", "count", "ids"),
    [
        ([3, 1, 2], 2, [2, 0]),  # partitions are read one after the other: the order is that of the events
        ([1, 1, 1], 2, [1, 2]),
        ([5], 3, [0]),
        ([], 3, []),
    ],
)
def test_the_latest_are_those_of_the_latest_events(days: list[int], count: int, ids: list[int]) -> None:
    latest = Latest(count)
    for number, day in enumerate(days):
        latest.add(read(number, f"2026-01-0{day}T00:00:00Z"))
    assert [item.verdict.verdict_id for item in latest.all()] == [f"v-{n}" for n in ids]


def test_a_short_line_is_one_line_whatever_stands_in_it() -> None:
    line = short_line(verdict(job="a\nb\x1b[31m", headline="one\ntwo")).plain
    assert "\n" not in line and "\x1b" not in line
    assert line.startswith("20") and "v-1" in line and "✖ one two" in line
