"""A service that cannot go on with what it knows runs its command again, in the same process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from eroica.bus.outage import patiently
from eroica.bus.recreated import forget_offsets
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

RECREATED = "EROICA_RECREATED_TOPICS"
"""From a process to itself: topics whose offsets are void."""


class Again:
    """Begins the command anew, where it was begun."""

    def __init__(self, what: str) -> None:
        """To be made before anything changes the working directory.

        :param what: the service, as the log calls it, which is also its consumer group.
        """
        self._what = what
        self._began_in = Path.cwd()
        self._void = [topic for topic in os.environ.pop(RECREATED, "").split(",") if topic]

    def forget(self, settings: KafkaSettings, stop: Callable[[], bool]) -> None:
        """If this is such a new begin, let the group read topics that were created again from their beginning.

        :raises BrokerError: as :func:`forget_offsets`; a broker that is away is waited for.
        """
        if self._void:
            patiently(lambda: forget_offsets(settings, self._what, self._void, stop=stop), self._what, stop=stop)

    def read_anew(self, recreated: list[str]) -> None:
        """Topics were created again: begin anew, at once. From any thread."""
        _log.warning(
            "%s begins anew: topics were created again, and are read from their beginning: %s", self._what, ", ".join(recreated)
        )
        self.run(recreated)

    def run(self, recreated: Iterable[str] = ()) -> None:
        """Does not return; what was not committed is read again."""
        os.environ[RECREATED] = ",".join(recreated)
        os.chdir(self._began_in)
        logging.shutdown()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
