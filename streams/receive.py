"""Receive waits of expert-parallel exchanges become columns."""

from __future__ import annotations

from eroica.schemas.errors import SchemaError
from eroica.schemas.groups import ReceiveColumns, ReceiveGroup
from eroica.schemas.ranks import RankRanges
from eroica.schemas.summaries import MAX_RECEIVE_GROUPS, MAX_SOURCES, Summary


class ReceiveTable:
    """Collects the exchanges of the workers of a chunk; those that contradict themselves are left out, the worker is not."""

    def __init__(self) -> None:
        self.columns = ReceiveColumns()
        self._number: dict[tuple[str, str], int] = {}
        self._size: dict[str, int] = {}

    def add(self, row: int, summary: Summary) -> None:
        """The exchanges of the worker in *row*."""
        into = self.columns
        for told in summary.receive_waits[:MAX_RECEIVE_GROUPS]:
            if len(told.total_us) == len(told.max_us) == self._sources(told.sources):
                into.row.append(row)
                into.group.append(self._number.setdefault((told.group, told.sources), len(self._number)))
                into.count.append(told.count)
                into.total_us.append(told.total_us)
                into.max_us.append(told.max_us)

    def groups(self) -> list[ReceiveGroup]:
        """All exchanges, in the order of their first appearance."""
        return [ReceiveGroup(name=name, sources=sources) for name, sources in self._number]

    def _sources(self, text: str) -> int:
        """How many sources there are; -1 if they are none or too many."""
        if text not in self._size:
            try:
                size = len(RankRanges.parse(text))
            except SchemaError:
                size = 0
            self._size[text] = size if 0 < size <= MAX_SOURCES else -1
        return self._size[text]
