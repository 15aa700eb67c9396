"""Who this process is in its job: rank, world size, host, job and launch, from the launcher's environment. Pure functions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from eroica.producers.hook.wire import ENV_HOST, ENV_JOB

MAX_NAME = 128
"""Longest name of a job, host or run that is sent, in characters."""


class Place(NamedTuple):
    """A process in its job, as its launcher tells it."""

    launcher: str
    """``torchrun``, ``env`` (plain ``RANK``/``WORLD_SIZE``), ``openmpi``, ``pmi``, ``slurm`` or ``none``."""
    rank: int
    world_size: int
    local_rank: int


# For each launcher: what proves it, then where rank, world size and local rank stand, best first. The order of the rows decides
# where environments are nested: torchrun under srun, mpirun inside a Slurm allocation.
_LAUNCHERS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    ("torchrun", ("TORCHELASTIC_RUN_ID", "RANK"), ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",)),
    ("env", ("RANK", "WORLD_SIZE"), ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK", "SLURM_LOCALID")),
    (
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ),
    (
        "slurm",
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS",),
        ("SLURM_LOCALID",),
    ),
    ("pmi", ("PMI_RANK",), ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")),
    ("pmi", ("PMIX_RANK",), ("PMIX_RANK",), ("PMIX_SIZE",), ("MPI_LOCALRANKID",)),
)


def place(environ: Mapping[str, str]) -> Place:
    """Read rank, world size and local rank; a lone process is rank 0 of 1. Values that are no numbers are passed over."""
    for launcher, proofs, ranks, sizes, locals_ in _LAUNCHERS:
        if all(name in environ for name in proofs):
            rank = _number(environ, ranks)
            size = _number(environ, sizes)
            if rank is not None and size is not None and rank < size:
                return Place(launcher, rank, size, _number(environ, locals_) or 0)
    return Place("none", 0, 1, 0)


def host_name(environ: Mapping[str, str], hostname: str) -> str:
    """``EROICA_HOST``, else the machine's own name."""
    return _clean(environ.get(ENV_HOST) or hostname) or "localhost"


def job_name(environ: Mapping[str, str], script: str) -> str:
    """``EROICA_JOB``, else the run id given to torchrun, else Slurm's job, else MPI's, else the script's name."""
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    slurm = environ.get("SLURM_JOB_ID", "")
    candidates = (
        environ.get(ENV_JOB, ""),
        elastic if elastic != "none" else "",
        f"slurm-{slurm}" if slurm else "",
        environ.get("PMIX_NAMESPACE", ""),
        script.rsplit("/", 1)[-1].removesuffix(".py"),
    )
    return next((name for name in map(_clean, candidates) if name), "job")


def run_id(environ: Mapping[str, str], world_size: int, parent_pid: int, unique: str) -> str:
    """A name of this launch: the same on all its ranks, another for another launch as far as the environment can tell.

    Over several hosts only what is the same on all of them may enter: the rendezvous (id, address and port) and the scheduler's
    job, step and restart. The elastic restart count is not, for an agent that merely rejoins does not count; it and the parent's
    process id enter where all ranks share a host. *unique* names a lone process.
    """
    if world_size == 1:
        return _digest(("lone", unique))
    shared = [
        f"{name}={environ[name]}"
        for name in (
            "TORCHELASTIC_RUN_ID",
            "MASTER_ADDR",
            "MASTER_PORT",
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
            "SLURM_RESTART_COUNT",
            "PMIX_NAMESPACE",
            "PMI_ID",
        )
        if environ.get(name) and not (name == "TORCHELASTIC_RUN_ID" and environ[name] == "none")
    ]
    local_size = _number(environ, ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"))
    if local_size == world_size or not shared:
        shared += [f"parent={parent_pid}", f"restart={environ.get('TORCHELASTIC_RESTART_COUNT', '')}"]
    return _digest(shared)


def framework(modules: Collection[str], parameter_types: Collection[str], world_size: int) -> str:
    """Best guess of what shards the model: ``megatron``, ``deepspeed``, ``fsdp``, ``ddp`` or ``none``.

    :param modules: names of the modules imported.
    :param parameter_types: names of the types of the optimizer's parameters.
    """
    if "megatron.core.parallel_state" in modules or "megatron.mpu" in modules:
        return "megatron"
    if "deepspeed" in modules:
        return "deepspeed"
    if "DTensor" in parameter_types or "FlatParameter" in parameter_types:
        return "fsdp"
    return "ddp" if world_size > 1 else "none"


def _number(environ: Mapping[str, str], names: Collection[str]) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 8:
            return int(text)
    return None


def _clean(name: str) -> str:
    """Only what is safe in a topic's key, a file's name and a terminal; the rest becomes a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[:MAX_NAME]


def _digest(parts: Collection[str]) -> str:
    return "run-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
