"""The published JSON Schemas are those of the code, and messages keep to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from eroica.schemas.codec import encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import UsageError
from eroica.schemas.jsonschema import SETTINGS, json_schema, message_kinds, schema_names, schema_text, write_schemas
from eroica.schemas.summaries import Expectation, Identity, SummaryError

pytestmark = pytest.mark.unit

PUBLISHED = Path(__file__).resolve().parents[3] / "schemas" / "json"
REQUEST = ProfileRequest(
    request="r",
    job="j",
    run_id="1",
    reason="manual",
    steps=5,
    world_size=2,
    classes={"all": "0-1"},
    issued_at_us=1,
    deadline_ms=1,
)
WHO = Identity(job="j", run_id="1", request="r", cls="all", rank=0, world_size=2, host="h")


@pytest.mark.parametrize("name", [*message_kinds(), SETTINGS])
def test_the_published_file_is_what_the_code_says(name: str) -> None:
    assert (PUBLISHED / f"{name}.json").read_text(encoding="utf-8") == schema_text(name), "write them again: make schemas"


def test_nothing_else_is_published() -> None:
    assert {path.stem for path in PUBLISHED.glob("*")} == {*message_kinds(), SETTINGS}


@pytest.mark.parametrize("name", schema_names())
def test_each_is_a_valid_schema_of_its_dialect(name: str) -> None:
    Draft202012Validator.check_schema(json_schema(name))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("profile_request", REQUEST),
        ("control", REQUEST),
        ("summary_error", SummaryError(who=WHO, error="x", ended_at_us=1)),
        ("summaries", SummaryError(who=WHO, error="x", ended_at_us=1)),
        ("summaries", Expectation(cls="all", ranks="0-1", classes=["all"], request=REQUEST)),
    ],
)
def test_real_messages_keep_to_it(name: str, message: ProfileRequest | SummaryError | Expectation) -> None:
    validator = Draft202012Validator(json_schema(name))
    good = json.loads(encode(message))
    validator.validate(good)
    assert not validator.is_valid(good | {"kind": "nonsense"})


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="verdict"):
        json_schema("nope")


def test_writing_twice_changes_nothing(tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in write_schemas(tmp_path)}
    assert {path.name: path.read_bytes() for path in write_schemas(tmp_path)} == first
