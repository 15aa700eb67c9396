"""The hook through the environment alone, and training whose agent misbehaves."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eroica.producers.hook import wire
from eroica.producers.hook.launch import environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

DDP = str(Path(__file__).with_name("ddp_loop.py"))


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


def python(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=600, check=False)


def test_a_program_without_torch_pays_no_import_of_it(short: Path, helpers: Any) -> None:
    code = (
        "import sys; from eroica.producers import hook; import json;"
        "print(json.dumps([hook.status(), [m for m in ('torch', 'socket', 'typing') if m in sys.modules]]))"
    )
    ran = python("-c", code, env=environment(helpers.environ()))
    assert ran.returncode == 0, ran.stderr
    status, imported = json.loads(ran.stdout)
    assert status == {"active": False, "waiting_for_torch": True, "error": ""}
    assert "torch" not in imported
    assert "socket" not in imported
    assert ran.stderr == ""


def test_a_sitecustomize_that_exists_still_runs(short: Path, helpers: Any) -> None:
    (short / "sitecustomize.py").write_text("import sys\nsys.mine = __file__\nvalue = 7\n")
    env = environment(helpers.environ(PYTHONPATH=str(short)))
    code = "import sys, sitecustomize; print(sys.mine, sitecustomize.value, sys.path.count(sys.path[1]))"
    ran = python("-c", code, env=env)
    assert ran.stdout.split() == [str(short / "sitecustomize.py"), "7", "1"], ran.stderr


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_an_isolated_python_starts_as_ever(helpers: Any, flag: str) -> None:
    ran = python(flag, "-c", "print('fine')", env=environment(helpers.environ()))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "fine\n", "")


def test_a_python_without_eroica_starts_as_ever(short: Path, helpers: Any) -> None:
    # An interpreter that finds the start-up folder but not the package: no site-packages, sitecustomize run by hand.
    startup = environment(helpers.environ())["PYTHONPATH"].split(os.pathsep)[0]
    code = f"import sys; sys.path.insert(0, {startup!r}); import sitecustomize; print('fine')"
    ran = python("-S", "-E", "-c", code, env=helpers.environ())
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "fine\n", "")


@needs_torch
def test_torchrun_without_a_code_change(short: Path, helpers: Any) -> None:
    agent = helpers.FakeAgent(short, helpers.profile_command(short, start_step=30))
    env = environment(helpers.environ(), job="unchanged", runtime_dir=str(short))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", DDP, str(short), "80", "15"]
    ran = python(*command, env=env)
    agent.close()
    assert ran.returncode == 0, ran.stderr
    hellos = {message["rank"]: message for message in agent.of("hello")}
    assert sorted(hellos) == [0, 1]
    for rank, hello in hellos.items():
        assert (hello["world_size"], hello["local_rank"], hello["job"]) == (2, rank, "unchanged")
        assert (hello["launcher"], hello["framework"], hello["backend"]) == ("torchrun", "ddp", "gloo")
        assert hello["groups"] == [{"name": "0", "desc": "default_pg", "backend": "gloo", "ranks": [0, 1]}]
        assert hello["coords"] == {"dp": rank}
    assert hellos[0]["run_id"] == hellos[1]["run_id"]
    # torchrun's own process never trains, so it never speaks.
    assert {event.pid for event in agent.events} == {hello["pid"] for hello in hellos.values()}
    for hello in hellos.values():
        steps = [e.step for e in agent.codes(wire.ITERATION) if e.pid == hello["pid"]]
        assert steps == list(range(10, 80))
    profiled = {message["rank"]: message for message in agent.of("profiled")}
    assert [(p["first_step"], p["last_step"], p["error"]) for _, p in sorted(profiled.items())] == [(30, 32, "")] * 2
    trace = json.loads((short / "rank1.json").read_text())
    assert trace["distributedInfo"]["rank"] == 1


@needs_torch
def test_an_agent_that_never_reads_or_is_killed_changes_nothing(short: Path, helpers: Any) -> None:
    outcomes = {}
    for name in ("absent", "silent", "killed"):
        folder = short / name
        folder.mkdir()
        env = environment(helpers.environ(), runtime_dir=str(folder))
        agent = None
        if name != "absent":
            code = (
                "import socket, sys, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
                "s.bind(sys.argv[1]); print('up', flush=True); time.sleep(900)"
            )
            agent = subprocess.Popen([sys.executable, "-c", code, str(folder / "agent.sock")], stdout=subprocess.PIPE, text=True)
            assert agent.stdout is not None
            assert agent.stdout.readline() == "up\n"
        job = subprocess.Popen([sys.executable, DDP, str(folder), "150"], env=env)
        try:
            if name == "killed" and agent is not None:
                helpers.until(lambda folder=folder: (folder / "at-0").exists(), timeout_s=400)
                helpers.until(lambda folder=folder: int((folder / "at-0").read_text() or 0) > 30, timeout_s=200)
                agent.send_signal(signal.SIGKILL)
            assert job.wait(400) == 0
        finally:
            job.kill()
            if agent is not None:
                agent.kill()
                agent.communicate()
        outcomes[name] = json.loads((folder / "done-0.json").read_text())
    assert len(outcomes["absent"]) == 150
    assert outcomes["absent"] == outcomes["silent"] == outcomes["killed"]


@needs_torch
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_adapters_mark_the_trainers_steps(short: Path, helpers: Any, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    agent = helpers.FakeAgent(short)
    env = helpers.environ(EROICA_RUNTIME_DIR=str(short), EROICA_JOB="adapter", CUDA_VISIBLE_DEVICES="")
    ran = python(str(Path(__file__).with_name("adapter_loops.py")), framework, str(short), env=env)
    agent.close()
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [event.step for event in agent.codes(wire.ITERATION)] == list(range(1, 21))
    assert {hello["hook"] for hello in agent.of("hello")} == {"mark_step"}


def test_the_socket_of_a_default_agent_is_where_the_hook_looks() -> None:
    folder = wire.runtime_dir({})
    assert folder.name == f"eroica-{os.getuid()}"
    assert wire.runtime_dir({"EROICA_RUNTIME_DIR": "/x"}) == Path("/x")
