"""The rules on one job's iterations: what fires, when, and above all what does not."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from eroica.schemas.settings import DetectSettings
from eroica.streams.rules import ASKED_AT_MOST, Finding, Level, blocked_after_us
from eroica.streams.spikes import Spikes

pytestmark = pytest.mark.unit

N = 50


def noisy(n: int, mean: float, sigma: float, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [max(1, round(mean * rng.lognormvariate(0.0, sigma))) for _ in range(n)]


def first_fire(level: Level, values: Iterable[int]) -> int | None:
    for i, value in enumerate(values):
        if level.feed(value) is not None:
            return i
    return None


@pytest.mark.parametrize(
    ("slow", "confirm", "latest"),
    [
        (2.0, 2, 1_000 + 2 * N),  # crosses after a few slow iterations, then one more window
        (1.2, 2, 1_000 + 2 * N),
        (1.08, 2, 1_000 + 2 * N),
        (2.0, 1, 1_000 + N // 2),
        (2.0, 3, 1_000 + 3 * N),
    ],
)
def test_a_lasting_slowdown_is_found_within_its_windows(slow: float, confirm: int, latest: int) -> None:
    level = Level(DetectSettings(confirm_windows=confirm))
    values = noisy(1_000, 100_000, 0.01, 1) + noisy(400, slow * 100_000, 0.01, 2)
    fired = first_fire(level, values)
    assert fired is not None and 1_000 < fired < latest
    assert fired >= 1_000 + (confirm - 1) * N


def test_a_finding_tells_the_figures_a_person_can_redo() -> None:
    level = Level(DetectSettings(window=10, recent=100, confirm_windows=1))
    findings = [f for v in [1_000] * 100 + [1_200] * 10 if (f := level.feed(v))]
    last = findings[-1]
    assert last.figures == {"observed_us": 1_200.0, "baseline_us": 1_000.0, "threshold_us": 1_050.0, "ratio": 1.2}
    assert "1.20 times the fastest window" in last.detail


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("one huge iteration", [100_000] * 500 + [5_000_000] + [100_000] * 500),
        ("a few spikes apart", ([100_000] * 29 + [1_000_000]) * 40),
        ("regular checkpoints", ([100_000] * 99 + [3_000_000]) * 20),
        ("a slowdown within the ratio", [100_000] * 500 + [104_000] * 1_000),
        ("faster", [100_000] * 500 + [60_000] * 1_000),
        ("a burst shorter than two windows", [100_000] * 500 + [150_000] * 45 + [100_000] * 500),
    ],
)
def test_what_is_no_degradation(name: str, values: list[int]) -> None:
    assert first_fire(Level(DetectSettings()), values) is None, name


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1])
def test_noise_alone_never_fires(sigma: float) -> None:
    for seed in range(5):
        assert first_fire(Level(DetectSettings()), noisy(5_000, 100_000, sigma, seed)) is None


def test_the_paper_to_the_letter_compares_with_the_shortest_iteration() -> None:
    settings = DetectSettings(reference="shortest_iteration", confirm_windows=1)
    values = [100_000] * 200
    values[60] = 90_000
    level = Level(settings)
    assert first_fire(level, values) == 60, "100 ms is 1.11 of the one iteration of 90 ms"


def slow_after_healthy(level: Level, slow: int, n: int) -> list[int]:
    return [i for i, v in enumerate([100_000] * 1_000 + [slow] * n) if level.feed(v) is not None]


def test_a_slow_level_does_not_become_the_reference_by_lasting() -> None:
    level = Level(DetectSettings(recent=300))
    fired = slow_after_healthy(level, 150_000, 5_000)
    assert fired[-1] == 5_999 and len(fired) > 4_900, "still slow against the healthy past, 5,000 iterations later"


def test_recovery_ends_it_and_the_next_slowdown_is_found_again() -> None:
    level = Level(DetectSettings(recent=300))
    slow_after_healthy(level, 150_000, 500)
    assert first_fire(level, [100_000] * 49) is None or level.slow
    for value in [100_000] * 400:
        level.feed(value)
    assert not level.slow
    assert first_fire(level, [100_000] * 400) is None
    fired = first_fire(level, [150_000] * 200)
    assert fired is not None and fired <= 2 * N


def test_after_the_last_request_the_level_is_the_usual_one() -> None:
    level = Level(DetectSettings(recent=300))
    slow_after_healthy(level, 150_000, 500)
    assert [level.asked() for _ in range(ASKED_AT_MOST)] == [False] * (ASKED_AT_MOST - 1) + [True]
    assert not level.slow
    assert first_fire(level, [150_000] * 2_000) is None
    assert first_fire(level, [225_000] * 200) is not None


def spike_findings(values: Iterable[int], settings: DetectSettings | None = None) -> list[tuple[int, Finding]]:
    spikes = Spikes(settings or DetectSettings())
    found = []
    for step, value in enumerate(values):
        _, finding = spikes.feed(step, value)
        if finding is not None:
            found.append((step, finding))
    return found


def with_spikes(at: Iterable[int], n: int, *, length: int = 1, factor: float = 3.0) -> list[int]:
    values = [100_000 + i % 7 * 500 for i in range(n)]
    for start in at:
        for i in range(start, start + length):
            values[i] = round(factor * 100_000)
    return values


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("three irregular spikes", with_spikes([100, 107, 131], 200), [132]),
        ("three irregular short bursts", with_spikes([100, 107, 131], 200, length=3), [134]),
        ("two are anybody's", with_spikes([100, 117], 200), []),
        ("too far apart", with_spikes([100, 140, 190, 245, 301], 400), []),
        ("too small", with_spikes([100, 107, 131], 200, factor=1.7), []),
        ("equally spaced from the start", with_spikes(range(100, 1_000, 16), 1_000), []),
        ("checkpoints with jitter", with_spikes([200, 501, 799, 1_100, 1_402], 1_500), []),
        ("too little history", with_spikes([3, 8, 15], 19), []),
        ("a level, not a spike", [100_000] * 100 + [300_000] * 200, []),
    ],
)
def test_spikes(name: str, values: list[int], expected: list[int]) -> None:
    assert [step for step, _ in spike_findings(values)] == expected, name


def test_a_learned_period_does_not_hide_irregular_spikes() -> None:
    regular = list(range(100, 900, 100))
    found = spike_findings(with_spikes(sorted([*regular, 720, 733, 751]), 1_000))
    assert [step for step, _ in found] == [752]


def test_spikes_on_the_beat_are_innocent_for_the_level_too() -> None:
    spikes = Spikes(DetectSettings())
    innocent = [step for step, value in enumerate(with_spikes(range(100, 900, 100), 900)) if spikes.feed(step, value)[0]]
    assert innocent == [400, 500, 600, 700, 800]


@pytest.mark.parametrize(
    ("mean_us", "started", "expected"),
    [(1_000_000, True, 30_000_000), (10_000_000, True, 50_000_000), (0, False, 300_000_000)],
)
def test_blocked_is_the_factor_or_the_floor(mean_us: float, started: bool, expected: int) -> None:
    assert blocked_after_us(DetectSettings(), mean_us, started=started) == expected
