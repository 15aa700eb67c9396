"""Waiting for a broker that is away, for as long as it takes, and saying so now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from eroica.bus.consumer import never
from eroica.bus.probe import BrokerInfo, check_broker
from eroica.schemas.errors import BrokerAway
from eroica.schemas.settings import KafkaSettings

_log = logging.getLogger(__name__)

T = TypeVar("T")

SAY_EVERY_S = 30.0
"""Between two lines about one outage."""
RETRY_S = 1.0
"""Between two tries; also how late a stop is noticed, besides the call's own limit."""


class Outage:
    """What is said of one thing that waits for the broker: the first failure, one line each ``SAY_EVERY_S``, and the end."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """*what* waits, as the log calls it."""
        self._what = what
        self._clock = clock
        self._since: float | None = None
        self._said = 0.0

    def failed(self, why: object) -> None:
        """Another try failed."""
        now = self._clock()
        if self._since is None:
            self._since = self._said = now
            _log.warning("%s waits for the broker: %s", self._what, why)
        elif now - self._said >= SAY_EVERY_S:
            self._said = now
            _log.warning("%s has waited for the broker for %.0f s: %s", self._what, now - self._since, why)

    def over(self) -> None:
        """It succeeded."""
        if self._since is not None:
            _log.warning("%s goes on after %.0f s", self._what, self._clock() - self._since)
            self._since = None


def patiently(
    call: Callable[[], T],
    what: str,
    *,
    stop: Callable[[], bool] = never,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The result of *call*, which is called again for as long as it raises :class:`BrokerAway`.

    :param what: what waits, for the log.
    :raises BrokerAway: it did once more, and *stop* says that nobody waits any longer.
    :raises EroicaError: whatever else *call* raises, at once.
    """
    outage = Outage(what, clock=clock)
    while True:
        try:
            result = call()
        except BrokerAway as error:
            if stop():
                raise
            outage.failed(error)
            sleep(RETRY_S)
        else:
            outage.over()
            return result


def wait_for_broker(
    settings: KafkaSettings,
    what: str,
    *,
    stop: Callable[[], bool] = never,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> BrokerInfo:
    """:func:`check_broker` for a service that starts: once something took our connection, an outage is waited out.

    :raises BrokerAway: nothing has ever listened at the address, or *stop* says that nobody waits any longer.
    :raises BrokerError: what waiting does not cure: credentials, another protocol, addresses that cannot be reached.
    :raises UsageError: the address is not ``host:port``.
    """
    met = False

    def check() -> BrokerInfo:
        nonlocal met
        try:
            return check_broker(settings)
        except BrokerAway as error:
            met = met or error.reached
            raise

    return patiently(check, what, stop=lambda: stop() or not met, clock=clock, sleep=sleep)
