from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.schemas.codec import decode, decode_as, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import MessageTooLarge, SchemaError, UnknownMajorVersion
from eroica.schemas.iterations import IterationBatch, RankIterations
from eroica.schemas.jsonschema import json_schema, message_kinds
from eroica.schemas.memory import Feedback
from eroica.schemas.summaries import CloseClass, FunctionPattern, Identity, Pause, StepRecord, Summary
from eroica.schemas.topics import TOPICS

pytestmark = pytest.mark.unit

REQUEST = ProfileRequest(
    request="req-1", job="j", run_id="r", reason="manual", steps=3, world_size=4, classes={"all": "0-3"},
    issued_at_us=1, deadline_ms=1_000,
)  # fmt: skip
BATCH = IterationBatch(
    job="j", run_id="r", host="h", shard=0, ranks_per_shard=1024, world_size=4, seq=1, sent_at_us=5,
    ranks=[RankIterations(rank=0, first_step=3, duration_us=[10, 11], ended_at_us=4)],
)  # fmt: skip
WHO = Identity(job="j", run_id="r", request="req-1", cls="all", rank=0, world_size=4, host="h")
SUMMARY = Summary(
    who=WHO, first_step=1, last_step=3, window_us=3.5, ended_at_us=9,
    functions=[FunctionPattern(name="f", category="python", beta=0.25)],
)  # fmt: skip
STEP_BACKWARDS = StepRecord(step=1, start_us=-3.0, duration_us=5.0, phases_us={"forward": -1.0})
STEP_OF_AGES = StepRecord(step=1, start_us=0.0, duration_us=1e300)
CLOSE = CloseClass(job="j", request="req-1", cls="all", closed_by="idle")


@pytest.mark.parametrize(
    ("topic", "message"), [("control", REQUEST), ("iterations", BATCH), ("summaries", SUMMARY), ("summaries", CLOSE)]
)
def test_a_message_survives_the_wire(topic: str, message: object) -> None:
    raw = encode(message)  # type: ignore[arg-type]
    assert decode(topic, raw) == message
    assert encode(decode(topic, raw)) == raw


def test_numpy_columns_are_written_straight() -> None:
    ranks = [RankIterations(rank=0, duration_us=np.array([7, 8], dtype=np.int64))]  # type: ignore[arg-type]
    batch = IterationBatch(
        job="j", run_id="r", host="h", shard=0, ranks_per_shard=1, world_size=1, seq=0, sent_at_us=0, ranks=ranks
    )
    assert decode_as(IterationBatch, encode(batch)).ranks[0].duration_us == [7, 8]


def test_unknown_fields_are_ignored_within_a_major_version() -> None:
    raw = encode(CLOSE).replace(b'"schema_version":"1.0"', b'"schema_version":"1.7","news":[1,{"a":2}]')
    assert decode_as(CloseClass, raw).cls == "all"


@pytest.mark.parametrize(
    ("raw", "error", "says"),
    [
        (None, SchemaError, "tombstone"),
        (b"", SchemaError, "truncated"),
        (b"\xff\xfe", SchemaError, "malformed"),
        (b"[" * 200_000, SchemaError, "expected|Expected"),
        (b'{"kind":"surprise"}', SchemaError, "surprise"),
        (encode(REQUEST).replace(b'"world_size":4', b'"world_size":"four"'), SchemaError, r"\$\.world_size"),
        (encode(REQUEST).replace(b'"schema_version":"1.0"', b'"schema_version":"2.0"'), UnknownMajorVersion, "2.0"),
        (b'{"schema_version":"3.1","kind":"profile_request","everything":"else"}', UnknownMajorVersion, "3.1"),
        (b'{"schema_version":"newest","kind":"profile_request"}', SchemaError, "newest"),
        (b'{"schema_version":"0.9","kind":"profile_request"}', SchemaError, "0.9"),
        (encode(msgspec.structs.replace(REQUEST, request="r" * 70_000)), SchemaError, "a name of 70000 characters"),
        (encode(msgspec.structs.replace(REQUEST, job="j" * 4_001)), SchemaError, "in `job`"),
        (b" " * (TOPICS["control"].max_message_bytes + 1), MessageTooLarge, "over the limit"),
    ],
)
def test_what_cannot_be_read_names_the_place_and_the_fault(raw: bytes | None, error: type[SchemaError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        decode("control", raw, where="control/3/17")
    assert "control/3/17" in str(caught.value)
    assert type(caught.value) is error, "only a newer version holds a service up"


@given(st.binary(max_size=300))
def test_any_bytes_give_a_schema_error_and_nothing_else(raw: bytes) -> None:
    for topic in TOPICS:
        with pytest.raises(SchemaError):
            decode(topic, raw)


@given(st.data())
def test_any_damage_to_a_message_is_a_message_or_a_schema_error(data: st.DataObject) -> None:
    raw = bytearray(encode(SUMMARY))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode("summaries", bytes(raw))
    except SchemaError:
        return


def test_a_message_over_its_limit_is_not_written() -> None:
    with pytest.raises(MessageTooLarge, match="feedback"):
        encode(Feedback(job="j", verdict_id="v", helped=True, comment="x" * 70_000, event_time_us=0))


def test_another_kind_of_the_topic_is_named() -> None:
    with pytest.raises(SchemaError, match="expected Summary, found CloseClass"):
        decode_as(Summary, encode(CLOSE))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30, 10**400])
def test_a_number_that_could_not_be_written_again_is_not_read(number: int) -> None:
    with pytest.raises(SchemaError, match=r"issued_at_us"):
        decode("control", encode(REQUEST).replace(b'"issued_at_us":1', b'"issued_at_us":%d' % number))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_the_largest_numbers_survive_the_wire(number: int) -> None:
    raw = encode(REQUEST).replace(b'"issued_at_us":1', b'"issued_at_us":%d' % number)
    assert encode(decode("control", raw)) == raw


@pytest.mark.parametrize("kind", sorted(message_kinds()))
def test_every_whole_number_of_every_message_has_bounds(kind: str) -> None:
    def unbounded(schema: object, path: str) -> list[str]:
        if isinstance(schema, list):
            return [p for i, part in enumerate(schema) for p in unbounded(part, f"{path}/{i}")]
        if not isinstance(schema, dict):
            return []
        own = [path] if schema.get("type") == "integer" and not {"minimum", "maximum"} <= schema.keys() else []
        return own + [p for key, part in schema.items() for p in unbounded(part, f"{path}/{key}")]

    assert unbounded(json_schema(kind), "") == []


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"window_us": -0.5}, r"\$\.window_us"),
        ({"steps": [STEP_BACKWARDS]}, r"\$\.steps\[0\]\.phases_us"),
        ({"steps": [STEP_OF_AGES]}, r"\$\.steps\[0\]\.duration_us"),
        ({"pauses": [Pause(what="gc", count=1, total_us=-1.0, max_us=1.0)]}, r"\$\.pauses\[0\]\.total_us"),
    ],
)
def test_times_that_nobody_measured_are_not_read(changes: dict[str, Any], where: str) -> None:
    """A rank with a negative phase was accused of being slow."""
    with pytest.raises(SchemaError, match=where):
        decode("summaries", encode(msgspec.structs.replace(SUMMARY, **changes)))
