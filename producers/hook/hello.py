"""What a process says of itself in hello: who it is, and where it stands in the job."""

from __future__ import annotations

import os
import platform
import socket
import sys
from typing import Any

from eroica.producers.hook import groups, identity


def distributed() -> Any:
    """Torch's registry of process groups, or ``None`` where there are none."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    return world if world is not None and world.pg_map else None


def described(torch: Any, world: Any, parameter_types: frozenset[str], started_ns: int) -> dict[str, Any]:
    """The fields of hello (see wire.py) that torch and the environment tell.

    :param world: what :func:`distributed` answers.
    :param parameter_types: names of the types of some of the optimizer's parameters.
    :param started_ns: when the hook was installed; with the process id it stands for a launch of one process.
    """
    environ = os.environ
    place = identity.place(environ)
    rank, size = place.rank, place.world_size
    found = groups.process_groups(world) if world else []
    if world:
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    framework = identity.framework(sys.modules, parameter_types, size)
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return {
        "rank": rank,
        "world_size": size,
        "local_rank": place.local_rank,
        "host": identity.host_name(environ, socket.gethostname()),
        "job": identity.job_name(environ, script),
        "run_id": identity.run_id(environ, size, os.getppid(), f"{os.getpid()} {started_ns}"),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "framework": framework,
        "coords": groups.coordinates(found, rank, framework),
        "backend": next((group["backend"] for group in found if group["backend"]), ""),
        "launcher": place.launcher,
        "groups": found,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
