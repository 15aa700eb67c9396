"""What this process has said to the last requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from eroica.producers.hook.command import ProfileCommand

REMEMBERED = 64
"""Requests, with what was said to them."""


class Said:
    """Gives every answer once, and once more to whoever asks again: an agent whose predecessor died with the answer."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report
        self._answers: OrderedDict[tuple[str, int], dict[str, Any] | None] = OrderedDict()
        """By request and attempt; ``None`` while there is none yet."""

    def before(self, command: ProfileCommand) -> bool:
        """Whether *command* came before; if it was answered, the answer is repeated."""
        key = (command.request, command.attempt)
        if key in self._answers:
            answer = self._answers[key]
            if answer is not None:
                self._report(answer)
            return True
        self._answers[key] = None
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return False

    def say(self, command: ProfileCommand, answer: dict[str, Any]) -> None:
        """The fields of the ``profiled`` message; from any thread."""
        key = (command.request, command.attempt)
        if key in self._answers:
            self._answers[key] = answer
        self._report(answer)
