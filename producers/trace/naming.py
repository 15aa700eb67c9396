"""What a function's name says: which library's collective it is, and its identity across ranks and steps."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import NamedTuple

MAX_NAME = 200
"""Characters of a function's name in a summary; a longer one keeps its head and a digest, so that two stay two."""


class CollectiveName(NamedTuple):
    """A collective operation as its name tells it; ``op`` may be empty for a kernel that carries several kinds."""

    op: str
    backend: str


_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherintotensorout": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallsingle": "all_to_all",
    "alltoalld": "all_to_all",
    "alltoallvc": "all_to_all",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "sparseallreduce": "all_reduce",
    "allreducebarrier": "barrier",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "gathersingle": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "recvanysource": "recv",
    "receive": "recv",
    "sendrecv": "send_recv",
    "batchsendrecv": "send_recv",
    "coalesced": "coalesced",
    "dispatch": "all_to_all",
    "combine": "all_to_all",
    "fcollect": "all_gather",
    "notify": "barrier",
}
_ANNOTATION = re.compile(r"^([a-z]{0,5}ccl[a-z]?|cncl|gloo|mpi|ucc):([A-Za-z0-9_]+)")
"""``nccl:all_reduce``, ``xccl:all_gather``, ``hccl:…``: a library and its operation."""
_ENQUEUE = re.compile(r"^(?:c10d|_c10d_functional|c10d_functional)::([A-Za-z0-9_]+)")
_NO_LETTER = re.compile(r"[^a-z]")


def canonical_op(name: str) -> str:
    """``_allgather_base``, ``AllGather``, ``allgather_into_tensor`` … → ``all_gather``; unknown ones in lower case."""
    flat = _NO_LETTER.sub("", name.lower())
    return _OPS.get(flat, name.strip("_").lower()[:40])


@lru_cache(maxsize=65_536)
def host_collective(name: str) -> CollectiveName | None:
    """The collective of a host annotation such as ``gloo:all_reduce`` or ``nccl:all_to_all``."""
    match = _ANNOTATION.match(name)
    return CollectiveName(canonical_op(match.group(2)), match.group(1)) if match else None


def is_enqueue(name: str) -> bool:
    """Whether a host operation only hands a collective over (or waits for one): never compute."""
    return _ENQUEUE.match(name) is not None or name == "record_param_comms"


_LOOP = re.compile(
    r"^(?:(?:train(?:ing)?[ _])?(?:global[ _])?(?:step|iter(?:ation)?)[ _#:=-]*(\d{1,12})"
    r"|train(?:ing)?[ _](?:step|iter(?:ation)?)|execute_(?:\d+_)?(?:context|new)_.*)$",
    re.IGNORECASE | re.ASCII,
)
_STEP = re.compile(r"^ProfilerStep(?:#|\*)\s*(\d+)")
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+")
_BUILD = re.compile(r"pybind11_builtins\.pybind11_detail_function_record_\w+")
_MODULE_NUMBER = re.compile(r"^(nn\.Module: .*?)_\d+$")


def step_number(name: str) -> int:
    """N of ``ProfilerStep#N``, else -1."""
    match = _STEP.match(name) if name.startswith("ProfilerStep") else None
    return int(match.group(1)) if match and len(match.group(1)) <= 15 else -1


def loop_step(name: str) -> int | None:
    """What a program calls a step itself: N of ``step_5``, ``iteration 5``, ``train_step 5``; -1 of one without a number
    (``train_step``; vLLM's ``execute_context_0(0)_generation_8(8)``); None for any other name.
    """
    match = _LOOP.match(name)
    return None if match is None else int(match.group(1) or -1)


@lru_cache(maxsize=65_536)
def stable_name(name: str) -> str:
    """A name without what differs from rank to rank or step to step: addresses, step numbers; bounded in length.

    Postcondition: at most :data:`MAX_NAME` characters; distinct long names stay distinct.
    """
    if step_number(name) >= 0:
        return "ProfilerStep"
    if name[-1:].isdigit() and loop_step(name) is not None:
        return name.rstrip("0123456789").rstrip(" _#:=-")
    # Looking for a word is cheaper than a pattern, and most names hold none.
    if " at 0x" in name:
        name = _ADDRESS.sub("", name)
    if "pybind11_builtins" in name:
        name = _BUILD.sub("pybind11", name)
    if name.startswith("nn.Module"):
        name = _MODULE_NUMBER.sub(r"\1", name)
    name = name.replace("\n", " ").replace(";", ",")
    if len(name) <= MAX_NAME:
        return name
    # No hash of OpenSSL's: loading it takes 3 MB and 10 ms, and nobody gains by two names that collide.
    return f"{name[: MAX_NAME - 9]}~{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
