"""Telling whether what a verdict advised helped: one vote a person, verdict and remedy."""

from __future__ import annotations

from eroica.bus import BusProducer, cloudevent_headers
from eroica.bus.producer import wait_delivered
from eroica.consumers.verdicts import read_verdicts
from eroica.schemas.codec import encode
from eroica.schemas.errors import UsageError
from eroica.schemas.ids import stable_id
from eroica.schemas.memory import Feedback
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import message_key
from eroica.schemas.verdicts import Verdict

MAX_COMMENT = 2_000
MAX_AUTHOR = 100


def find_verdict(settings: KafkaSettings, verdict_id: str) -> Verdict:
    """The verdict of that id on the topic.

    :raises UsageError: there is none.
    :raises BrokerError: broker unreachable or topic missing.
    """
    for item in read_verdicts(settings):
        if item is not None and item.verdict.verdict_id == verdict_id:
            return item.verdict
    raise UsageError("no verdict has this id", where=verdict_id[:100], do="list them with: eroica verdicts")


def plan_feedback(
    verdict: Verdict, *, helped: bool, now_us: int, remedy: str | None = None, comment: str = "", author: str = ""
) -> Feedback:
    """The vote. Pure.

    :param remedy: id of a remedy that *verdict* offers; without it the vote is on the advice of its first cause as a whole.
    :raises UsageError: it offers no such remedy, or nothing at all; a text that is too long.
    """
    if not verdict.causes:
        raise UsageError("this verdict gave no advice: nobody was found at fault", where=verdict.verdict_id)
    offered = {r.id: cause for cause in reversed(verdict.causes) for r in reversed(cause.action.remedies)}
    if remedy is not None and remedy not in offered:
        known = f"it offered {', '.join(reversed(offered))}" if offered else "leave --remedy out"
        raise UsageError(f"this verdict did not offer the remedy {remedy[:64]!r}", where=verdict.verdict_id, do=known)
    for name, text, limit in (("note", comment, MAX_COMMENT), ("author", author, MAX_AUTHOR)):
        if len(text) > limit:
            raise UsageError(f"{name} has {len(text)} characters", do=f"use at most {limit}")
    cause = offered[remedy] if remedy is not None else verdict.causes[0]
    return Feedback(
        job=verdict.job,
        verdict_id=verdict.verdict_id,
        helped=helped,
        remedy=remedy or "",
        fault=cause.action.playbook or cause.class_,
        author=author,
        comment=comment,
        event_time_us=now_us,
    )


def send_feedback(settings: KafkaSettings, vote: Feedback) -> None:
    """Put *vote* on ``feedback`` and return when the broker has it.

    :raises BrokerError: it could not be delivered.
    """
    headers = cloudevent_headers(
        event_type="io.eroica.feedback",
        source="/cli/verdicts",
        event_id=stable_id("vote", vote.verdict_id, vote.remedy, vote.author, vote.event_time_us),
        time_ms=vote.event_time_us // 1_000,
    )
    with BusProducer(settings, "eroica-feedback") as producer:
        producer.send("feedback", key=message_key(vote.job), value=encode(vote), headers=headers)
        wait_delivered(producer, settings.connect_timeout_ms / 1_000 + 10)
