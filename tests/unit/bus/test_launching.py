"""A local broker that does not come up is tried again only where that can help, and never left behind."""

from __future__ import annotations

import pytest

from eroica.bus.local.children import launch_or_stop
from eroica.schemas.errors import BrokerError, UsageError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("fails", "again", "launched", "stopped", "error"),
    [
        pytest.param([], True, 1, 0, None, id="comes up"),
        pytest.param([BrokerError("x")] * 2, True, 3, 2, None, id="at the third try"),
        pytest.param([BrokerError("x")] * 5, True, 3, 3, BrokerError, id="never"),
        pytest.param([BrokerError("x")], False, 1, 1, BrokerError, id="on the caller's own port"),
        pytest.param([UsageError("x")], True, 1, 1, UsageError, id="a port that is taken"),
        pytest.param([KeyboardInterrupt()], True, 1, 1, KeyboardInterrupt, id="Ctrl-C"),
    ],
)
def test_tries(fails: list[BaseException], again: bool, launched: int, stopped: int, error: type[BaseException] | None) -> None:
    left, seen = list(fails), []

    def launch() -> None:
        seen.append("launch")
        if left:
            raise left.pop(0)

    def attempt() -> None:
        launch_or_stop(launch, lambda: seen.append("stop"), again=again)

    if error is None:
        attempt()
    else:
        with pytest.raises(error):
            attempt()
    assert (seen.count("launch"), seen.count("stop")) == (launched, stopped)
