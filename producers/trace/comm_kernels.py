"""Which device kernels are communication, told by their names: NCCL and its relatives, other vendors' libraries, one-sided
libraries, and the all-reduces and token exchanges that engines bring themselves. A library is a line here.

In doubt a kernel counts as communication: it waits for others, and waiting taken for work would make a victim look slow.
"""

from __future__ import annotations

import re
from functools import lru_cache

from eroica.producers.trace.naming import CollectiveName

_LIBRARIES: tuple[tuple[str, str], ...] = (
    # ncclDevKernel_AllReduce_…, ncclKernel_AllReduce_…, ncclAllReduceRingLLKernel_…, ncclSymkDevKernel_…, mscclKernel_…
    ("nccl", r"^(?:nccl|rccl)\w*?kernel|^mscclkernel"),
    ("deep_ep", r"^deep_ep::|^hybrid_ep::(?:\w+::)*(?:dispatch|combine|device_sync)"),
    ("nvshmem", r"^nvshmem|nvshmemi_|^\w+_on_stream_kernel|^c10d::nvshmem_extension::"),
    ("rocshmem", r"^rocshmem"),
    ("hccl", r"^hccl|^hcom_|^moedistribute(?:dispatch|combine)"),
    ("oneccl", r"^(?:ccl::)?oneccl"),
    ("mscclpp", r"^mscclpp::"),
    ("symmetric_memory", r"^c10d::(?:symmetric_memory|nccl_extension|intra_node_comm)::|^multimem_|kernel_barrier$"),
    ("userbuffers", r"^k?userbuffers_(?!inc)"),
    ("custom", r"^(?:mori|uccl|pplx|nccl_ep)::|^a2a_|moea2a|^ep(?:dispatch|combine)|cross_device"),
    ("custom", r"(?<!warp)(?<!block)(?<!grid)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"),
)
"""Backend, and what the function's name begins with or holds, in lower case; the first that fits."""
_OTHER = re.compile(
    r"^\w+:(?!:)|^triton_|^at::|^cub::|^thrust::|get_dispatch_layout|^deep_ep::layout::|(?:prepare|preprocess)\w*$"
)
"""None in spite of the name: annotations of the host (``gloo:all_reduce``), and work on one device. Inductor's kernels are called
after all the operations around them."""
_OPERATIONS: tuple[tuple[str, str], ...] = (
    ("all_gather", r"all_?gather|fcollect|^userbuffers_\w*_ag(?:_|$)"),
    ("reduce_scatter", r"reduce_?scatter|^userbuffers_\w*_rs(?:_|$)"),
    ("all_reduce", r"all_?reduce|rdxn|cross_device_reduce|^userbuffers_\w*sum"),
    ("all_to_all", r"all_?to_?all|a2a_(?!barrier)|moea2a"),
    ("barrier", r"barrier|notify|sync|clean_low_latency"),
    ("all_to_all", r"dispatch|combine"),
    ("", r"send_?recv|exchange"),
    ("broadcast", r"broadcast"),
    ("reduce", r"reduce"),
    ("recv", r"recv|receive|wait"),
    ("send", r"send|(?<!out)put"),
)
"""Operation, and what tells it, in lower case; the first that fits. Empty for what carries several kinds."""
_LIBRARY = [(backend, re.compile(pattern)) for backend, pattern in _LIBRARIES]
_ANY_LIBRARY = re.compile("|".join(pattern for _, pattern in _LIBRARIES))
_OPERATION = [(op, re.compile(pattern)) for op, pattern in _OPERATIONS]
_RETURNS = re.compile(r"^(?:typeinfo name for |[a-z_ ]*\b(?:void|int|float|bool) )(?=\S)")
_MANGLED = re.compile(r"_ZN?K?L?(?=\d)")
_LENGTH = re.compile(r"\d{1,4}")


@lru_cache(maxsize=65_536)
def kernel_collective(name: str) -> CollectiveName | None:
    """The collective that a device kernel of this name runs, demangled or not; None for any other kernel."""
    function = _function(name)
    # Most names are none, and one look tells that.
    if _ANY_LIBRARY.search(function) is None or _OTHER.search(function) is not None:
        return None
    backend = next(backend for backend, pattern in _LIBRARY if pattern.search(function) is not None)
    return CollectiveName(next((op for op, pattern in _OPERATION if pattern.search(function) is not None), ""), backend)


def _function(name: str) -> str:
    """The qualified name of a kernel's function in lower case, without its type, arguments and anonymous namespaces."""
    if name.startswith("_Z"):
        return _demangled(name).lower()
    if "(anonymous namespace)::" in name:
        name = name.replace("(anonymous namespace)::", "")
    name = _RETURNS.sub("", name)
    ends = [at for mark in "<(" if (at := name.find(mark)) >= 0]
    return name[: min(ends)].lower() if ends else name.lower()


def _demangled(name: str) -> str:
    """The qualified name in a mangled one (Itanium ABI): parts with their lengths in front.

    >>> _demangled("_ZN7deep_ep9intranode8dispatchILi8EEEvPv")
    'deep_ep::intranode::dispatch'
    """
    start = _MANGLED.match(name)
    if start is None:
        return name
    at, parts = start.end(), list[str]()
    while (length := _LENGTH.match(name, at)) is not None:
        at = length.end() + int(length.group())
        parts.append(name[length.end() : at])
        if not start.group().startswith("_ZN"):  # what follows is its arguments
            break
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N"))
