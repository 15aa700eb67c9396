"""Follows topics beside the localizer's own work: feedback, and healthy profiles. Without them verdicts go out all the same."""

from __future__ import annotations

import logging
import threading
from functools import partial
from types import TracebackType

from eroica.bus.consumer import read_partitions
from eroica.bus.message import Incoming
from eroica.bus.outage import patiently
from eroica.localizer.feedback import FeedbackTable, Heard
from eroica.localizer.frame import Frame
from eroica.localizer.own import Past
from eroica.localizer.profiles import HealthyPast
from eroica.schemas.codec import decode_as
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import EroicaError, SchemaError
from eroica.schemas.memory import Baseline, Feedback
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

READ_S = 20.0
"""The first reading may take so long; verdicts do not wait for more."""
STOP_S = 5.0
MAX_COMPLAINTS, COMPLAIN_EVERY = 3, 1_000
"""Lines about messages that cannot be read: the first ones, and one of so many."""


class Follower:
    """A thread that reads all of a topic and then follows it. A context manager."""

    topic = ""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._stop, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"eroica-{self.topic}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        if not self._ready.wait(READ_S):
            _log.warning("%s was not read within %g s: the first verdicts go out without it", self.topic, READ_S)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def _take(self, record: Incoming) -> None:
        """One record, with the lock held. Must not raise."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            position: dict[int, int] = {}
            for to_end in (True, False):
                patiently(partial(self._read, position, to_end), self.topic, stop=self._stop.is_set)
                self._ready.set()
        except EroicaError as error:
            _log.warning("%s is not read, verdicts go without it: %s", self.topic, error)
        finally:
            self._ready.set()

    def _read(self, position: dict[int, int], to_end: bool) -> None:
        """Go on from *position*, which is kept up to date."""
        for batch in read_partitions(
            self._settings,
            self.topic,
            start=position,
            to_end=to_end,
            stop=self._stop.is_set,
            client_id=f"eroica-localize-{self.topic}",
        ):
            with self._lock:
                for record in batch:
                    position[record.partition] = record.offset + 1
                    self._take(record)


class FeedbackReader(Follower):
    """Called with a request it tells which votes count."""

    topic = "feedback"

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self._table = FeedbackTable()

    def __call__(self, request: ProfileRequest) -> Heard:
        """What was heard so far."""
        with self._lock:
            return self._table.heard(request.issued_at_us)

    def _take(self, record: Incoming) -> None:
        try:
            vote = decode_as(Feedback, record.value, record.where)
        except SchemaError:
            vote = None
        self._table.feed(vote, InputRef("feedback", record.partition, record.offset))


class PastReader(Follower):
    """Healthy profiles of all jobs, also those that other localizers found. Read and added to from any thread."""

    topic = "baselines"

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self.profiles: HealthyPast = _Shared(self._lock)
        self.bad = 0
        """Messages that cannot be read, or contradict themselves."""

    def _take(self, record: Incoming) -> None:
        if not record.value:
            self.profiles.forget((record.key or b"").decode(errors="replace"))
            return
        try:
            profile = decode_as(Baseline, record.value, record.where)
        except SchemaError as error:
            self._complain(str(error))
            return
        if not self.profiles.add(profile):
            self._complain(f"{record.where}: its figures contradict each other")

    def _complain(self, why: str) -> None:
        """Of a flood some lines are enough."""
        self.bad += 1
        if self.bad <= MAX_COMPLAINTS or self.bad % COMPLAIN_EVERY == 0:
            _log.warning("a healthy profile is left out (%d so far): %s", self.bad, why)


class _Shared(HealthyPast):
    """With a lock that its owner may hold already."""

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__()
        self._lock = lock

    def add(self, baseline: Baseline) -> bool:
        with self._lock:
            return super().add(baseline)

    def before(self, frame: Frame, wanted: str | None = None) -> Past | None:
        with self._lock:
            return super().before(frame, wanted)
