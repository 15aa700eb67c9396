"""Brokers for the tests, started once a session; a fresh topic prefix for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings as hypothesis_settings

from eroica.bus.local import EmbeddedBroker, KafkaCluster
from eroica.schemas.errors import MissingDependency

REQUIRE = "EROICA_REQUIRE_KAFKA"
BROKER_FIXTURES = frozenset({"kafka", "kafka3", "tansu", "broker"})
FIRST_START_TIMEOUT_S = 600
"""The first start on a machine fetches 54 MB of jars, and that falls on whichever test comes first."""


hypothesis_settings.register_profile("eroica", deadline=None)
hypothesis_settings.load_profile("eroica")
"""No example has a deadline: a machine that does something else meanwhile is no fault."""


def _absent(error: MissingDependency) -> None:
    """Skip the test, or fail it where real brokers are required."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{error} (required, since {REQUIRE}=1)", pytrace=False)
    pytest.skip(str(error))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if BROKER_FIXTURES & set(getattr(item, "fixturenames", ())) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FIRST_START_TIMEOUT_S))


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """Apache Kafka, one node, shared by the session: never stop it."""
    yield from _cluster(1)


@pytest.fixture(scope="session")
def kafka3() -> Iterator[KafkaCluster]:
    """Apache Kafka, three nodes: whoever kills a node starts it again."""
    yield from _cluster(3)


@pytest.fixture(scope="session")
def tansu() -> Iterator[EmbeddedBroker]:
    """The embedded broker, shared by the session."""
    try:
        broker = EmbeddedBroker().start()
    except MissingDependency as error:
        _absent(error)
        return
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture(params=["tansu", "kafka"])
def broker(request: pytest.FixtureRequest) -> EmbeddedBroker | KafkaCluster:
    """Both kinds of broker in turn, for contracts that hold on either."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def prefix() -> str:
    """Topic prefix of this test alone."""
    return f"t{uuid.uuid4().hex[:10]}."


def _cluster(nodes: int) -> Iterator[KafkaCluster]:
    try:
        cluster = KafkaCluster(nodes).start()
    except MissingDependency as error:
        _absent(error)
        return
    try:
        yield cluster
    finally:
        cluster.stop()
