"""``python -m eroica.bus.local``: what it takes and what it refuses, before anything is started."""

from __future__ import annotations

import pytest

from eroica.bus.local.__main__ import main

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nodes", "two"], "invalid int value"),
        (["--port", "0"], "a port is 1 to 65535, not 0"),
        (["--port", "65536"], "a port is 1 to 65535"),
        (["--port", "http"], "a port is 1 to 65535"),
        (["--embedded", "--nodes", "3"], "leave --nodes and --data out"),
        (["--embedded", "--data", "here"], "leave --nodes and --data out"),
        (["here"], "unrecognized arguments"),
    ],
)
def test_wrong_use_is_told(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


def test_the_help_has_an_example_and_says_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "python -m eroica.bus.local --embedded --port 9092" in told
    assert "bootstrap=HOST:PORT" in told
