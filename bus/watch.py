"""Saying in plain lines that the broker is away or lacks topics, for services whose clients only wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from eroica.bus.config import full_name
from eroica.bus.outage import Outage
from eroica.bus.probe import BrokerInfo, check_broker
from eroica.bus.recreated import created_again, topic_ids
from eroica.schemas.errors import BrokerAway, BrokerError, TopicMissing
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS

_log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Between two looks at the broker."""


def need_topics(info: BrokerInfo, settings: KafkaSettings, topics: Iterable[str]) -> None:
    """See that *topics* (short names) are there.

    :raises TopicMissing: names those that are not.
    """
    missing = [name for topic in topics if (name := full_name(settings, topic)) not in info.topics]
    if missing:
        raise TopicMissing(
            f"topics are missing: {', '.join(missing)}", where=settings.bootstrap, do="create them with: eroica topics ensure"
        )


def narrow_topics(info: BrokerInfo, settings: KafkaSettings, topics: Iterable[str]) -> str:
    """Those of *topics* (short names) that have fewer partitions than the table wants, in one sentence; empty if none has.

    A broker that creates topics by itself, for whatever client asks about them, does so with a number of its own.
    """
    wanted = {full_name(settings, topic): TOPICS[topic].partitions for topic in topics if topic in TOPICS}
    found = [f"{name} has {info.topics[name]} of {want}" for name, want in wanted.items() if info.topics.get(name, want) < want]
    return f"topics have too few partitions: {', '.join(found)}; widen them with: eroica topics ensure" if found else ""


class BrokerWatch:
    """A thread that looks at the broker now and then. A context manager.

    It changes nothing: clients find their way back by themselves. What fails once (a broker that is just starting) is not said.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        what: str,
        topics: Iterable[str],
        *,
        away: bool = True,
        recreated: Callable[[list[str]], None] | None = None,
    ) -> None:
        """*what* waits, as the log calls it. Topics are there when it begins.

        :param away: false where another one tells of a broker that is away.
        :param recreated: called from the thread with topics that were created again since the begin.
        """
        self._settings = settings
        self._topics = tuple(topics)
        self._recreated = recreated
        self._ids = topic_ids(settings, self._topics) if recreated is not None else {}
        self._away = away
        self._outage = Outage(what)
        self._failed_before = False
        self._told_narrow = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eroica-watch", daemon=True)

    def __enter__(self) -> BrokerWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """One look."""
        try:
            info = check_broker(self._settings)
            need_topics(info, self._settings, self._topics)
        except BrokerError as error:
            told = self._away or isinstance(error, TopicMissing) or not isinstance(error, BrokerAway)
            if self._failed_before and told:
                self._outage.failed(error)
            self._failed_before = True
        else:
            self._failed_before = False
            self._outage.over()
            narrow = narrow_topics(info, self._settings, self._topics)
            if narrow and narrow != self._told_narrow:
                _log.error("%s", narrow)
            self._told_narrow = narrow
            again = self.created_again()
            if again and self._recreated is not None:
                self._recreated(again)

    def created_again(self) -> list[str]:
        """The topics that were created again since the begin."""
        return created_again(self._ids, topic_ids(self._settings, self._topics)) if self._ids else []
