"""The hook in training loops as people really write them, and profiles that do not go as asked."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eroica.producers.hook import wire
from eroica.producers.hook.launch import environment

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(420),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
HERE = Path(__file__).parent

# Loop, steps it makes, steps that make one iteration, length of the signature in events.
LOOPS = [
    ("generator_loader", 60, 2, 5),
    ("plain_generator", 60, 1, 1),
    ("zipped", 60, 1, 4),
    ("closure", 40, 1, 2),
    ("closure_reads", 40, 1, 3),
    ("fused", 40, 1, 3),
    ("caught", 66, 1, 2),
    ("caught_in_loader", 80, 1, 2),
    ("evaluated", 60, 1, 2),
    ("evaluated_with_gradients", 60, 1, 2),
    ("manual", 60, 1, 2),
    ("remade", 120, 1, 2),
    ("iterable", 120, 1, 2),
    ("hard_exit", 60, 1, 2),
]
COMMANDS: dict[str, dict[str, Any]] = {
    "ends_in_profile": {"start_step": 50, "steps": 100},
    "hard_exit": {"start_step": 50, "steps": 100},
    "expired": {"start_step": 10_000, "expires_ms": 300},
    "call_heavy": {"start_step": 40, "steps": 200},
    "large_trace": {"start_step": 40, "max_trace_bytes": 1_000},
}
NAMES = [*(row[0] for row in LOOPS), "compiled_step", "threaded", *(name for name in COMMANDS if name != "hard_exit")]


@pytest.fixture(scope="module")
def agents(short_root: Path, helpers: Any) -> Iterator[dict[str, Any]]:
    made = {}
    for name in NAMES:
        folder = short_root / name
        command = helpers.profile_command(folder, **COMMANDS[name]) if name in COMMANDS else None
        made[name] = helpers.FakeAgent(folder, command, awaited=command is not None)
    made["expired"].follow = helpers.profile_command(short_root / "expired", request="req-2", start_step=0)
    try:
        ran = helpers.run_loops(short_root, NAMES, HERE / "odd_loops.py")
    finally:
        for agent in made.values():
            agent.close()
    assert ran.returncode == 0, ran.stderr
    yield made


@pytest.mark.parametrize(("name", "steps", "together", "signature"), LOOPS, ids=[row[0] for row in LOOPS])
def test_the_iterations_of_an_odd_loop_are_told(
    agents: dict[str, Any], name: str, steps: int, together: int, signature: int
) -> None:
    agent = agents[name]
    told = [event.step for event in agent.codes(wire.ITERATION)]
    learned = 10 * together
    assert len(told) >= (steps - learned) // together - 1
    assert told == list(range(told[0], told[0] + len(told)))
    status = agent.result()["status"]
    assert (status["signature"], status["failures"], status["relearned"], status["dropped"]) == (signature, 0, 0, 0)
    assert status["channel"] == "ring"
    assert agent.strange == 0


def test_a_step_that_only_the_compiler_sees_tells_nothing_and_hurts_nothing(agents: dict[str, Any]) -> None:
    result = agents["compiled_step"].result()
    assert len(result["losses"]) == 40
    assert (result["status"]["step"], result["status"]["failures"]) == (0, 0)
    assert agents["compiled_step"].events == []


def test_a_loop_in_a_daemon_thread_is_followed_and_the_end_is_told(agents: dict[str, Any]) -> None:
    agent = agents["threaded"]
    told = [event.step for event in agent.codes(wire.ITERATION)]
    assert told[:50] == list(range(10, 60))
    assert agent.result()["status"]["failures"] == 0


def test_a_process_that_ends_without_a_word_has_told_all_it_did(agents: dict[str, Any]) -> None:
    agent = agents["hard_exit"]
    assert agent.of("profiled") == []
    assert not agent.codes(wire.GOODBYE)
    assert agent.codes(wire.ITERATION)[-1].step == 59


def test_a_job_that_ends_in_the_middle_of_a_profile_hands_in_what_there_is(agents: dict[str, Any]) -> None:
    (profiled,) = agents["ends_in_profile"].of("profiled")
    assert (profiled["error"], profiled["first_step"]) == ("", 50)
    assert 59 <= profiled["last_step"] <= 60
    assert json.loads(Path(profiled["path"]).read_text())["traceEvents"]
    assert agents["ends_in_profile"].events[-1].code == wire.GOODBYE


def test_a_command_whose_step_does_not_come_makes_room_for_the_next(agents: dict[str, Any]) -> None:
    first, second = agents["expired"].of("profiled")
    assert (first["request"], first["path"]) == ("req-1", "")
    assert "step 10000 was not reached within 0.3 s" in first["error"]
    assert (second["request"], second["error"]) == ("req-2", "")
    assert second["last_step"] - second["first_step"] == 2


@pytest.mark.parametrize(("name", "why"), [("call_heavy", "too many calls"), ("large_trace", "allowed")])
def test_stacks_that_are_too_dear_are_left_out_and_that_is_said(agents: dict[str, Any], name: str, why: str) -> None:
    (profiled,) = agents[name].of("profiled")
    assert profiled["error"] == ""
    (note,) = profiled["notes"]
    assert note.startswith("profiled without stacks") and why in note
    assert profiled["late_by"] == profiled["first_step"] - COMMANDS[name]["start_step"] > 0
    events = json.loads(Path(profiled["path"]).read_text())["traceEvents"]
    assert any(event.get("cat") == "cpu_op" for event in events)
    assert not any(event.get("cat") == "python_function" for event in events)
    assert not list(agents[name].directory.glob(".*"))


def test_ddp_with_uneven_inputs(tmp_path_factory: pytest.TempPathFactory, helpers: Any) -> None:
    folder = tmp_path_factory.mktemp("j")
    agent = helpers.FakeAgent(folder)
    env = environment(helpers.environ(), job="uneven", runtime_dir=str(folder))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "ddp_join.py"), str(folder)]
    ran = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=600, check=False)
    agent.close()
    assert ran.returncode == 0, ran.stderr[-3000:]
    done = [json.loads((folder / f"done-{rank}.json").read_text()) for rank in (0, 1)]
    assert [steps for steps, _ in done] == [60, 40]
    assert done[0][1] == done[1][1], "both ranks end with the same weights"
    rank_of = {hello["pid"]: hello["rank"] for hello in agent.of("hello")}
    for rank, steps in ((0, 60), (1, 40)):
        told = [event.step for event in agent.codes(wire.ITERATION) if rank_of[event.pid] == rank]
        assert told == list(range(10, steps))
