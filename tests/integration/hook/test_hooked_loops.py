"""The hook in real training loops of many shapes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eroica.producers.hook import wire

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(420),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

AWAITED = {"marked", "steps_only", "paced", "user_profiler", "user_profiler_later", "in_thread", "broken_write"}
"""Loops that must have the command before its step; where hello itself is broken none would come."""
BROKEN = ["automaton", "sender", "message", "receive", "registry", "identity", "start", "stop", "write", "exit"]
NAMES = [
    "plain",
    "everything",
    "amp",
    "marked",
    "steps_only",
    "compiled",
    "forked_workers",
    "spawned_workers",
    "paced.profiled",
    "paced.timed",
    "paced.late",
    "paced.refused",
    "paced.nowhere",
    "paced.never",
    "user_profiler",
    "user_profiler_later",
    "in_thread",
    *(f"broken_{part}" for part in BROKEN),
]


@pytest.fixture(scope="module")
def agents(short_root: Path, helpers: Any) -> Iterator[dict[str, Any]]:
    changes: dict[str, dict[str, Any]] = {
        "paced.timed": {"steps": 0, "duration_ms": 100, "with_stack": False},
        "paced.late": {"start_step": 2},
        "paced.refused": {"steps": 0},
        "paced.nowhere": {"directory": "/nowhere/at/all"},
        "paced.never": {"start_step": 10_000},
        "marked": {"start_step": 110},
        "user_profiler": {"start_step": 0},
        "user_profiler_later": {"steps": 1000},
    }
    made = {
        name: helpers.FakeAgent(
            short_root / name,
            helpers.profile_command(short_root / name, **changes.get(name, {})),
            awaited=name.partition(".")[0] in AWAITED,
        )
        for name in NAMES
    }
    try:
        ran = helpers.run_loops(short_root, NAMES)
    finally:
        for agent in made.values():
            agent.close()
    assert ran.returncode == 0, ran.stderr
    yield made


@pytest.fixture(scope="module")
def reference(agents: dict[str, Any]) -> dict[str, Any]:
    return dict(agents["paced.never"].result())


COUNTS = [
    ("plain", 120, 110, 2),
    ("everything", 60, 50, 6),
    ("amp", 60, 50, 2),
    ("steps_only", 60, 50, 1),
    ("forked_workers", 100, 90, 2),
    ("spawned_workers", 25, 15, 2),
]


@pytest.mark.parametrize(("name", "steps", "iterations", "signature"), COUNTS, ids=[row[0] for row in COUNTS])
def test_every_iteration_after_the_tenth_is_told(
    agents: dict[str, Any], name: str, steps: int, iterations: int, signature: int
) -> None:
    agent = agents[name]
    told = agent.codes(wire.ITERATION)
    assert [event.step for event in told] == list(range(steps - iterations, steps))
    assert all(event.duration_ns > 0 for event in told)
    status = agent.result()["status"]
    assert (status["step"], status["signature"], status["failures"]) == (steps, signature, 0)
    assert agent.strange == 0


def test_one_process_speaks_and_says_goodbye(agents: dict[str, Any]) -> None:
    for name in ("forked_workers", "spawned_workers"):
        agent = agents[name]
        assert len({event.pid for event in agent.events} | {message["pid"] for message in agent.messages}) == 1
        assert len(agent.of("hello")) == 1
        assert agent.events[-1].code == wire.GOODBYE
        assert not list(agent.directory.glob("hook-*.sock"))


def test_hello_says_who_it_is(agents: dict[str, Any]) -> None:
    (hello,) = agents["plain"].of("hello")
    assert (hello["job"], hello["rank"], hello["world_size"], hello["launcher"]) == ("loops", 0, 1, "none")
    assert hello["hook"] == "dataloader+optimizer"
    assert hello["socket"].startswith(str(agents["plain"].directory))


def test_a_skipped_amp_step_is_still_an_iteration(agents: dict[str, Any]) -> None:
    assert agents["amp"].result()["ran"] == 48


def test_a_compiled_optimizer_step_compiles_and_marks_make_its_iterations(agents: dict[str, Any]) -> None:
    agent = agents["compiled"]
    assert len(agent.codes(wire.ITERATION)) == 24
    assert agent.of("hello")[0]["hook"] == "mark_step"


def test_marks_carry_the_programs_own_numbers(agents: dict[str, Any]) -> None:
    agent = agents["marked"]
    told = agent.codes(wire.ITERATION)
    assert [event.step for event in told] == list(range(101, 131))
    assert all(event.duration_ns > 5_000_000 for event in told)


PROFILED = [
    ("paced.profiled", 40, 42, 0),
    ("paced.late", None, None, None),
    ("marked", 110, 112, 0),
    ("steps_only", 40, 42, 0),
]


@pytest.mark.parametrize(("name", "first", "last", "late"), PROFILED, ids=[row[0] for row in PROFILED])
def test_the_asked_for_steps_are_profiled(
    agents: dict[str, Any], name: str, first: int | None, last: int | None, late: int | None
) -> None:
    agent = agents[name]
    (profiled,) = agent.of("profiled")
    assert profiled["error"] == ""
    steps = range(profiled["first_step"], profiled["last_step"] + 1)
    assert len(steps) == 3
    if first is None:
        assert profiled["late_by"] == profiled["first_step"] - 2 > 0
    else:
        assert (profiled["first_step"], profiled["last_step"], profiled["late_by"]) == (first, last, late)
    trace = json.loads(Path(profiled["path"]).read_text())
    marks = sorted(e["name"] for e in trace["traceEvents"] if str(e.get("name")).startswith("ProfilerStep#"))
    assert marks == sorted(f"ProfilerStep#{step}" for step in steps)
    assert any(e.get("cat") == "python_function" for e in trace["traceEvents"])
    assert 0 < profiled["blocked_ms"] < 20_000
    assert profiled["started_wall_ns"] < profiled["ended_wall_ns"]
    side = json.loads(Path(profiled["path"]).with_suffix(".side.json").read_text())
    assert [row["step"] for row in side["steps"]] == list(steps)
    assert side["pauses"][0]["kind"] == "gc"
    assert not list(agent.directory.glob(".*"))


def test_receive_waits_of_the_profiled_steps_lie_beside_the_trace(agents: dict[str, Any]) -> None:
    """Of 31 reports those of the profile count; a function is asked in the profile only, and its first answer is dropped."""
    agent = agents["marked"]
    (profiled,) = agent.of("profiled")
    side = json.loads(Path(profiled["path"]).with_suffix(".side.json").read_text())
    dispatch, combine = side["receive_waits"]
    assert dispatch == {"group": "dispatch", "ranks": [0, 1, 2], "count": 3, "total_us": [3, 6, 33], "max_us": [1, 2, 12]}
    assert combine == {"group": "combine", "ranks": [0, 1, 2], "count": 2, "total_us": [50, 40, 60], "max_us": [30, 20, 30]}
    assert agent.result()["told"] == 3


def test_a_profile_for_a_time_ends_at_the_next_boundary(agents: dict[str, Any]) -> None:
    (profiled,) = agents["paced.timed"].of("profiled")
    side = json.loads(Path(profiled["path"]).with_suffix(".side.json").read_text())
    lengths = [row["duration_ns"] for row in side["steps"]]
    # The time runs from boundary to boundary, and what lies between the iterations counts too.
    assert profiled["ended_wall_ns"] - profiled["started_wall_ns"] >= 100_000_000 > sum(lengths[:-1])


ERRORS = [
    ("paced.refused", "exactly one"),
    ("paced.nowhere", "/nowhere/at/all"),
    ("user_profiler", "own torch.profiler is running"),
    ("user_profiler_later", "started its own torch.profiler"),
    ("in_thread", "main thread"),
    ("broken_write", "trace not written"),
]


@pytest.mark.parametrize(("name", "says"), ERRORS, ids=[row[0] for row in ERRORS])
def test_a_profile_that_cannot_be_says_why(agents: dict[str, Any], name: str, says: str) -> None:
    (profiled,) = agents[name].of("profiled")
    assert profiled["path"] == ""
    assert says in profiled["error"]
    assert not list(agents[name].directory.glob("*rank*"))


def test_the_programs_own_profiler_is_not_disturbed(agents: dict[str, Any]) -> None:
    for name in ("user_profiler", "user_profiler_later"):
        result = agents[name].result()
        assert result["own"] > 0
        assert result["status"]["failures"] == 0


def test_a_request_whose_step_never_comes_is_dropped_with_the_job(agents: dict[str, Any]) -> None:
    agent = agents["paced.never"]
    assert agent.of("profiled") == []
    assert agent.events[-1].code == wire.GOODBYE


@pytest.mark.parametrize("part", BROKEN)
def test_a_failure_inside_reaches_no_training(agents: dict[str, Any], reference: dict[str, Any], part: str) -> None:
    result = agents[f"broken_{part}"].result()
    assert result["losses"] == reference["losses"]
    assert result["weights"] == reference["weights"]
    if part not in ("write", "exit"):
        assert result["status"]["failures"] > 0


def test_profiling_changes_no_result(agents: dict[str, Any], reference: dict[str, Any]) -> None:
    assert agents["paced.profiled"].result()["losses"] == reference["losses"]
