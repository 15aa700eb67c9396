"""Counts of remedies that helped: each person once, whatever is sent, and the same in a replay."""

from __future__ import annotations

import pytest
from scenes import Scene, steady

from eroica.localizer.core import LocalizerCore
from eroica.localizer.feedback import MAX_AGE_US, FeedbackTable, Heard, limits_of
from eroica.schemas.memory import Feedback
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Verdict

pytestmark = pytest.mark.unit

NOW = 10 * MAX_AGE_US
OLD = NOW - MAX_AGE_US


def vote(verdict: str, helped: bool, remedy: str = "nic.cable", author: str = "ann", **fields: object) -> Feedback:
    given = {"job": "j", "fault": "nic_down", "event_time_us": NOW - 1, **fields}
    return Feedback(verdict_id=verdict, helped=helped, remedy=remedy, author=author, **given)  # type: ignore[arg-type]


def table(*votes: Feedback | None, partition: int = 0, start: int = 5) -> FeedbackTable:
    made = FeedbackTable()
    for offset, one in enumerate(votes, start):
        made.feed(one, InputRef("feedback", partition, offset))
    return made


@pytest.mark.parametrize(
    ("votes", "counts"),
    [
        ([vote("v1", True), vote("v2", False), vote("v3", True)], {"nic.cable": (2, 1)}),
        ([vote("v1", True), vote("v1", True), vote("v1", True)], {"nic.cable": (1, 0)}),
        ([vote("v1", True), vote("v1", False)], {"nic.cable": (0, 1)}),
        ([vote("v1", True), vote("v1", False, author="bob")], {"nic.cable": (1, 1)}),
        ([vote("v1", True), vote("v1", False, remedy="nic.replace")], {"nic.cable": (1, 0), "nic.replace": (0, 1)}),
        ([vote("v1", True, remedy="")], {"nic_down": (1, 0)}),
        ([None, vote("v" * 101, True), vote("v", True, "r" * 101), vote("v", True, author="a" * 101)], {}),
        ([vote("v", True, comment="c" * 4_001)], {}),
        ([vote("v1", True, event_time_us=OLD), vote("v2", True, event_time_us=OLD + 1)], {"nic.cable": (1, 0)}),
        ([vote("v1", True, event_time_us=2**63 - 1), vote("v2", True, event_time_us=-(2**63))], {"nic.cable": (1, 0)}),
        ([], {}),
    ],
)  # fmt: skip
def test_counts(votes: list[Feedback | None], counts: dict[str, tuple[int, int]]) -> None:
    assert table(*votes).heard(NOW).counts == counts


def test_the_offsets_say_what_was_counted_and_give_the_same_counts_again() -> None:
    made = table(vote("v1", True), None, vote("v2", False), partition=2, start=7)
    first = made.heard(NOW)
    assert first.inputs == {"feedback/2": "7-9"}
    made.feed(vote("v1", False), InputRef("feedback", 2, 10))
    made.feed(vote("v9", True), InputRef("feedback", 3, 0))
    assert made.heard(NOW).counts != first.counts
    again = made.heard(NOW, limits_of({**first.inputs, "summaries/1": "0-9", "feedback/x": "0-1", "feedback/1": "0..4"}))
    assert again == first


def test_memory_is_bounded_and_what_was_let_go_is_not_claimed() -> None:
    made = FeedbackTable(max_votes=10)
    for offset in range(100):
        made.feed(vote(f"v{offset}", True), InputRef("feedback", 0, offset))
    heard = made.heard(NOW)
    assert heard.counts == {"nic.cable": (10, 0)}
    assert heard.inputs == {"feedback/0": "90-99"}


def test_without_a_verdict_what_was_said_by_the_request_counts() -> None:
    made = table(vote("v1", True, event_time_us=NOW - 5), vote("v2", True, event_time_us=NOW + 5))
    assert made.heard_until(NOW).counts == {"nic.cable": (1, 0)}
    assert made.heard_until(NOW - 6).counts == {}


def test_a_verdict_shows_the_counts_of_its_remedies_and_no_others() -> None:
    heard = Heard({"worker.move": (4, 1), "worker": (2, 0), "unheard.of": (9, 9)}, {"feedback/0": "0-3"})
    chunks = Scene(8, steady(50_000.0, {2: 1.8})).chunks()
    core = LocalizerCore(LocalizeSettings(), listen=lambda _: heard)
    [verdict] = [o.message for c in chunks for o in core.feed(c, InputRef("groups", 0, 0)) if isinstance(o.message, Verdict)]
    action = verdict.causes[0].action
    assert verdict.provenance.inputs["feedback/0"] == "0-3"
    shown = {r.id: (r.helped, r.did_not_help) for r in action.remedies} | {action.playbook: (action.helped, action.did_not_help)}
    assert {k: v for k, v in shown.items() if v != (0, 0)} == {k: heard.counts[k] for k in shown if k in heard.counts}
    assert "unheard.of" not in shown
