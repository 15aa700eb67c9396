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
_STACKS = re.compile(rb"^Process \d+: |^Thread (?:\d+|0x[0-9A-Fa-f]+) \((?:active|idle)|^Python v\d+\.\d+", re.MULTILINE)
_KINDS = (
    ("a Flight Recorder dump of torch, which tells the collective that hung, not what the steps did",
     "torchfrtrace of torch reads the dumps of all ranks; give the ranks' profiler traces here"),
    ("py-spy's stacks of a process, a moment and no profile",
     "profile the ranks with torch.profiler; of a job that hangs, the agent takes the stacks of all ranks by itself"),
    ("a pickle, which is never opened", "give the traces that the profiler exports: .json or .json.gz"),
    ("an Nsight Systems report that is not exported", "export it: nsys export --type sqlite REPORT"),
    ("a compressed file of a kind that is not read", "unpack it; of packed traces only .json.gz is read"),
)  # fmt: skip
_RECORDED, _SPIED, _PICKLED, _REPORT, _PACKED = _KINDS
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
    if head[:1] not in (b"{", b"[") and _STACKS.search(head):
        return _SPIED
    return _PACKED if head.startswith(_PACKERS) else None
