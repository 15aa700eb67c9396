"""Every message reaches the broker in order, whatever the client says meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_unit_kit import disk_full_at

from eroica.bus import Headers
from eroica.producers.agent.counters import Counters
from eroica.producers.agent.outbox import MAX_IN_FLIGHT, POISON_ATTEMPTS, RETRY_NS, Outbox
from eroica.producers.agent.spool import Spool
from eroica.producers.agent.spoolrecord import Record
from eroica.schemas.errors import MessageTooLarge

pytestmark = pytest.mark.unit
Report = Callable[[str | None], None]


class Broker:
    """A client whose deliveries the test decides."""

    def __init__(self) -> None:
        self.queue: list[tuple[int, Report]] = []
        self.log: list[int] = []
        self.full = False
        self.refuse: set[int] = set()

    def send(
        self,
        topic: str,
        *,
        key: bytes | str | None,
        value: bytes | None,
        headers: Headers = (),
        on_delivery: Report | None = None,
    ) -> bool:
        assert on_delivery is not None
        number = int(dict(headers)["ce_id"])
        if number in self.refuse and value == b"huge":
            raise MessageTooLarge("too large")
        if self.full:
            return False
        self.queue.append((number, on_delivery))
        return True

    def answer(self, *, error: str | None = None) -> None:
        """Decide everything that is queued."""
        queue, self.queue = self.queue, []
        for number, report in queue:
            if error is None and number not in self.refuse:
                self.log.append(number)
                report(None)
            else:
                report(error or "refused")


def make(folder: Path) -> tuple[Outbox, Broker, Counters]:
    broker, counters = Broker(), Counters()
    return Outbox(Spool(folder, 10**6, segment_bytes=600), broker, counters), broker, counters


def put(outbox: Outbox, *numbers: int, value: bytes = b"v") -> None:
    for number in numbers:
        outbox.put(Record("iterations", "k", value, [("ce_id", str(number).encode())]))


def test_a_message_is_off_the_disk_only_when_the_broker_has_it(tmp_path: Path) -> None:
    outbox, broker, _ = make(tmp_path)
    put(outbox, 1, 2, 3)
    outbox.pump(0)
    assert outbox.pending == 3
    broker.answer()
    outbox.pump(1)
    assert (outbox.pending, broker.log) == (0, [1, 2, 3])


def test_what_was_under_way_at_a_sudden_end_is_sent_by_the_next_agent(tmp_path: Path) -> None:
    outbox, broker, _ = make(tmp_path)
    put(outbox, 1, 2)
    outbox.pump(0)
    broker.answer()
    outbox.pump(1)
    put(outbox, 3, 4)
    outbox.pump(2)
    again, other, _ = make(tmp_path)
    again.pump(0)
    other.answer()
    again.pump(1)
    assert other.log == [3, 4]


def test_after_a_failure_all_from_there_on_are_sent_again_in_order_and_new_ones_behind_them(tmp_path: Path) -> None:
    outbox, broker, _ = make(tmp_path)
    put(outbox, 1, 2, 3)
    outbox.pump(0)
    broker.answer(error="timed out")
    outbox.pump(1)
    put(outbox, 4)
    outbox.pump(2)
    assert broker.queue == [], "not before the pause is over"
    outbox.pump(2 + RETRY_NS)
    broker.answer()
    outbox.pump(3 + RETRY_NS)
    assert (broker.log, outbox.pending) == ([1, 2, 3, 4], 0)


def test_a_full_client_is_tried_again_without_loss(tmp_path: Path) -> None:
    outbox, broker, _ = make(tmp_path)
    broker.full = True
    put(outbox, 1, 2)
    outbox.pump(0)
    broker.full = False
    outbox.pump(RETRY_NS)
    broker.answer()
    outbox.pump(RETRY_NS + 1)
    assert (broker.log, outbox.pending) == ([1, 2], 0)


def test_no_more_are_under_way_than_allowed(tmp_path: Path) -> None:
    outbox, broker, _ = make(tmp_path)
    put(outbox, *range(2 * MAX_IN_FLIGHT))
    outbox.pump(0)
    assert len(broker.queue) == MAX_IN_FLIGHT


def test_a_message_that_alone_is_refused_again_and_again_does_not_block_the_others_for_ever(tmp_path: Path) -> None:
    outbox, broker, counters = make(tmp_path)
    broker.refuse = {2}
    put(outbox, 1, 2, 3)
    now = 0
    for _ in range(POISON_ATTEMPTS + 1):
        outbox.pump(now)
        broker.answer()
        now += 2 * RETRY_NS
        outbox.pump(now)
        now += 2 * RETRY_NS
    assert outbox.pending == 0
    assert counters["messages_poisoned"] == 1
    assert set(broker.log) == {1, 3}


def test_an_outage_however_long_gives_nothing_up(tmp_path: Path) -> None:
    outbox, broker, counters = make(tmp_path)
    put(outbox, 1, 2)
    for turn in range(50):
        outbox.pump(turn * 2 * RETRY_NS)
        broker.answer(error="no broker")
        outbox.pump(turn * 2 * RETRY_NS + 1)
    assert outbox.pending == 2
    assert counters["messages_poisoned"] == 0


def test_a_message_over_its_limit_is_given_up_alone(tmp_path: Path) -> None:
    outbox, broker, counters = make(tmp_path)
    broker.refuse = {2}
    put(outbox, 1)
    put(outbox, 2, value=b"huge")
    put(outbox, 3)
    outbox.pump(0)
    broker.answer()
    outbox.pump(1)
    assert (broker.log, outbox.pending, counters["messages_too_large"]) == ([1, 3], 0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_with_failures_at_random_the_first_arrivals_are_in_order_and_none_is_missing(tmp_path: Path, seed: int) -> None:
    outbox, broker, _ = make(tmp_path)
    dice = random.Random(seed)
    now, number = 0, 0
    for _ in range(60):
        for _ in range(dice.randrange(4)):
            put(outbox, number)
            number += 1
        outbox.pump(now)
        broker.full = dice.random() < 0.2
        if dice.random() < 0.8:
            broker.answer(error="away" if dice.random() < 0.4 else None)
        now += dice.choice([RETRY_NS // 20, RETRY_NS, 3 * RETRY_NS])
    broker.full = False
    for _ in range(3):
        now += 3 * RETRY_NS
        outbox.pump(now)
        broker.answer()
    outbox.pump(now + 1)
    first = list(dict.fromkeys(broker.log))
    assert first == list(range(number))
    assert outbox.pending == 0


def test_a_full_disk_is_said_once_and_its_end_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    spool = Spool(tmp_path, 10**6)
    outbox = Outbox(spool, Broker(), Counters())
    put(outbox, 1)
    with disk_full_at(0):
        put(outbox, 2, 3, 4)
    put(outbox, 5, 6)
    said = [r.message for r in caplog.records if "disk" in r.message]
    assert len(said) == 2 and "full?" in said[0] and "takes messages again; 0 have been given up" in said[1]


def test_with_a_full_disk_messages_are_sent_from_memory_and_in_order(tmp_path: Path) -> None:
    outbox, broker, counters = make(tmp_path)
    put(outbox, 1, 2)
    with disk_full_at(0):
        put(outbox, 3, 4)
        outbox.pump(0)
        broker.answer(error="away")
        outbox.pump(1)
        put(outbox, 5)
        outbox.pump(2 + RETRY_NS)
        broker.answer()
        outbox.pump(3 + RETRY_NS)
        assert (broker.log, outbox.pending, counters.lost) == ([1, 2, 3, 4, 5], 0, 0)
        put(outbox, 6)
        assert outbox.close() == 1, "it is in memory alone"
    assert outbox.pending == 1


def test_what_is_given_up_is_counted_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker, counters = Broker(), Counters()
    outbox = Outbox(Spool(tmp_path, 10**6, segment_bytes=600, memory_bytes=1_000), broker, counters)
    with disk_full_at(0):
        for number in range(100):
            put(outbox, number)
            outbox.pump(0)
    assert counters["spool_dropped"] == counters.lost == 100 - outbox.pending > 50
    assert sum("given up" in message for message in caplog.messages) == 1
