"""What comes from the wire cannot draw on a terminal."""

from __future__ import annotations

import pytest

from eroica.consumers.text import clean, one_line

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("rank 2", "rank 2"),
        ("\x1b[2J\x1b]0;owned\x07", "\ufffd[2J\ufffd]0;owned\ufffd"),
        ("a\u202eb", "a\ufffdb"),
        ("c1 \x9b31m", "c1 \ufffd31m"),
        ("[bold]as it is[/bold]", "[bold]as it is[/bold]"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    ],
)
def test_control_characters_are_replaced(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert clean("x" * 50, limit=10) == "x" * 10 + "…"


def test_one_line_is_one_line() -> None:
    assert one_line("a\r\nb\n\n c") == "a\ufffd b c"
