"""A server of ours that starts again finds its port: no connection of anybody's is given one of those that we choose."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from eroica.bus.local import ports
from eroica.schemas.errors import UsageError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "below"),
    [
        pytest.param("32768\t60999\n", 32_768, id="Linux's usual range"),
        pytest.param("20000 60999", 20_000, id="a wider one"),
        pytest.param("1024 65535", 65_536, id="no room below"),
        pytest.param("", 65_536, id="nothing said"),
        pytest.param(None, 65_536, id="not Linux"),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_chosen_ports_lie_below_those_of_connections(
    text: str | None, below: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(ports, "_RANGE", file)
    first = ports.free_ports(count)
    assert first >= 1_024 and first + count <= below
    for port in range(first, first + count):
        ports.require_free(port)


def test_neighbours_that_are_taken_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as owner:
        taken = owner.getsockname()[1]
        offers = iter([taken, taken - 1, ports.free_ports(3)])
        monkeypatch.setattr(ports, "_RANGE", Path("/nonexistent"))
        monkeypatch.setattr(ports, "_offered", lambda: next(offers))
        first = ports.free_ports(2)
        assert taken not in (first, first + 1)
        with pytest.raises(UsageError, match=f"port {taken} is taken"):
            ports.require_free(taken)


def test_where_none_is_free_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_is_free", lambda port: False)
    with pytest.raises(UsageError, match="no 2 free ports in a row"):
        ports.free_ports(2)
