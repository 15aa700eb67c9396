"""What is logged may hold names from outside; a terminal must not obey them."""

from __future__ import annotations

import logging

import pytest

from eroica.cli.output import JsonLines, PlainLines

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("formatter", [PlainLines("%(levelname)s %(message)s"), JsonLines()])
def test_no_escape_sequence_reaches_a_terminal(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("job \x1b]0;owned\x07")
    except ValueError as error:
        record = logging.LogRecord("eroica", logging.ERROR, __file__, 1, "job %s", ("\x1b[2Jgone",), (ValueError, error, None))
    line = formatter.format(record)
    assert "gone" in line and "owned" in line
    assert "\x1b" not in line and "\x07" not in line
