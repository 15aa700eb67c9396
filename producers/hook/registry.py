"""Small numbers for long-lived objects: which loader, which optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Hashable

MAX_TRACKED = 4096
"""Above this the table is emptied: a program that makes loaders without end must not make us grow."""


class Registry:
    """Gives each object a number that stays the same while it lives.

    An object with the same *likeness* as one that has died inherits its number, so that a loader built anew for every epoch stays
    the same loader to the signature. Objects are held weakly.
    """

    __slots__ = ("_by_id", "_by_likeness", "_next")

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref[object], int]] = {}
        self._by_likeness: dict[Hashable, list[tuple[weakref.ref[object], int]]] = {}
        self._next = 0

    def known(self, obj: object) -> int:
        """The number of *obj*, or -1 where it has none yet."""
        entry = self._by_id.get(id(obj))
        return entry[1] if entry is not None and entry[0]() is obj else -1

    def token(self, obj: object, likeness: Hashable) -> int:
        """The number of *obj*.

        :raises TypeError: if *obj* cannot be referred to weakly.
        """
        known = self.known(obj)
        return known if known >= 0 else self._admit(obj, likeness)

    def _admit(self, obj: object, likeness: Hashable) -> int:
        if len(self._by_id) >= MAX_TRACKED:
            self._by_id.clear()
            self._by_likeness.clear()
        alike = self._by_likeness.setdefault(likeness, [])
        entry = None
        for index, (reference, token) in enumerate(alike):
            if reference() is None:
                entry = alike[index] = (weakref.ref(obj), token)
                break
        if entry is None:
            entry = (weakref.ref(obj), self._next)
            self._next += 1
            alike.append(entry)
        self._by_id[id(obj)] = entry
        return entry[1]
