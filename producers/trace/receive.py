"""Receive waits of expert-parallel exchanges, as the training process wrote them beside its trace."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from eroica.producers.trace.side import read_side
from eroica.schemas.ranks import MAX_RANK, format_ranks
from eroica.schemas.summaries import MAX_RECEIVE_GROUPS, MAX_SOURCES, ReceiveWaits

MAX_US = 1e15
MAX_COUNT = 1_000_000_000


def receive_waits(trace_path: str | Path) -> tuple[list[ReceiveWaits], str]:
    """The exchanges that the file beside the trace tells of, and a note if some of it cannot be."""
    _, value = read_side(trace_path)
    told = value.get("receive_waits", []) if isinstance(value, dict) else []
    if not isinstance(told, list):
        return [], "the receive waits beside the trace are unreadable"
    read = [_one(entry) for entry in told[:MAX_RECEIVE_GROUPS]]
    found = [one for one in read if one is not None]
    left_out = len(told) - len(found)
    return found, f"{left_out} exchanges beside the trace are unreadable or too many" if left_out else ""


def _one(entry: Any) -> ReceiveWaits | None:
    """A checked entry: sources ascend, one figure a source."""
    if not isinstance(entry, dict) or not isinstance(entry.get("group"), str):
        return None
    ranks, count = entry.get("ranks"), entry.get("count")
    columns = [entry.get(name) for name in ("total_us", "max_us")]
    if not isinstance(ranks, list) or not 0 < len(ranks) <= MAX_SOURCES or not isinstance(count, int):
        return None
    if not _all_ints([count], 1, MAX_COUNT) or not _all_ints(ranks, 0, MAX_RANK) or any(a >= b for a, b in pairwise(ranks)):
        return None
    if any(not isinstance(column, list) or len(column) != len(ranks) or not _all_times(column) for column in columns):
        return None
    total, longest = ([float(us) for us in column] for column in columns if column is not None)
    return ReceiveWaits(group=entry["group"][:80], sources=format_ranks(ranks), count=count, total_us=total, max_us=longest)


def _all_ints(values: list[Any], low: int, high: int) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) and low <= v <= high for v in values)


def _all_times(values: list[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < MAX_US for v in values)
