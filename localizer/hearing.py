"""Follows the topic of feedback beside the localizer's own work; without it verdicts go out all the same, without counts."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from eroica.bus.consumer import read_partitions
from eroica.localizer.feedback import FeedbackTable, Heard
from eroica.schemas.codec import decode_as
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import EroicaError, SchemaError
from eroica.schemas.memory import Feedback
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

CLIENT = "eroica-localize-feedback"
READ_S = 20.0
"""The first reading may take so long; verdicts do not wait for more."""
STOP_S = 5.0


class FeedbackReader:
    """A thread that reads all of ``feedback`` and then follows it. Called with a request it tells what counts."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._table = FeedbackTable()
        self._lock = threading.Lock()
        self._stop, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="eroica-feedback", daemon=True)

    def __enter__(self) -> FeedbackReader:
        self._thread.start()
        if not self._ready.wait(READ_S):
            _log.warning("feedback was not read within %g s: the first verdicts go out without its counts", READ_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def __call__(self, request: ProfileRequest) -> Heard:
        """What was heard so far."""
        with self._lock:
            return self._table.heard(request.issued_at_us)

    def _run(self) -> None:
        try:
            position = self._read({}, to_end=True)
            self._ready.set()
            self._read(position, to_end=False)
        except EroicaError as error:
            _log.warning("feedback is not read, verdicts go without its counts: %s", error)
        finally:
            self._ready.set()

    def _read(self, position: dict[int, int], *, to_end: bool) -> dict[int, int]:
        for batch in read_partitions(
            self._settings, "feedback", start=position, to_end=to_end, stop=self._stop.is_set, client_id=CLIENT
        ):
            for record in batch:
                position[record.partition] = record.offset + 1
                try:
                    vote = decode_as(Feedback, record.value, record.where)
                except SchemaError:
                    vote = None
                with self._lock:
                    self._table.feed(vote, InputRef("feedback", record.partition, record.offset))
        return position
