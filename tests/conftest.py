"""Brokers for the tests, started once a session, a fresh topic prefix for each test, and the lanes that run beside each other."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadScopeScheduling

from eroica.bus.local import EmbeddedBroker, KafkaCluster
from eroica.schemas.errors import MissingDependency

REQUIRE = "EROICA_REQUIRE_KAFKA"
BROKER_FIXTURES = frozenset({"kafka", "kafka3", "tansu", "broker"})
FIRST_START_TIMEOUT_S = 600
"""The first start on a machine fetches 54 MB of jars, and that falls on whichever test comes first."""

LANES: dict[str, str] = {
    # Real torch jobs whose steps are timed: one after the other, and before all else for the processor.
    "tests/e2e/test_demo.py": "jobs",
    "tests/integration/agent": "jobs",
    "tests/integration/compose": "jobs",
    "tests/integration/hook/test_hook_cost.py": "jobs",
    "tests/integration/trace": "jobs",
    # Services on brokers, which mostly wait.
    "tests/integration/localizer": "services",
    "tests/integration/streams": "services",
    "tests/e2e/test_demo_starts.py": "bus",
    "tests/e2e/test_pipeline_failures.py": "bus",
    "tests/integration/bus": "bus",
    "tests/integration/offline": "bus",
    "tests/integration/simulator": "bus",
    "tests/integration/hook": "hook",
}
"""Folder or file → the lane of its tests. They run one after the other in one process and share its brokers. All other files are
a lane each: whichever process has time takes the next.
"""
NICE = {"jobs": 0, "services": 5, "bus": 5, "hook": 5}
"""How far back a lane with a name stands for the processor. These come first, each in a process of its own."""
OTHERS_NICE = 10


hypothesis_settings.register_profile("eroica", deadline=None)
hypothesis_settings.load_profile("eroica")
"""No example has a deadline: a machine that does something else meanwhile is no fault."""


def _absent(error: MissingDependency) -> None:
    """Skip the test, or fail it where real brokers are required."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{error} (required, since {REQUIRE}=1)", pytrace=False)
    pytest.skip(str(error))


def lane_of(nodeid: str) -> str:
    """The lane of a test: those of one lane run one after the other in one process."""
    path = nodeid.partition("::")[0]
    return next((lane for place, lane in LANES.items() if path == place or path.startswith(f"{place}/")), path)


class Lanes(LoadScopeScheduling):
    """Gives each process a whole lane, those with names first."""

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    config.option.loadscopereorder = False
    return Lanes(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process for each lane with a name; none besides this one where single files are asked for."""
    return 0 if all(Path(argument.partition("::")[0]).is_file() for argument in config.args) else len(NICE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput"):
        # A process that has stepped back cannot come forward again, so nobody gets less than the lane before.
        os.nice(max(0, NICE.get(lane_of(item.nodeid), OTHERS_NICE) - os.nice(0)))


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Lanes with names first; within one, three nodes of Kafka start late, since they idle for the rest of the session."""
    order = [*NICE]
    lane = lane_of(item.nodeid)
    return order.index(lane) if lane in NICE else len(order), "kafka3" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)
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
