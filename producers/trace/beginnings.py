"""Operations written as a beginning and an end (``ph: B`` and ``E``), as the Chrome trace format allows: made whole again.

An end closes the latest beginning of its thread that is open; the name and arguments are the beginning's. Bounded: of more open
ones than ``MAX_OPEN`` the further are dropped with their ends and counted.
"""

from __future__ import annotations

from eroica.producers.trace.events import Event

MAX_OPEN = 100_000
"""Beginnings of all threads that wait for their end. A stack of calls is some hundreds deep."""
PHASES = frozenset("BE")


def has_halves(data: bytes, start: int, stop: int) -> bool:
    """Whether ``data[start:stop]``, to the end for a negative *stop*, may hold a beginning or an end."""
    end = stop if stop >= 0 else len(data)
    return data.find(b'"B"', start, end) >= 0 or data.find(b'"E"', start, end) >= 0


class Beginnings:
    """The beginnings of one trace that are open, from batch to batch."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], list[Event]] = {}
        self._too_many: dict[tuple[str, str], int] = {}
        """Of a thread: beginnings that were dropped and whose ends are still to come."""
        self._count = 0
        self.dropped = 0
        """Beginnings and ends that were dropped, those that are still open aside."""

    @property
    def left(self) -> int:
        """Beginnings without an end, so far."""
        return self._count

    def whole(self, events: list[Event]) -> list[Event]:
        """The complete events of a batch, in the order in which they were complete; all others but pairs pass by."""
        out = []
        for event in events:
            if event.ph == "X":
                out.append(event)
            elif event.ph in PHASES and (done := self._paired(event)) is not None:
                out.append(done)
        return out

    def _paired(self, event: Event) -> Event | None:
        where = str(event.pid), str(event.tid)  # a mended event has texts where others have numbers
        if event.ph == "B":
            if self._count >= MAX_OPEN:
                if where in self._too_many or len(self._too_many) < MAX_OPEN:
                    self._too_many[where] = self._too_many.get(where, 0) + 1
                self.dropped += 1
                return None
            self._open.setdefault(where, []).append(event)
            self._count += 1
            return None
        if self._too_many.get(where, 0):
            self._too_many[where] -= 1
            self.dropped += 1
            return None
        waiting = self._open.get(where)
        if not waiting:
            self.dropped += 1
            return None
        begun = waiting.pop()
        if not waiting:
            del self._open[where]
        self._count -= 1
        return Event("X", begun.cat, begun.name, begun.pid, begun.tid, begun.ts, event.ts - begun.ts, begun.args or event.args)
