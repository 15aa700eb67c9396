"""Which collective an NCCL kernel of an Nsight Systems report ran: from the NVTX ranges that NCCL itself opens.

A kernel's name does not tell it for grouped sends and receives. The ranges do: ``ncclAllReduce`` around the launch, or everything
between ``ncclGroupStart`` and the end of ``ncclGroupEnd``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from eroica.producers.trace.naming import canonical_op

_CALL = re.compile(r"^nccl([A-Z]\w*)$", re.ASCII)
_SILENT = frozenset({"CommCount", "CommCuDevice", "CommUserRank", "CommGetAsyncError", "GroupStart", "GroupEnd"})
_VARIABLE = {"AlltoAll": "all_to_all", "AllToAll": "all_to_all", "AlltoAllv": "all_to_all", "AllToAllv": "all_to_all"}
MAX_OPEN_GROUP = 65_536
"""Calls in one group: a larger one is no group but a range that was never closed."""


@dataclass(frozen=True, slots=True)
class NcclSpan:
    """From a call's start to its end on its thread, or a group's. Times in ns as in the report."""

    start: int
    end: int
    op: str
    """Empty for a group of several kinds."""
    size: int
    """Members, where the calls tell: an exchange of all with all has one send and one receive a member. 0: not told."""


def is_nccl_call(name: str) -> bool:
    """Whether an NVTX range of this name is one of NCCL's own."""
    return _CALL.match(name) is not None


class NcclSpans:
    """The spans of one process, by thread."""

    def __init__(self) -> None:
        self._calls: dict[int, list[tuple[int, int, str]]] = {}
        self._spans: dict[int, tuple[list[int], list[NcclSpan]]] | None = None

    def add(self, tid: int, start: int, end: int, name: str) -> None:
        """A range of NCCL's."""
        self._calls.setdefault(tid, []).append((start, end, name[4:]))
        self._spans = None

    def around(self, tid: int, time: int) -> NcclSpan | None:
        """The outermost span on thread *tid* that holds *time*."""
        if self._spans is None:
            self._spans = {}
            for thread, calls in self._calls.items():
                spans = spans_of(calls)
                self._spans[thread] = ([s.start for s in spans], spans)
        starts, spans = self._spans.get(tid, ([], []))
        at = bisect_right(starts, time) - 1
        return spans[at] if at >= 0 and time <= spans[at].end else None


def spans_of(calls: list[tuple[int, int, str]]) -> list[NcclSpan]:
    """Spans of one thread's calls (start, end, name without ``nccl``), ascending, none inside another."""
    found: list[NcclSpan] = []
    depth, begun, members = 0, 0, list[str]()
    for start, end, name in sorted(calls):
        if name == "GroupStart":
            depth += 1
            if depth == 1:
                begun, members = start, []
        elif name == "GroupEnd":
            depth = max(0, depth - 1)
            if depth == 0 and members:
                found.append(NcclSpan(begun, end, *_group(members)))
                members = []
        elif name not in _SILENT:
            if depth:
                members.append(name)
                if len(members) > MAX_OPEN_GROUP:
                    depth, members = 0, []
            elif not found or start > found[-1].end:
                found.append(NcclSpan(start, end, _op(name), 0))
    return found


def _group(members: list[str]) -> tuple[str, int]:
    kinds = set(members)
    sends, receives = members.count("Send"), members.count("Recv")
    if kinds == {"Send", "Recv"}:
        # torch's all-to-all sends to and receives from every member, itself included; a neighbour exchange looks the same with
        # two members, and is the same then.
        return ("all_to_all", sends) if sends == receives and sends > 1 else ("send_recv", 0)
    return (_op(kinds.pop()), 0) if len(kinds) == 1 else ("", 0)


def _op(name: str) -> str:
    return _VARIABLE.get(name) or canonical_op(name)
