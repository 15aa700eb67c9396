"""Requests that somebody still waits for, and which ranks of this host are to be asked now. Pure.

A rank is not always known when the request is heard: after the agent's start the hooks say hello by and by, while ``control`` is
read from minutes back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from eroica.producers.agent.launches import Run, Worker
from eroica.producers.agent.requests import closed_at_us, past_at_us
from eroica.schemas.control import ProfileRequest, checked_classes
from eroica.schemas.ranks import RankRanges

MAX_OPEN = 1_024
MAX_TEXT = 16 * 2**20
"""Characters of the classes of all open requests together; beyond, the oldest are forgotten."""


class Ask(NamedTuple):
    """A rank that is to be asked."""

    request: ProfileRequest
    run: Run
    worker: Worker
    cls: str


@dataclass
class _Open:
    request: ProfileRequest
    members: dict[str, RankRanges]
    text: int
    asked: set[int] = field(default_factory=set)
    """Ranks that need not be looked at any more."""


class OpenRequests:
    """Names each rank of this host at most once a request. Memory is bounded."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._text = 0

    def add(self, request: ProfileRequest) -> None:
        """A request was heard.

        :raises SchemaError: its classes or lengths make no sense.
        """
        members = checked_classes(request)
        self.drop(request.request)
        text = sum(len(name) + len(ranks) for name, ranks in request.classes.items())
        self._open[request.request] = _Open(request, members, text)
        self._text += text
        while len(self._open) > MAX_OPEN or (self._text > MAX_TEXT and len(self._open) > 1):
            self.drop(next(iter(self._open)))

    def due(
        self,
        runs: Mapping[tuple[str, str], Run],
        answered: Container[tuple[str, int]],
        now_us: int,
        mono_ns: int,
        only: str | None = None,
    ) -> list[Ask]:
        """The ranks to ask now, in ascending order a request; forgets requests that are past.

        :param answered: (request, rank) pairs that need not be asked.
        :param only: this request was just heard: its ranks are asked although group may have closed it by its own clock.
        """
        found: list[Ask] = []
        for one in list(self._open.values()):
            request = one.request
            if now_us > past_at_us(request):
                self.drop(request.request)
                continue
            run = runs.get((request.job, request.run_id))
            just_heard = request.request == only
            if (
                run is None
                or run.refused
                or run.workers.keys() <= one.asked
                or (now_us > closed_at_us(request) and not just_heard)
            ):
                continue
            for rank in sorted(run.workers.keys() - one.asked):
                worker = run.workers[rank]
                if request.mode == "profile" and not _settled(worker, mono_ns):
                    continue
                one.asked.add(rank)
                cls = next((name for name in sorted(one.members) if rank in one.members[name]), None)
                if cls is not None and (request.request, rank) not in answered:
                    found.append(Ask(request, run, worker, cls))
        return found

    def drop(self, request: str) -> None:
        """Forget it."""
        one = self._open.pop(request, None)
        if one is not None:
            self._text -= one.text

    def ids(self) -> set[str]:
        """Requests that are open."""
        return set(self._open)


def _settled(worker: Worker, mono_ns: int) -> bool:
    return not worker.alive or mono_ns >= worker.settles_ns
