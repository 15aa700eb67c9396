"""Which collective an NCCL kernel of an Nsight Systems report ran: from the NVTX ranges that NCCL itself opens.

A kernel's name does not tell it for grouped sends and receives. The ranges do: ``ncclAllReduce`` around the launch, or everything
between ``ncclGroupStart`` and the end of ``ncclGroupEnd``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace

from eroica.producers.trace.naming import canonical_op
from eroica.producers.trace.nsys_payload import Payload

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
    communicator: int = 0
    """As the payloads tell it; 0 where they do not, or tell several."""
    bytes: int = 0
    """All the calls' together: of sends and receives the larger sum."""


def is_nccl_call(name: str) -> bool:
    """Whether an NVTX range of this name is one of NCCL's own."""
    return _CALL.match(name) is not None


Call = tuple[int, int, str]
"""Start, end, name without ``nccl``."""
PER_MEMBER = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Of these one call tells the bytes of one member's part."""


class NcclSpans:
    """The spans of one process, by thread; and the sizes of its communicators, where it made them while it was watched."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._calls: dict[int, list[Call]] = {}
        self._told: dict[int, dict[Call, Payload]] = {}
        self._spans: dict[int, tuple[list[int], list[NcclSpan]]] | None = None

    def add(self, tid: int, start: int, end: int, name: str, payload: Payload | None = None) -> None:
        """A range of NCCL's."""
        call = (start, end, name[4:])
        self._calls.setdefault(tid, []).append(call)
        if payload is not None:
            self._told.setdefault(tid, {})[call] = payload
            if payload.ranks and payload.communicator:
                self.sizes[payload.communicator] = payload.ranks
        self._spans = None

    def around(self, tid: int, time: int) -> NcclSpan | None:
        """The outermost span on thread *tid* that holds *time*."""
        if self._spans is None:
            self._spans = {}
            for thread, calls in self._calls.items():
                spans = [self._sized(span) for span in spans_of(calls, self._told.get(thread, {}))]
                self._spans[thread] = ([s.start for s in spans], spans)
        starts, spans = self._spans.get(tid, ([], []))
        at = bisect_right(starts, time) - 1
        return spans[at] if at >= 0 and time <= spans[at].end else None

    def _sized(self, span: NcclSpan) -> NcclSpan:
        """With the members of its communicator, and the bytes of all of them."""
        size = self.sizes.get(span.communicator, 0) or span.size
        # An exchange out of sends and receives has told every part already.
        parts = size if span.op in PER_MEMBER and not span.size else 1
        return replace(span, size=size, bytes=span.bytes * max(parts, 1))


def spans_of(calls: list[Call], told: Mapping[Call, Payload] | None = None) -> list[NcclSpan]:
    """Spans of one thread's calls, ascending, none inside another.

    :param told: what calls say of themselves.
    """
    told = told or {}
    found: list[NcclSpan] = []
    depth, begun, members = 0, 0, list[Call]()
    for call in sorted(calls):
        start, end, name = call
        if name == "GroupStart":
            depth += 1
            if depth == 1:
                begun, members = start, []
        elif name == "GroupEnd":
            depth = max(0, depth - 1)
            if depth == 0 and members:
                found.append(NcclSpan(begun, end, *_group([name for _, _, name in members]), *_sums(members, told)))
                members = []
        elif name not in _SILENT:
            if depth:
                members.append(call)
                if len(members) > MAX_OPEN_GROUP:
                    depth, members = 0, []
            elif not found or start > found[-1].end:
                found.append(NcclSpan(start, end, _op(name), 0, *_sums([call], told)))
    return found


def _sums(members: list[Call], told: Mapping[Call, Payload]) -> tuple[int, int]:
    """The communicator that all calls name, 0 if they name several, and their bytes."""
    payloads = [(name, told[call]) for call in members if (name := call[2]) and call in told]
    named = {payload.communicator for _, payload in payloads}
    received = sum(payload.bytes for name, payload in payloads if name == "Recv")
    others = sum(payload.bytes for name, payload in payloads if name != "Recv")
    return named.pop() if len(named) == 1 else 0, max(received, others)


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
