"""Which ranks of this host have answered which requests, on disk: an agent that takes over does not ask them again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from eroica.schemas.ids import stable_id

KEEP_US = 660_000_000
"""Longer than ``control`` is read back at a start."""
MAX_BYTES = 4 * 2**20
"""Of the file at a start; what is beyond is asked again, which changes nothing."""


class Answered:
    """A set that is appended to a file. Losing it does no harm: of two answers of a rank the first counts."""

    def __init__(self, path: Path) -> None:
        """Take over what a predecessor wrote to *path*."""
        self._path = path
        self._until: dict[tuple[str, int], int] = {}
        with suppress(OSError), path.open("rb") as file:
            for line in file.read(MAX_BYTES).splitlines():
                words = line.decode("ascii", "replace").split()
                if len(words) == 3 and words[0].isdecimal() and words[2].isdecimal():
                    self._until[(words[1], int(words[2]))] = int(words[0])

    def __contains__(self, key: object) -> bool:
        """Whether *key*, a (request, rank) pair, has answered."""
        return isinstance(key, tuple) and len(key) == 2 and (_name(key[0]), key[1]) in self._until

    def add(self, request: str, rank: int, now_us: int) -> None:
        """*rank* has answered *request*."""
        until_us = self._until[(_name(request), rank)] = now_us + KEEP_US
        with suppress(OSError), self._path.open("a", encoding="ascii") as file:
            file.write(_line(until_us, _name(request), rank))

    def forget(self, now_us: int) -> None:
        """Drop what no request can ask for any more."""
        left = {key: until for key, until in self._until.items() if until > now_us}
        if len(left) == len(self._until):
            return
        self._until = left
        part = self._path.with_name(self._path.name + ".part")
        with suppress(OSError):
            part.write_text("".join(_line(until, *key) for key, until in left.items()), encoding="ascii")
            part.replace(self._path)


def _name(request: str) -> str:
    """A request's id comes from the network; this says nothing of it."""
    return stable_id("r", request)


def _line(until_us: int, name: str, rank: int) -> str:
    return f"{until_us} {name} {rank}\n"
