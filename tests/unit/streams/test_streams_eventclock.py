"""The common time of speakers with right and wrong clocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams_kit import SECOND, T0, batch, iterations

from eroica.schemas.iterations import IterationBatch, StepPartial
from eroica.schemas.settings import DetectSettings
from eroica.streams.eventclock import BEHIND_FACTOR, LATE_WORDS, EventClock
from eroica.streams.shard import ShardCore

pytestmark = pytest.mark.unit

LEAP = 10 * SECOND
YEAR = 365 * 24 * 3_600 * SECOND


def talk(clock: EventClock, offsets: dict[str, int], start: int, seconds: int) -> list[int]:
    """Each speaker says its time once a second; the frame after each second, relative to the truth."""
    frames = []
    for s in range(start, start + seconds):
        for name, offset in offsets.items():
            clock.hear(name, T0 + s * SECOND + offset)
        frames.append(clock.now_us - T0 - s * SECOND)
    return frames


@pytest.mark.parametrize(
    ("name", "offsets"),
    [
        ("one of three, heard last", {"a": 0, "b": 0, "c": YEAR}),
        ("one of three, heard first", {"c": YEAR, "a": 0, "b": 0}),
        ("one of three, far behind", {"c": -YEAR, "a": 0, "b": 0}),
        ("two of five, apart from each other", {"d": YEAR, "a": 0, "e": 2 * YEAR, "b": 0, "c": 0}),
        ("the far-off one runs ahead by a minute", {"c": 300 * SECOND, "a": 0, "b": 0}),
    ],
)
def test_the_frame_settles_where_most_clocks_are(name: str, offsets: dict[str, int]) -> None:
    first = next(iter(offsets))
    clock = EventClock(T0 + offsets[first], LEAP, 16)
    frames = talk(clock, offsets, 0, 300)
    assert abs(frames[-1]) <= LEAP, name
    assert len(set(frames[-50:])) == 1, "and goes on second by second"


def test_time_goes_on_when_only_the_wrong_clock_is_left() -> None:
    clock = EventClock(T0, LEAP, 16)
    assert talk(clock, {"a": 0, "b": YEAR}, 0, 10)[-1] == 0
    assert talk(clock, {"b": YEAR}, 10, 5)[-1] == 0, "by its progress"
    far = 2 * LATE_WORDS * 2 + 5
    assert talk(clock, {"b": YEAR}, 15, far)[-1] == YEAR, "and is believed once it has been alone for long"
    wrong_first = EventClock(T0 + YEAR, LEAP, 16)
    talk(wrong_first, {"b": YEAR, "a": 0}, 0, 10)
    assert talk(wrong_first, {"a": 0}, 10, far)[-1] == 0


def test_a_pause_of_all_is_followed_at_the_second_of_two() -> None:
    clock = EventClock(T0, LEAP, 16)
    talk(clock, {"a": 0, "b": 0}, 0, 5)
    assert clock.hear("a", T0 + 600 * SECOND).leap_us == 0
    heard = clock.hear("b", T0 + 600 * SECOND)
    assert heard.leap_us == 596 * SECOND and clock.now_us == T0 + 600 * SECOND


def test_words_of_strangers_beyond_the_limit_move_nothing() -> None:
    clock = EventClock(T0, LEAP, 2)
    talk(clock, {"a": 0, "b": 0}, 0, 2)
    for i in range(1_000):
        clock.hear(f"x{i}", T0 + i * 5 * SECOND)
    assert clock.now_us == T0 + SECOND


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2**53)), max_size=80))
@settings(max_examples=200)
def test_no_word_is_ahead_of_the_frame_and_repetitions_move_nothing(words: list[tuple[str, int]]) -> None:
    clock = EventClock(0, LEAP, 3)
    before = 0
    for name, raw in words:
        heard = clock.hear(name, raw)
        assert heard.at_us <= clock.now_us
        moved = clock.now_us - before - heard.leap_us
        assert 0 <= moved <= LEAP, "without a leap time only goes on, and by no more than its bound"
        assert heard.leap_us >= 0 or -heard.leap_us > LEAP * BEHIND_FACTOR
        again = clock.hear(name, raw)
        assert again.order <= 0
        before = clock.now_us


def feed(core: ShardCore, batches: list[IterationBatch]) -> list[StepPartial]:
    return [o.message for b in batches for o in core.feed(b) if isinstance(o.message, StepPartial)]


def test_a_host_of_next_year_stops_no_shard_from_seeing_silence_and_idleness() -> None:
    core = ShardCore(DetectSettings(silence_ms=20_000))
    hosts = {"a": (0, 0), "b": (1, YEAR), "c": (2, 0), "d": (3, 0)}
    told: list[StepPartial] = []
    for s in range(120):
        for host, (rank, offset) in hosts.items():
            if host == "d" and s >= 40:
                continue
            told += feed(core, [batch([iterations(rank, s, [SECOND])], host=host, seq=s, at=T0 + s * SECOND + offset)])
    assert all(p.event_time_us < T0 + YEAR // 2 for p in told)
    assert told[-1].absent == "3", "only the host that fell silent"
    assert told[-1].first_step + len(told[-1].count) > 110


def test_a_host_that_sets_its_clock_back_is_heard_on() -> None:
    core = ShardCore(DetectSettings(silence_ms=20_000))
    told: list[StepPartial] = []
    for s in range(90):
        for host, rank in (("a", 0), ("b", 1), ("c", 2), ("d", 3)):
            wrong = YEAR if host == "b" and 10 <= s < 20 else 0
            told += feed(core, [batch([iterations(rank, s, [SECOND])], host=host, seq=s, at=T0 + s * SECOND + wrong)])
    assert all(p.absent == "" for p in told)
