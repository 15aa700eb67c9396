"""Following the pipeline's topics from outside, as any consumer would."""

from __future__ import annotations

import queue
import threading

from eroica.bus import read_partitions
from eroica.offline.record import job_of
from eroica.schemas.base import Message
from eroica.schemas.codec import decode
from eroica.schemas.errors import EroicaError, SchemaError
from eroica.schemas.settings import KafkaSettings

TOPICS = ("jobs", "partials", "control", "summaries", "groups", "verdicts")
MAX_WAITING = 10_000


class Watcher:
    """A thread a topic; messages of one job arrive in :meth:`next`, errors are raised there."""

    def __init__(self, settings: KafkaSettings, job: str) -> None:
        self._settings, self._job = settings, job
        self._found: queue.Queue[Message | EroicaError] = queue.Queue(MAX_WAITING)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(topic,), daemon=True, name=f"watch-{topic}") for topic in TOPICS
        ]
        for thread in self._threads:
            thread.start()

    def next(self, timeout_s: float) -> Message | None:
        """The next message, or ``None`` when none came in time.

        :raises EroicaError: a topic can no longer be followed.
        """
        try:
            found = self._found.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(found, EroicaError):
            raise found
        return found

    def close(self) -> None:
        """Stop following."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=3.0)

    def _follow(self, topic: str) -> None:
        try:
            for batch in read_partitions(self._settings, topic, stop=self._stop.is_set, client_id="eroica-demo"):
                for record in batch:
                    try:
                        message = decode(topic, record.value, record.where)
                    except SchemaError:
                        continue
                    if job_of(message) == self._job:
                        self._put(message)
        except EroicaError as error:
            self._put(error)

    def _put(self, item: Message | EroicaError) -> None:
        while not self._stop.is_set():
            try:
                self._found.put(item, timeout=0.2)
                return
            except queue.Full:
                continue
