from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agent_kit import JobServer, RunningAgent, RunningJob, Topics

from eroica.bus import ensure_topics
from eroica.bus.local import EmbeddedBroker
from eroica.schemas.settings import KafkaSettings


@pytest.fixture
def settings(tansu: EmbeddedBroker, prefix: str) -> KafkaSettings:
    made = KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(made)
    return made


@pytest.fixture(scope="session")
def jobs() -> Iterator[JobServer]:
    pytest.importorskip("torch")
    server = JobServer()
    yield server
    server.close()


@pytest.fixture
def topics(settings: KafkaSettings) -> Iterator[Topics]:
    followed = Topics(settings)
    yield followed
    followed.end()


@pytest.fixture
def running() -> Iterator[list[RunningAgent | RunningJob | Topics]]:
    """What a test started; ended after it whatever happens."""
    started: list[RunningAgent | RunningJob | Topics] = []
    yield started
    for one in reversed(started):
        if isinstance(one, RunningJob | Topics):
            one.end()
        elif one.process.poll() is None:
            one.kill()
