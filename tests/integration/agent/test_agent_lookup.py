"""A look at ``jobs`` tells of what stands there, or that it could not be read; never half of it."""

from __future__ import annotations

import queue

import pytest

from eroica.bus import BusProducer
from eroica.bus.producer import wait_delivered
from eroica.producers.agent import readers
from eroica.producers.agent.announce import Row
from eroica.producers.agent.readers import JobsLookup
from eroica.schemas.codec import encode
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.settings import KafkaSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("look_s", "names", "hosts"), [(100.0, {"j"}, ["a", "b"]), (100.0, {"other"}, []), (-1.0, {"j"}, None)])
def test_a_look_is_whole_or_failed(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch, look_s: float, names: set[str], hosts: list[str] | None
) -> None:
    monkeypatch.setattr(readers, "LOOK_S", look_s)
    with BusProducer(settings) as producer:
        for job, host in (("j", "a"), ("j", "b"), ("k", "c")):
            announced = JobAnnouncement(job=job, run_id="r", host=host, world_size=1, ranks=[])
            producer.send("jobs", key=f"{job}/{host}", value=encode(announced))
        wait_delivered(producer, 100)
    told: queue.SimpleQueue[list[Row] | None] = queue.SimpleQueue()
    lookup = JobsLookup(settings, "test", lambda _, rows: told.put(rows))
    lookup.start(names)
    rows = told.get(timeout=200)
    lookup.close()
    assert (rows if rows is None else sorted(row.host for row in rows)) == hosts
