"""Libraries that report every failed try do not fill the log."""

from __future__ import annotations

import logging

import pytest

from eroica.cli.repeats import AGAIN_S, MAX_KINDS, FewRepeats

pytestmark = pytest.mark.unit


def record(text: str, name: str = "aiokafka.client") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 0, text, (), None)


def test_a_kind_is_shown_once_in_a_while_with_the_number_held_back() -> None:
    now = [0.0]
    few = FewRepeats(lambda: now[0])
    shown = [number for number in range(1_000) if few.filter(record(f"node {number} refused"))]
    assert shown == [0]
    assert few.filter(record("something else"))
    now[0] = AGAIN_S
    again = record("node 7 refused")
    assert few.filter(again)
    assert again.getMessage() == "node 7 refused (999 more like it were held back)"
    assert not few.filter(record("node 8 refused"))


def test_our_own_lines_are_never_held_back_and_kinds_take_bounded_memory() -> None:
    few = FewRepeats(lambda: 0.0)
    assert all(few.filter(record("verdict", "eroica.localizer.service")) for _ in range(5))
    for number in range(3 * MAX_KINDS):
        letters = "".join(chr(97 + int(digit)) for digit in str(number))
        assert few.filter(record(f"kind {letters}"))
    assert len(few._kinds) <= MAX_KINDS
