"""Numbers and sets of ranks as people read them."""

from __future__ import annotations

import math

import pytest

from eroica.schemas.ranks import say_ranks
from eroica.schemas.wording import say_count, say_number, say_share

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (0.001, "under 1%"),
        (0.145, "15%"),  # 14.499999999999998 in binary
        (0.785, "79%"),
        (0.994, "99%"),
        (0.998, "over 99%"),
        (1.0, "100%"),
        (1.2, "120%"),
        (math.nan, "unknown"),
    ],
)
def test_a_share_is_whole_per_cent_and_never_all_of_less_than_all(share: float, text: str) -> None:
    assert say_share(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.1234, "0.123"),
        (-12.34, "-12.3"),
        (87.0, "87"),
        (99.96, "100"),
        (999.7, "1,000"),
        (1_234_567.0, "1,234,567"),
        (0.00001234, "0.0000123"),
        (math.inf, "unknown"),
        (1e300, "1e+300"),
    ],
)
def test_a_number_has_three_digits_and_no_powers_of_ten(value: float, text: str) -> None:
    assert say_number(value) == text


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (1, ("trace",), "1 trace"),
        (0, ("trace",), "0 traces"),
        (2, ("trace",), "2 traces"),
        (1, ("message was", "messages were"), "1 message was"),
        (3, ("message was", "messages were"), "3 messages were"),
    ],
)
def test_a_noun_agrees_with_its_number(count: int, words: tuple[str, ...], text: str) -> None:
    assert say_count(count, *words) == text


@pytest.mark.parametrize(
    ("ranges", "most", "text"),
    [
        ("", 0, "no ranks"),
        ("7", 0, "rank 7"),
        ("0-2,5", 0, "ranks 0-2,5"),
        ("0-2,5,7", 6, "ranks 0-2,5 … and 1 more"),
        ("345-451,453-1264", 11, "ranks 345-451 … and 812 more"),  # never in the middle of a number
        ("345-451,453-1264", 7, "ranks 345-451 … and 812 more"),
        ("345-451,453-1264", 3, "ranks 345-451 … and 812 more"),
        ("345-451,453-1264", 16, "ranks 345-451,453-1264"),
        ("0-999999", 3, "ranks 0-999999"),
        ("not ranges, but words", 8, "ranks not ran…"),
        ("4711", 4, "rank 4711"),
    ],
)
def test_ranks_have_their_noun(ranges: str, most: int, text: str) -> None:
    assert say_ranks(ranges, most) == text
