"""Files that lie beside traces and are none: what they are, by how they begin, and what to do with them."""

from __future__ import annotations

import re
from pathlib import Path

HEAD_BYTES = 4_096
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_RECORDER = re.compile(rb"pg_config|pg_status|nccl_comm_state|nccl_version|entries")
_RECORDER_JSON = re.compile(rb'^\s*\{.{0,2000}"(?:pg_config|pg_status|nccl_comm_state)"\s*:', re.DOTALL)
_TRACE = re.compile(
    rb'"(?:traceEvents|schemaVersion|distributedInfo|deviceProperties|traceName|displayTimeUnit|baseTimeNanoseconds)"'
)
"""What only traces begin with: the groups of a large job fill more than the head, before its first event."""
_OPERATORS = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"[^"]{1,40}".{0,2000}"nodes"\s*:', re.DOTALL)
_INSPECTED = re.compile(rb'"coll_perf"\s*:|"p2p_perf"\s*:|"inspector_output_format_version"')
_JSON_STACKS = re.compile(rb'^\s*\[\s*\{\s*"pid"\s*:\s*\d+\s*,.{0,400}"(?:thread_id|owns_gil|os_thread_id)"\s*:', re.DOTALL)
_ASCEND = re.compile(rb'"Ascend Hardware"|"AscendCL@')
_KINETO = re.compile(rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds)"')
_STACKS = re.compile(rb"^Process \d+: |^Thread (?:\d+|0x[0-9A-Fa-f]+) \((?:active|idle)|^Python v\d+\.\d+", re.MULTILINE)
_KINDS = (
    ("a Flight Recorder dump of torch, which tells the collective that hung, not what the steps did",
     "torchfrtrace of torch reads the dumps of all ranks; give the ranks' profiler traces here"),
    ("py-spy's stacks of a process, a moment and no profile",
     "profile the ranks with torch.profiler; of a job that hangs, the agent takes the stacks of all ranks by itself"),
    ("an execution trace (Chakra), operators and what they depend on",
     "give the trace that export_chrome_trace wrote in the same run"),
    ("a record of NCCL's inspector, how fast each collective was and not what the ranks did between",
     "give the ranks' profiler traces"),
    ("a trace of Ascend's profiler, whose device work does not tell its kind",
     "traces of torch.profiler are read, Ascend's are not"),
    ("a pickle, which is never opened", "give the traces that the profiler exports: .json or .json.gz"),
    ("an Nsight Systems report that is not exported", "export it: nsys export --type sqlite REPORT"),
    ("a compressed file of a kind that is not read", "unpack it; of packed traces only .json.gz is read"),
)  # fmt: skip
_RECORDED, _SPIED, _NODES, _INSPECTOR, _NPU, _PICKLED, _REPORT, _PACKED = _KINDS
_PACKERS = (b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\xfd7zXZ", b"BZh", b"\x04\x22\x4d\x18")
"""zstd, zip, xz, bzip2, lz4."""


def known_stranger(path: Path) -> tuple[str, str] | None:
    """What *path* is, and what to do, if it is a known kind of file other than a trace; None for any other, a trace too, and
    where it cannot be read. Reads the beginning alone, and never loads a pickle.
    """
    if path.name.endswith((".nsys-rep", ".qdrep")):
        return _REPORT
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return None
    if _PICKLE.match(head):
        return _RECORDED if _RECORDER.search(head) else _PICKLED
    if _RECORDER_JSON.match(head) and not _TRACE.search(head):
        return _RECORDED
    if _JSON_STACKS.match(head):
        return _SPIED
    if _OPERATORS.match(head):
        return _NODES
    if _INSPECTED.search(head):
        return _INSPECTOR
    if _ASCEND.search(head) and not _KINETO.search(head):
        return _NPU
    if head[:1] not in (b"{", b"[") and _STACKS.search(head):
        return _SPIED
    return _PACKED if head.startswith(_PACKERS) else None
