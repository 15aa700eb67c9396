"""Reading ``control`` and ``jobs`` without a consumer group, in threads that outlive a broker that goes away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from eroica.bus import Incoming, read_partitions
from eroica.producers.agent.announce import Row, row_of
from eroica.schemas.codec import decode_as
from eroica.schemas.errors import EroicaError, SchemaError
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

LOOK_BACK_MS = 600_000
"""Requests of so long before the agent's start are still read: it may have been restarted in the middle of one."""
RETRY_S = 2.0
MAX_ROWS = 100_000
CLOSE_S = 3.0
LOOK_S = 60.0
"""A look at ``jobs`` that takes longer is given up: enough for a large installation's topic. Nothing waits for it so long."""


class ControlReader:
    """Follows all partitions of ``control`` in a thread and hands every record over."""

    def __init__(self, settings: KafkaSettings, client_id: str, now_ms: int, deliver: Callable[[list[Incoming]], None]) -> None:
        self._settings = settings
        self._client_id = client_id
        self._start_ms = now_ms - LOOK_BACK_MS
        self._deliver = deliver
        self._stop = threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="eroica-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for batch in read_partitions(
                    self._settings, "control", start=self._start_ms, stop=self._stop.is_set, client_id=self._client_id
                ):
                    if self._told:
                        _log.info("control is read again")
                        self._told = ""
                    if batch:
                        self._deliver(batch)
            except EroicaError as error:
                # Said once; tried until it works, since the agent may be up before the broker or its topics.
                if str(error) != self._told:
                    self._told = str(error)
                    _log.error("no requests can be read: %s", error)
                self._stop.wait(RETRY_S)


class JobsLookup:
    """Reads ``jobs`` once when it is asked to, for the rows of a few names. One look-up at a time, in a thread."""

    def __init__(
        self, settings: KafkaSettings, client_id: str, report: Callable[[frozenset[str], list[Row] | None], None]
    ) -> None:
        """:param report: called from the thread with the names asked for and their rows, or ``None`` where reading failed."""
        self._settings = settings
        self._client_id = client_id
        self._report = report
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a look-up runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, jobs: Iterable[str]) -> None:
        """Begin a look-up; the caller has seen that none runs."""
        names = frozenset(jobs)
        self._thread = threading.Thread(target=self._run, args=(names,), name="eroica-jobs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give up a look-up that runs."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self, names: frozenset[str]) -> None:
        rows: dict[bytes, Row] = {}
        whole = threading.Event()
        deadline = time.monotonic() + LOOK_S

        def stop() -> bool:
            return self._stop.is_set() or time.monotonic() > deadline

        try:
            for batch in read_partitions(
                self._settings, "jobs", to_end=True, on_caught_up=whole.set, stop=stop, client_id=self._client_id, poll_s=0.05
            ):
                for record in batch:
                    self._take(record, names, rows)
        except EroicaError as error:
            _log.debug("jobs cannot be read: %s", error)
            self._report(names, None)
            return
        # What a slow broker did not tell in time is no absence of rivals.
        self._report(names, list(rows.values()) if whole.is_set() else None)

    def _take(self, record: Incoming, names: frozenset[str], rows: dict[bytes, Row]) -> None:
        key = record.key or b""
        # Most records are of other jobs: their keys tell, and they need not be decoded.
        if key.rpartition(b"/")[0].decode("utf-8", "replace") not in {name.replace("/", "_") for name in names}:
            return
        if not record.value:
            rows.pop(key, None)
            return
        try:
            row = row_of(decode_as(JobAnnouncement, record.value, record.where))
        except SchemaError as error:
            _log.debug("%s", error)
            return
        if row.job in names and (key in rows or len(rows) < MAX_ROWS):
            rows[key] = row
