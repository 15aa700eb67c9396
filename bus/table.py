"""A compacted topic as a dictionary that keeps itself up to date."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from eroica.bus.consumer import read_partitions
from eroica.bus.message import Incoming
from eroica.bus.outage import patiently
from eroica.schemas.errors import BrokerAway, EroicaError, InvalidInput
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_KEYS = 100_000
"""Keys kept at most: a topic that somebody floods cannot take the process's memory."""
SETTLE_S = 0.5
"""The table counts as read when every partition met its end and was quiet for this long. End offsets alone are not enough:
the embedded broker reports them too low. A message that comes later is applied all the same."""


class CompactedTable(Generic[T]):
    """Reads all of *topic* in a background thread, then follows it: the last message of each key wins, a tombstone deletes.

    A message that *decode* refuses (any :class:`InvalidInput`) is counted in :attr:`bad` and leaves the key as it was. Reading
    survives a broker that goes away. Safe to read from any thread.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        decode: Callable[[bytes], T],
        *,
        key_of: Callable[[bytes, T], bytes] | None = None,
        max_keys: int = MAX_KEYS,
        client_id: str = "eroica-table",
    ) -> None:
        """Start reading.

        :param key_of: row under another key than the message's, made of it and of the message: several rows for one key.
        """
        self._settings = settings
        self._topic = topic
        self._decode = decode
        self._key_of = key_of
        self._max_keys = max_keys
        self._client_id = client_id
        self._rows: dict[bytes, T] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._failure: EroicaError | None = None
        self.bad = 0
        """Messages that could not be decoded."""
        self.over_limit = 0
        """Messages of new keys left out since the table is full."""
        self._thread = threading.Thread(target=self._run, name=f"eroica-table-{topic}", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Return once everything that was on the topic at the start has been read.

        :raises BrokerError: when that takes longer than *timeout_s*, or reading failed for good.
        """
        if not self._ready.wait(timeout_s):
            raise BrokerAway(
                f"the topic was not read within {timeout_s:g} s", where=self._topic, do="check that the broker is up"
            )
        if self._failure is not None:
            raise self._failure

    @property
    def ready(self) -> bool:
        """Whether the first full reading is done and the thread still follows the topic."""
        return self._ready.is_set() and self._failure is None

    def get(self, key: bytes | str) -> T | None:
        """The last message of *key*."""
        with self._lock:
            return self._rows.get(key.encode() if isinstance(key, str) else key)

    def snapshot(self) -> Mapping[bytes, T]:
        """A copy of the whole table; it does not change afterwards."""
        with self._lock:
            return MappingProxyType(dict(self._rows))

    def close(self) -> None:
        """Stop following the topic."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def __enter__(self) -> CompactedTable[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            resume = self._read_all()
            self._ready.set()
            if not self._stop.is_set():
                patiently(lambda: self._follow(resume), f"table {self._topic}", stop=self._stop.is_set)
        except EroicaError as error:
            _log.warning("table %s stopped: %s", self._topic, error)
            self._failure = error
            self._ready.set()

    def _follow(self, resume: dict[int, int]) -> None:
        """Read on from *resume*, which is kept up to date."""
        for batch in read_partitions(
            self._settings, self._topic, start=resume, stop=self._stop.is_set, client_id=self._client_id
        ):
            self._apply(batch)
            for message in batch:
                resume[message.partition] = message.offset + 1

    def _read_all(self) -> dict[int, int]:
        """Read to the end; returns the next offset of each partition that had messages."""
        resume: dict[int, int] = {}
        for batch in read_partitions(
            self._settings,
            self._topic,
            to_end=True,
            settle_s=SETTLE_S,
            poll_s=0.05,
            stop=self._stop.is_set,
            client_id=self._client_id,
        ):
            self._apply(batch)
            for message in batch:
                resume[message.partition] = message.offset + 1
        return resume

    def _apply(self, batch: list[Incoming]) -> None:
        for message in batch:
            key = message.key or b""
            if not message.value:
                with self._lock:
                    self._rows.pop(key, None)
                continue
            try:
                row = self._decode(message.value)
                key = key if self._key_of is None else self._key_of(key, row)
            except InvalidInput as error:
                self.bad += 1
                _log.debug("%s: %s", message.where, error)
                continue
            with self._lock:
                if key not in self._rows and len(self._rows) >= self._max_keys:
                    self.over_limit += 1
                else:
                    self._rows[key] = row


def wait_for(
    table: CompactedTable[T], key: bytes | str, timeout_s: float, *, clock: Callable[[], float] = time.monotonic
) -> T | None:
    """The row of *key*, waiting for it at most *timeout_s*; ``None`` when it did not come."""
    deadline = clock() + timeout_s
    while (row := table.get(key)) is None and clock() < deadline:
        time.sleep(0.02)
    return row
