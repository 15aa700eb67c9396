from __future__ import annotations

import pytest

from eroica.consumers.feedback import plan_feedback
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.errors import UsageError
from eroica.schemas.memory import Feedback
from eroica.schemas.verdicts import (
    Action,
    Cause,
    Coverage,
    IsolationGroup,
    Provenance,
    Remedy,
    RequestRef,
    Suspects,
    Verdict,
)

pytestmark = pytest.mark.unit


def cause(fault: str, *remedies: str) -> Cause:
    offered = [Remedy(id=r, text="t") for r in remedies]
    return Cause(
        class_="worker", fault=fault, suspects=Suspects(ranks="1"), isolation_group=IsolationGroup(kind="host", ranks="0-7"),
        explains=1.0, confidence=0.9, action=Action(kind="check", text="t", playbook=fault, remedies=offered),
    )  # fmt: skip


def verdict(*causes: Cause) -> Verdict:
    return Verdict(
        verdict_id="verdict-1", job="a/b", request=RequestRef(id="r", reason="manual", steps=(0, 4)), status="culprit_found",
        headline="h", event_time="2026-01-01T00:00:00.000+00:00", causes=list(causes), coverage=Coverage(expected=8, received=8),
        provenance=Provenance(settings_digest="s", software="x", rules="eroica"),
    )  # fmt: skip


TWO = verdict(cause("pin_memory", "pin.off", "pin.reuse"), cause("nic_down", "nic.cable"))


@pytest.mark.parametrize(("remedy", "fault"), [("pin.off", "pin_memory"), ("nic.cable", "nic_down"), (None, "pin_memory")])
def test_a_vote_says_what_it_is_about(remedy: str | None, fault: str) -> None:
    vote = plan_feedback(TWO, helped=True, now_us=5, remedy=remedy, comment="port 7", author="ann")
    assert vote == Feedback(
        job="a/b",
        verdict_id="verdict-1",
        helped=True,
        remedy=remedy or "",
        fault=fault,
        author="ann",
        comment="port 7",
        event_time_us=5,
    )
    assert decode_as(Feedback, encode(vote)) == vote


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"remedy": "prayer"}, "pin.off, pin.reuse, nic.cable"),
        ({"comment": "x" * 2_001}, "at most 2000"),
        ({"author": "x" * 101}, "at most 100"),
    ],
)
def test_what_the_verdict_did_not_offer_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan_feedback(TWO, helped=False, now_us=5, **given)  # type: ignore[arg-type]


def test_a_verdict_without_advice_takes_no_vote() -> None:
    with pytest.raises(UsageError, match="no advice"):
        plan_feedback(verdict(), helped=True, now_us=5)
