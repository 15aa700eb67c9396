from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.schemas.errors import SchemaError
from eroica.schemas.ranks import MAX_RANK, RankRanges, format_ranks, parse_ranks

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([0], "0"), ([3, 1, 2, 7], "1-3,7"), ([5, 5, 5], "5"), (range(100_000), "0-99999"), ([0, 2, 4], "0,2,4")],
)
def test_ranges_are_written_short_and_ascending(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text
    assert parse_ranks(text).tolist() == sorted(set(ranks))


@given(st.sets(st.integers(0, 5_000)))
def test_writing_and_reading_are_inverse(ranks: set[int]) -> None:
    assert set(parse_ranks(format_ranks(ranks)).tolist()) == ranks


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "0-999999999", f"0-{MAX_RANK + 1}", "1.5", "٣", " 1", "0x1"])
def test_a_wrong_set_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse_ranks(text)


def test_a_set_of_ranges_is_asked_without_being_spelled_out() -> None:
    ranks = RankRanges.parse("7,0-3,2-4,5,40-41")
    assert (str(ranks), len(ranks)) == ("0-5,7,40-41", 9)
    assert [r for r in range(-1, 50) if r in ranks] == ranks.array().tolist() == parse_ranks(str(ranks)).tolist()
    assert (str(RankRanges.parse("")), len(RankRanges.parse("")), 0 in RankRanges.parse("")) == ("", 0, False)


def test_a_hostile_set_of_overlapping_ranges_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(SchemaError, match="more ranks"):
        parse_ranks(",".join([f"0-{MAX_RANK}"] * 50))
