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
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallsingle": "all_to_all",
    "alltoalld": "all_to_all",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "recvanysource": "recv",
    "sendrecv": "send_recv",
    "coalesced": "coalesced",
    "dispatch": "all_to_all",
    "combine": "all_to_all",
    "fcollect": "all_gather",
    "notify": "barrier",
}
_KERNEL = re.compile(r"^(?:void )?(?:nccl|rccl)(?:Dev)?Kernel_?(?:Generic|([A-Z][A-Za-z]+?))?(?:_|\b)", re.ASCII)
_NO_LETTER = re.compile(r"[^a-z]")
_SYMMETRIC = re.compile(r"^ncclSym[A-Za-z]*Kernel_([A-Z][A-Za-z]+)")
_PLAIN = re.compile(r"^(hcom|hccl|oneccl)[_:]+([A-Za-z]+)")
"""Names that say it plainly: ``hcom_allReduce__503_0_1``, ``hccl_alltoall``."""
_ANNOTATION = re.compile(r"^(nccl|rccl|gloo|mpi|ucc|xccl|hccl|oneccl):([A-Za-z0-9_]+)")
_ENQUEUE = re.compile(r"^(?:c10d|_c10d_functional|c10d_functional)::([A-Za-z0-9_]+)")
_DEEP_EP = re.compile(r"deep_ep::(?:\w+::)*(?:\w*?)(dispatch|combine|notify|barrier)")
_NVSHMEM_OP = re.compile(r"barrier|alltoall|broadcast|reducescatter|reduce|fcollect|put|get")
_OTHER_LIBRARIES = (
    "cross_device_reduce", "two_shot_all_reduce", "one_shot_all_reduce", "multimem_all_reduce",
    "oneccl_", "hccl", "hcom_", "msccl",
)  # fmt: skip
"""In lower case; what holds one of these is communication."""


def canonical_op(name: str) -> str:
    """``_allgather_base``, ``AllGather``, ``allgather_into_tensor`` … → ``all_gather``; unknown ones in lower case."""
    flat = _NO_LETTER.sub("", name.lower())
    return _OPS.get(flat, name.strip("_").lower()[:40])


@lru_cache(maxsize=65_536)
def kernel_collective(name: str) -> CollectiveName | None:
    """The collective that a device kernel of this name runs; None for any other kernel.

    NCCL and RCCL by their old (``ncclKernel_``) and new (``ncclDevKernel_``) names, DeepEP, NVSHMEM, and the custom
    all-reduces of inference engines.
    """
    if (symmetric := _SYMMETRIC.match(name)) is not None:
        return CollectiveName(canonical_op(symmetric.group(1)), "nccl")
    if (match := _KERNEL.match(name)) is not None:
        op = canonical_op(match.group(1)) if match.group(1) else ""
        return CollectiveName("" if op == "send_recv" else op, "nccl")
    # Names of kernels are long: words are looked for first, since patterns would take most of the time.
    if "deep_ep::" in name and (deep := _DEEP_EP.search(name)) is not None:
        return CollectiveName(canonical_op(deep.group(1)), "deep_ep")
    if (lower := name.lower()).startswith(("nvshmem", "void nvshmem")) or "nvshmemi_" in lower:
        found = _NVSHMEM_OP.search(lower)
        return CollectiveName(canonical_op(found.group()) if found else "", "nvshmem")
    other = next((word for word in _OTHER_LIBRARIES if word in lower), None)
    if other is None:
        return None
    if (told := _PLAIN.match(name)) is not None and (plain := _OPS.get(told.group(2).lower())) is not None:
        return CollectiveName(plain, told.group(1))
    return CollectiveName("all_reduce" if "reduce" in other else "", "custom")


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
