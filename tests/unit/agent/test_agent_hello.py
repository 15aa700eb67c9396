"""What a process may say of itself."""

from __future__ import annotations

from typing import Any

import pytest
from agent_unit_kit import hello, hello_message

from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hello import parse_hello
from eroica.producers.agent.hoststate import HostState
from eroica.schemas.codec import decode, encode
from eroica.schemas.errors import InvalidInput

pytestmark = pytest.mark.unit


def test_groups_are_told_as_ranges_whether_they_came_as_lists_or_ranges() -> None:
    groups = [{"name": "0", "desc": "default_pg", "ranks": [3, 1, 0, 2]}, {"name": "1", "desc": "mesh_tp", "ranks": "0-1"}]
    assert [(g.kind, g.ranks) for g in hello(groups=groups).process_groups()] == [("default_pg", "0-3"), ("mesh_tp", "0-1")]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"v": 2}, "wire version"),
        ({"v": None}, "wire version"),
        ({"rank": -1}, "rank"),
        ({"rank": "0"}, "rank"),
        ({"rank": 4}, "outside of a world of 4"),
        ({"world_size": 10**9}, "world_size"),
        ({"job": ""}, "job"),
        ({"job": "x" * 257}, "job"),
        ({"pid": True}, "pid"),
        ({"rank": float("nan")}, "understood"),
        ({"world_size": float("inf")}, "understood"),
        ({"coords": {str(n): 0 for n in range(17)}}, "coords"),
        ({"groups": [{"name": "0", "ranks": [2**40]}]}, "ranks"),
        ({"groups": [{"name": "0", "ranks": "0-99999999999"}]}, "ranks"),
        ({"groups": [{"name": "0", "ranks": "5-1"}]}, "ranks"),
        ({"groups": [{"name": str(n), "ranks": "0"} for n in range(513)]}, "groups"),
    ],
)
def test_a_hello_that_cannot_be_is_refused_and_says_what_is_wrong(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidInput, match=names):
        parse_hello({**hello_message(), **fields})


def test_a_missing_field_is_refused() -> None:
    message = hello_message()
    del message["run_id"]
    with pytest.raises(InvalidInput, match="run_id"):
        parse_hello(message)


def test_names_in_no_encoding_can_be_sent_on() -> None:
    found = parse_hello(hello_message(job="caf\udce9", run_id="\ud800", groups=[{"name": "\udfff", "ranks": [0]}]))
    state = HostState("h", 1_024, Counters())
    state.hello(found, 1_000_000, 1)
    [batch] = state.batches(2_000_000, 2)
    assert decode("iterations", encode(batch.message)) == batch.message
    assert found.job == "caf?" and found.process_groups()[0].name == "?"
