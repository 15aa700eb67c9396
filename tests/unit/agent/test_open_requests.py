"""A request is served for the ranks that are here, also for those that appear after it; each once, also by a successor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_unit_kit import MONO_NS, NOW_US, hello, iteration, request

from eroica.producers.agent import openrequests
from eroica.producers.agent.answered import KEEP_US, Answered
from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hoststate import HostState
from eroica.producers.agent.launches import SETTLE_NS
from eroica.producers.agent.openrequests import MAX_OPEN, OpenRequests
from eroica.producers.agent.requests import closed_at_us, past_at_us
from eroica.producers.hook.command import ProfileCommand
from eroica.producers.hook.said import REMEMBERED, Said
from eroica.schemas.errors import SchemaError

pytestmark = pytest.mark.unit
NOBODY: frozenset[tuple[str, int]] = frozenset()


def state(*ranks: int, steps: int = 3) -> HostState:
    made = HostState("h", 1_024, Counters())
    for rank in ranks:
        made.hello(hello(100 + rank, rank), NOW_US, MONO_NS)
        for step in range(steps):
            made.event(iteration(100 + rank, step))
    return made


def ranks(asks: list[Any]) -> list[int]:
    return [ask.worker.hello.rank for ask in asks]


def test_a_rank_that_appears_after_the_request_is_asked_once() -> None:
    open_ = OpenRequests()
    open_.add(request())
    runs = state(0, 2).runs
    assert ranks(open_.due({}, NOBODY, NOW_US, MONO_NS)) == []
    assert ranks(open_.due(runs, NOBODY, NOW_US, MONO_NS)) == [0, 2]
    assert ranks(open_.due(runs, NOBODY, NOW_US, MONO_NS)) == []
    runs["job", "run-1"].workers |= state(1).runs["job", "run-1"].workers
    assert ranks(open_.due(runs, NOBODY, NOW_US, MONO_NS)) == [1]


@pytest.mark.parametrize(
    ("fields", "steps", "after_ns", "asked"),
    [
        ({}, 0, 0, []),
        ({}, 1, 0, [0]),
        ({}, 0, SETTLE_NS, [0]),
        ({"mode": "stacks", "steps": 0}, 0, 0, [0]),
        ({"classes": {"all": "1-3"}}, 1, 0, []),
        ({"run_id": "other"}, 1, 0, []),
    ],
)
def test_who_is_asked_when(fields: dict[str, Any], steps: int, after_ns: int, asked: list[int]) -> None:
    open_ = OpenRequests()
    open_.add(request(**fields))
    assert ranks(open_.due(state(0, steps=steps).runs, NOBODY, NOW_US, MONO_NS + after_ns)) == asked


def test_whoever_appears_when_nobody_waits_any_more_is_not_asked() -> None:
    one, runs = request(), state(0).runs
    for late, only, asked in ((0, None, [0]), (1, None, []), (1, one.request, [0])):
        open_ = OpenRequests()
        open_.add(one)
        assert ranks(open_.due(runs, NOBODY, closed_at_us(one) + late, MONO_NS, only)) == asked
    open_.due({}, NOBODY, past_at_us(one) + 1, MONO_NS)
    assert open_.ids() == set()


def test_open_requests_take_bounded_memory_and_impossible_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = OpenRequests()
    for number in range(MAX_OPEN + 5):
        open_.add(request(request=f"r{number}"))
    assert len(open_.ids()) == MAX_OPEN and "r4" not in open_.ids()
    monkeypatch.setattr(openrequests, "MAX_TEXT", 7_000)
    for name in "ab":
        open_.add(request(request=name, classes={"x" * 3_900: "0-3"}))
    assert open_.ids() == {"b"}
    with pytest.raises(SchemaError):
        open_.add(request(classes={"all": "0-9"}))


def test_a_successor_knows_who_has_answered(tmp_path: Path) -> None:
    path = tmp_path / "answered"
    first = Answered(path)
    first.add("req 1\nwith a line", 3, NOW_US)
    first.add("req-2", 0, NOW_US + 5)
    with path.open("a") as file:
        file.write("no line of ours\n99 r-x")  # cut off by a sudden end
    successor = Answered(path)
    assert ("req 1\nwith a line", 3) in successor and ("req-2", 0) in successor
    assert ("req-2", 1) not in successor
    successor.forget(NOW_US + KEEP_US)
    third = Answered(path)
    assert ("req-2", 0) in third and ("req 1\nwith a line", 3) not in third
    assert len(path.read_text().splitlines()) == 1
    open_ = OpenRequests()
    open_.add(request(request="req-2"))
    assert ranks(open_.due(state(0, 1).runs, third, NOW_US, MONO_NS)) == [1]


def test_a_file_that_cannot_be_used_does_no_harm(tmp_path: Path) -> None:
    absent = Answered(tmp_path / "absent" / "answered")
    absent.add("r", 0, NOW_US)
    absent.forget(NOW_US + KEEP_US)
    (tmp_path / "binary").write_bytes(b"\xff\x00 \n" * 100)
    assert ("r", 0) not in Answered(tmp_path / "binary")


def test_the_hook_answers_again_whoever_asks_again() -> None:
    heard: list[dict[str, Any]] = []
    said = Said(heard.append)
    command = ProfileCommand("r", 0, 3, 0, 60_000, False, "/x")
    assert not said.before(command)
    assert said.before(command) and heard == []
    said.say(command, {"path": "/x/rank0.json"})
    assert said.before(command)
    assert heard == [{"path": "/x/rank0.json"}] * 2
    assert not said.before(command._replace(attempt=2))
    for number in range(REMEMBERED):
        said.before(command._replace(request=f"r{number}"))
    assert not said.before(command), "forgotten"
