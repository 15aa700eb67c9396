"""What was dropped, refused or lost on this host: every name in one place."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "datagrams_malformed": "datagrams that are neither an event nor a message",
        "datagrams_over_limit": "datagrams dropped since the agent was behind",
        "rings_refused": "memory that came with a hello and was no ring of events, or one too many",
        "hellos_refused": "hellos that contradict themselves or come from another release",
        "hellos_over_limit": "processes beyond the number that is followed",
        "events_before_hello_dropped": "processes forgotten that sent events and no hello",
        "iterations_repeated": "iterations that had been reported already",
        "iterations_over_limit": "iterations of a rank beyond what waits for one batch",
        "processes_gone_without_goodbye": "training processes that ended without a goodbye",
        "requests_bad": "messages on control that cannot be read",
        "requests_past": "requests too old to be served",
        "requests_repeated": "requests seen before",
        "commands_unsent": "profile commands that a process never took",
        "profiles_unanswered": "profiles that did not come by their deadline",
        "profiles_unasked": "profiles that nobody asked for, or that came after their deadline",
        "profiles_repeated": "profiles taken again without stacks, since the first gave no summary",
        "summaries_failed": "summarisers that crashed or took too long",
        "messages_broke_us": "datagrams and requests that met a mistake of ours",
        "messages_too_large": "messages over the limit of their topic",
        "messages_poisoned": "messages that the broker refused again and again while it took others",
        "spool_dropped": "messages given up since disk spool and memory were full",
        "spool_corrupt": "spool files with a damaged part",
    }
)
_LOST = ("datagrams_malformed", "datagrams_over_limit", "iterations_over_limit", "spool_dropped", "messages_poisoned")


class Counters:
    """Counts by name. Not thread-safe: one thread owns it."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(NAMES, 0)

    def add(self, name: str, number: int = 1) -> None:
        """Count *number* more of *name*.

        :raises KeyError: for a name that is not in ``NAMES``: a programming error.
        """
        self._counts[name] += number

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    @property
    def lost(self) -> int:
        """Datagrams and messages known to be lost on this host."""
        return sum(self._counts[name] for name in _LOST)

    def snapshot(self) -> dict[str, int]:
        """All counts, in the order of ``NAMES``."""
        return dict(self._counts)
