"""Dead letters and their limit."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.bus import DeadLetterLimit, Incoming, dead_letter
from eroica.bus.dlq import KEPT_HEADER_BYTES, LINES_WITHIN_S, MAX_LINES, REASON_BYTES, RefusalLog
from eroica.schemas.errors import BrokerError, SchemaError, UnknownMajorVersion

pytestmark = pytest.mark.unit

LIMIT = 64_000


def message(**changes: object) -> Incoming:
    fields: dict[str, object] = {
        "topic": "eroica.groups",
        "partition": 3,
        "offset": 17,
        "key": b"job/r1",
        "value": b"{",
        "headers": (("ce_id", b"1"),),
        "timestamp_ms": 5,
    }
    return Incoming(**(fields | changes))  # type: ignore[arg-type]


def test_the_headers_are_those_of_kafka_connect() -> None:
    letter = dead_letter(message(), SchemaError("no JSON", where="x"), stage="localize", limit_bytes=LIMIT)
    assert letter.topic == "eroica.groups.dlq"
    assert (letter.key, letter.value) == (b"job/r1", b"{")
    assert dict(letter.headers) == {
        "__connect.errors.topic": b"eroica.groups",
        "__connect.errors.partition": b"3",
        "__connect.errors.offset": b"17",
        "__connect.errors.stage": b"localize",
        "__connect.errors.exception.class.name": b"SchemaError",
        "__connect.errors.exception.message": b"x: no JSON",
        "eroica.timestamp_ms": b"5",
        "ce_id": b"1",
    }


@given(
    value=st.one_of(st.none(), st.integers(0, 3 * LIMIT).map(bytes)),
    key=st.one_of(st.none(), st.integers(0, 10_000).map(bytes)),
    headers=st.lists(st.tuples(st.text(max_size=20), st.integers(0, 20_000).map(bytes)), max_size=8).map(tuple),
    reason=st.text(max_size=3_000),
)
def test_a_dead_letter_always_fits_and_says_what_was_cut(
    value: bytes | None, key: bytes | None, headers: tuple[tuple[str, bytes], ...], reason: str
) -> None:
    letter = dead_letter(message(value=value, key=key, headers=headers), SchemaError(reason), stage="group", limit_bytes=LIMIT)
    size = len(letter.value or b"") + len(letter.key or b"") + sum(len(n.encode()) + len(v) for n, v in letter.headers)
    assert size <= LIMIT
    cut = [v for n, v in letter.headers if n == "eroica.truncated"]
    assert (b"value" in cut) == (letter.value != value)
    assert (b"key" in cut) == (letter.key != key)
    if letter.value != value:
        assert dict(letter.headers)["eroica.value_bytes"] == str(len(value or b"")).encode()
        assert (value or b"").startswith(letter.value or b"")
    assert len(dict(letter.headers)["__connect.errors.exception.message"]) <= REASON_BYTES


def test_a_message_cannot_forge_our_headers_and_large_ones_are_dropped_and_counted() -> None:
    forged = (
        ("__connect.errors.topic", b"other"),
        ("eroica.truncated", b"value"),
        ("a", b"1"),
        ("big", bytes(KEPT_HEADER_BYTES)),
        ("b", b"2"),
    )
    headers = dead_letter(message(headers=forged), SchemaError("x"), stage="s", limit_bytes=LIMIT).headers
    assert [v for n, v in headers if n == "__connect.errors.topic"] == [b"eroica.groups"]
    assert [n for n, _ in headers if n in ("a", "big", "b", "eroica.truncated")] == ["a"]
    assert int(dict(headers)["eroica.headers_dropped"]) >= 2


def test_a_dead_letter_that_is_refused_again_does_not_make_a_third_topic() -> None:
    assert (
        dead_letter(message(topic="eroica.groups.dlq"), SchemaError("x"), stage="s", limit_bytes=LIMIT).topic
        == "eroica.groups.dlq"
    )


@pytest.mark.parametrize(
    ("outcomes", "stops"),
    [
        ("n" * 499, False),
        ("n" * 500, True),
        ("an" * 2_000, False),
        (("a" + "n" * 1_500) * 3, False),
        ("rn" * 2_000, False),
        ("rnn" * 200, True),
        ("a" + "n" * 1_999, False),
        ("a" + "n" * 2_000, True),
        ("r" * 5_000, False),
        ("n" * 499 + "r" * 5_000, False),
    ],
)
def test_an_outgrown_service_stops_and_one_that_broken_senders_flood_does_not(outcomes: str, stops: bool) -> None:
    """``a``: read, ``n``: of a newer major version, ``r``: refused for another reason."""
    limit = DeadLetterLimit()
    errors = {"n": UnknownMajorVersion("newer"), "r": SchemaError("no JSON")}

    def play() -> None:
        for outcome in outcomes:
            if outcome == "a":
                limit.accept()
            else:
                limit.refuse("topic[0]@1", errors[outcome])

    if stops:
        with pytest.raises(BrokerError, match="newer major version"):
            play()
    else:
        play()


def test_a_flood_of_refused_messages_is_some_lines_and_a_count(own_log: pytest.LogCaptureFixture) -> None:
    now = 0.0
    said = RefusalLog(logging.getLogger("refusals"), clock=lambda: now)
    for number in range(1_000):
        said.say(f"topic[0]@{number}", SchemaError("no JSON"))
    lines = [record.getMessage() for record in own_log.records]
    assert len(lines) == MAX_LINES + 1 and "topic[0]@0 goes to the dead letters: no JSON" in lines
    now = LINES_WITHIN_S
    said.say("topic[0]@1000", ZeroDivisionError("ours"))
    lines = [record.getMessage() for record in own_log.records[MAX_LINES + 1 :]]
    assert lines == [
        f"{1_000 - MAX_LINES} more went to the dead letters, 1001 so far",
        "topic[0]@1000 goes to the dead letters: ours",
    ]
    assert own_log.records[-1].exc_info is not None and said.total == 1_001
