"""Dead letters and their limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.bus import DeadLetterLimit, Incoming, dead_letter
from eroica.bus.dlq import KEPT_HEADER_BYTES, REASON_BYTES
from eroica.schemas.errors import BrokerError, SchemaError

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
        ("r" * 49, False),
        ("r" * 50, True),
        ("ar" * 200, False),
        ("a" * 200 + "r" * 100, False),
        ("a" * 200 + "r" * 101, True),
        ("r" * 40 + "a" * 200 + "r" * 90, False),
    ],
)
def test_mass_failure_stops_and_single_bad_senders_do_not(outcomes: str, stops: bool) -> None:
    limit = DeadLetterLimit()

    def play() -> None:
        for outcome in outcomes:
            if outcome == "a":
                limit.accept()
            else:
                limit.refuse("topic[0]@1")

    if stops:
        with pytest.raises(BrokerError, match="could not be read"):
            play()
    else:
        play()
