"""Brokers for the tests, started once a lane, a fresh topic prefix for each test, and the lanes that run beside each other."""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadScopeScheduling

from eroica.bus.local import EmbeddedBroker, KafkaCluster
from eroica.schemas.errors import MissingDependency

sys.path.insert(0, str(Path(__file__).parent))  # waiting.py, for all of them

REQUIRE = "EROICA_REQUIRE_KAFKA"
BROKER_FIXTURES = frozenset({"kafka", "kafka3", "tansu", "broker"})
FIRST_START_TIMEOUT_S = 600
"""The first start on a machine fetches 54 MB of jars, and that falls on whichever test comes first."""
LANES_TIMEOUT_S = 900
"""A test that hangs is ended after this in a lane, whatever shorter limit it names: that is for a run by itself, and a lane that
stands back on a machine that does much else has taken five minutes for what takes half a one.
"""

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


_patient = hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.register_profile("eroica", _patient, derandomize=True)
hypothesis_settings.register_profile("search", _patient, max_examples=1_000)
hypothesis_settings.load_profile("eroica")
"""No example has a deadline, and none is drawn too slowly: a machine that does something else meanwhile is no fault. The examples
are the same in each run, so that the same code has the same answer; ``pytest --hypothesis-profile=search`` looks for others.
"""


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How long each lane took, so that they can be kept of one length."""
    if not config.getoption("tx", []):
        return
    spent = dict.fromkeys((*NICE, "the others"), 0.0)
    for report in (r for reports in terminalreporter.stats.values() for r in reports if isinstance(r, pytest.TestReport)):
        lane = lane_of(report.nodeid)
        spent[lane if lane in NICE else "the others"] += report.duration
    told = [f"{lane} {seconds / 60:.1f} min" for lane, seconds in spent.items() if seconds]
    terminalreporter.write_line(f"lanes: {', '.join(told)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput"):
        # A process that has stepped back cannot come forward again, so nobody gets less than the lane before.
        os.nice(max(0, NICE.get(lane_of(item.nodeid), OTHERS_NICE) - os.nice(0)))


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Lanes with names first; within one, three nodes of Kafka start late, since they idle for the rest of it."""
    order = [*NICE]
    lane = lane_of(item.nodeid)
    return order.index(lane) if lane in NICE else len(order), "kafka3" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)
    for item in items:
        if hasattr(config, "workerinput"):
            item.add_marker(pytest.mark.timeout(LANES_TIMEOUT_S), append=False)
        elif BROKER_FIXTURES & set(getattr(item, "fixturenames", ())) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FIRST_START_TIMEOUT_S))


_brokers: dict[str, EmbeddedBroker | KafkaCluster] = {}
"""Those that run, by the name of their fixture."""


def _running(name: str, make: Callable[[], EmbeddedBroker | KafkaCluster]) -> Any:
    """The broker of that name, started by whoever needs it first."""
    if name not in _brokers:
        try:
            _brokers[name] = make().start()
        except MissingDependency as error:
            _absent(error)
    return _brokers[name]


def _end_brokers() -> None:
    while _brokers:
        _brokers.popitem()[1].stop()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Brokers end with their lane: a Kafka that nobody uses takes a twentieth of a processor."""
    if hasattr(item.config, "workerinput") and (nextitem is None or lane_of(item.nodeid) != lane_of(nextitem.nodeid)):
        _end_brokers()


def pytest_sessionfinish() -> None:
    _end_brokers()


@pytest.fixture
def kafka() -> KafkaCluster:
    """Apache Kafka, one node, shared by the lane: never stop it."""
    cluster: KafkaCluster = _running("kafka", KafkaCluster)
    return cluster


@pytest.fixture
def kafka3() -> KafkaCluster:
    """Apache Kafka, three nodes: whoever kills a node starts it again."""
    cluster: KafkaCluster = _running("kafka3", lambda: KafkaCluster(3))
    return cluster


@pytest.fixture
def tansu() -> EmbeddedBroker:
    """The embedded broker, shared by the lane."""
    broker: EmbeddedBroker = _running("tansu", EmbeddedBroker)
    return broker


@pytest.fixture(params=["tansu", "kafka"])
def broker(request: pytest.FixtureRequest) -> EmbeddedBroker | KafkaCluster:
    """Both kinds of broker in turn, for contracts that hold on either."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def own_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What this thread logs. Clients that earlier tests left in other threads may say at any time that there is no broker."""
    own = threading.get_ident()

    def is_own(record: logging.LogRecord) -> bool:
        return record.thread == own

    caplog.handler.addFilter(is_own)
    yield caplog
    caplog.handler.removeFilter(is_own)


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers late, on a machine that does much else, is not taken for one that is silent."""
    if request.node.get_closest_marker("unit") is None:
        monkeypatch.setenv("EROICA_KAFKA__CONNECT_TIMEOUT_MS", "30000")


@pytest.fixture
def prefix() -> str:
    """Topic prefix of this test alone."""
    return f"t{uuid.uuid4().hex[:10]}."
