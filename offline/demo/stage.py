"""What stands around the demo: a broker, topics, folders, the services, the agents and the training job."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eroica.bus import check_broker, delete_topics, ensure_topics
from eroica.bus.local import EmbeddedBroker
from eroica.bus.local.embedded import PREFIX as BROKER_PREFIX
from eroica.bus.local.folders import LOCK, OwnFolder, sweep
from eroica.bus.local.ports import LOOPBACK, free_port
from eroica.offline.demo.processes import Processes
from eroica.offline.demo.scenario import HOSTS, Scenario
from eroica.schemas.errors import EroicaError, MissingDependency
from eroica.schemas.settings import EroicaSettings

JOB_SCRIPT = Path(__file__).with_name("job.py")
TETHER = Path(__file__).with_name("tether.py")
SERVICES = ("detect", "group", "localize")
DATA_BYTES = 4_096 * 1_024
PREFIX = "eroica-demo-"
MEMORY = Path("/dev/shm")

Say = Callable[[str], None]


@dataclass
class Stage:
    """Where the demo runs: its folder, its broker and its settings."""

    folder: Path
    settings: EroicaSettings
    job: str
    arguments: list[str]
    """The settings as options for the processes."""
    memory: Path
    """A folder in memory-backed storage. Its path is short: a Unix socket's may have some hundred characters only."""


def prepare(
    stack: contextlib.ExitStack,
    folder: Path,
    settings: EroicaSettings,
    arguments: list[str],
    external: bool,
    own_prefix: bool,
    tell: Say,
    check: Callable[[], None] = lambda: None,
) -> Stage:
    """A broker with our topics on it, for as long as *stack* lasts.

    :param check: called between the steps; raises where no more are wanted.
    :raises MissingDependency: the embedded broker is not installed.
    :raises BrokerError: a broker cannot be used.
    """
    tag = secrets.token_hex(3)
    kafka = settings.kafka
    if external:
        check_broker(kafka)
        if own_prefix:
            kafka = kafka.model_copy(update={"prefix": f"eroica.demo-{tag}."})
        tell(f"using the broker at {kafka.bootstrap}, topics {kafka.prefix}*")
    else:
        broker = stack.enter_context(EmbeddedBroker())
        kafka = kafka.model_copy(update={"bootstrap": broker.bootstrap, "extra": {}})
        tell(f"an embedded broker listens at {broker.bootstrap}")
    check()
    shared_memory = stack.enter_context(_shared_memory())
    agent = settings.agent.model_copy(update={"trace_directory": str(shared_memory)})
    staged = settings.model_copy(update={"kafka": kafka, "agent": agent})
    changes = ensure_topics(kafka)
    if external and own_prefix:
        stack.callback(_forget_topics, staged)
    check()
    tell(f"{len(changes)} topics are made" if changes else "the topics are there")
    options = [*arguments, "--bootstrap", kafka.bootstrap, "--prefix", kafka.prefix]
    options += ["--set", f"agent.trace_directory={shared_memory}"]
    return Stage(folder, staged, f"demo-{tag}" if external else "demo", options, shared_memory)


def start_all(stage: Stage, scenario: Scenario, processes: Processes, tell: Say) -> None:
    """Start the services, an agent a host, and the training job on both hosts."""
    folder = stage.folder
    for name in ("logs", "signals", "work"):
        (folder / name).mkdir()
    data = folder / "data.f32"
    data.write_bytes(np.random.default_rng(7).random(DATA_BYTES // 4, dtype=np.float32).tobytes())
    eroica = [sys.executable, "-m", "eroica.cli"]
    # What the processes leave in their temporary folder (locks, torchrun's logs) goes with ours.
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder / "work")}
    for service in SERVICES:
        extra = [] if service == "localize" else ["--workdir", str(folder / "work" / service)]
        processes.start(service, [*eroica, *stage.arguments, service, *extra], env)
    for host in HOSTS:
        (stage.memory / host).mkdir()
        processes.start(
            f"agent-{host}", [*eroica, *stage.arguments, "agent", "--host", host, "--runtime-dir", str(stage.memory / host)], env
        )
    tell(f"started {', '.join(SERVICES)}, and an agent on each of {' and '.join(HOSTS)}")
    port = free_port()
    job_env = env | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    for node, (host, count) in enumerate(zip(HOSTS, scenario.ranks_of_host, strict=True)):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)]
        torchrun += ["--nproc-per-node", str(count), "--master-addr", LOOPBACK, "--master-port", str(port)]
        script = [str(TETHER), str(JOB_SCRIPT), str(data), str(folder / "signals"), scenario.fault, str(scenario.fault_rank)]
        hooked = [*eroica, "run", "--job", stage.job, "--host", host, "--runtime-dir", str(stage.memory / host), "--"]
        processes.start(f"torchrun-{host}", [*hooked, *torchrun, *script], job_env)
    tell(f"started a DDP job of {scenario.ranks} ranks with: eroica run -- torchrun --nnodes 2 … job.py")
    tell("services and workers start up (importing torch takes ten seconds, on a busy machine half a minute) …")


@contextlib.contextmanager
def _shared_memory() -> Iterator[Path]:
    """A folder for traces in memory-backed storage where there is some."""
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    own = OwnFolder(f"{PREFIX}{os.getpid()}-", MEMORY if usable else None)
    try:
        yield own.path
    finally:
        own.remove()


def sweep_stale() -> None:
    """Remove what demos of this user left behind that were killed outright; logs that a failure keeps stay."""
    for parent in (MEMORY, None):
        sweep(PREFIX, parent)
    sweep(BROKER_PREFIX)


def clean(own: OwnFolder, keep_logs: list[bool]) -> None:
    """Remove the folder, but for its logs if *keep_logs* has anything in it."""
    if not keep_logs:
        own.remove()
        return
    own.give_away()
    for entry in own.path.iterdir():
        if entry.name in ("logs", LOCK):
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _forget_topics(settings: EroicaSettings) -> None:
    with contextlib.suppress(EroicaError):
        delete_topics(settings.kafka)


def require(module: str, advice: str) -> None:
    """Check that *module* is installed without importing it.

    :raises MissingDependency: it is not.
    """
    try:
        found = importlib.util.find_spec(module) is not None
    except ValueError:  # imported already, and without a specification: Faust replaces its own module
        found = True
    if not found:
        raise MissingDependency(f"{module} is not installed", do=advice)
