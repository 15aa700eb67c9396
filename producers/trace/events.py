"""One event of a Kineto trace as it stands in the file: only the keys that are used, typed, untracked by the garbage
collector.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eroica.schemas.errors import InvalidInput


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that are used, by Kineto's names."""

    correlation: int = -1
    stream: int | str | None = None
    bytes: float = 0.0
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int = msgspec.field(default=-1, name="In msg nelems")
    out_elements: int = msgspec.field(default=-1, name="Out msg nelems")
    dtype: str = ""
    group_size: int = msgspec.field(default=0, name="Group size")
    group_name: str = msgspec.field(default="", name="Process Group Name")
    group_description: str = msgspec.field(default="", name="Process Group Description")
    group_ranks: str = msgspec.field(default="", name="Process Group Ranks")
    seq: int = msgspec.field(default=-1, name="Seq")
    source: Any = msgspec.field(default=None, name="Src Rank")
    destination: Any = msgspec.field(default=None, name="Dst Rank")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event. Times in µs on the file's own origin."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None


class Document(msgspec.Struct):
    """The file as a whole (or its first and last piece)."""

    traceEvents: list[Event] | None = None  # noqa: N815 - the file's spelling
    distributedInfo: Any = None  # noqa: N815
    deviceProperties: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    host_name: Any = None
    username: Any = None
    with_stack: Any = None
    traceName: Any = None  # noqa: N815


EVENTS = msgspec.json.Decoder(list[Event])
DOCUMENT = msgspec.json.Decoder(Document)
META_KEYS = tuple(k for k in Document.__struct_fields__ if k != "traceEvents")

JSON_ERRORS = (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError, OverflowError)
"""What decoding hostile bytes may raise; nothing else is expected, so nothing else is caught."""


def meta_of(document: Document) -> dict[str, Any]:
    """The top-level keys that are present."""
    return {k: v for k in META_KEYS if (v := getattr(document, k)) is not None}


def not_a_trace(where: str, why: str) -> InvalidInput:
    """The error for a file that is something else."""
    return InvalidInput(
        f"not a profiler trace: {why}",
        where=where,
        do="give a file that torch.profiler's export_chrome_trace wrote (.json or .json.gz)",
    )
