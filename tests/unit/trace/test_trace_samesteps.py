"""Which steps of two workers are the same, by the collectives that they share: where clocks and numbers do not tell."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from eroica.offline.matched import match_steps
from eroica.producers.trace.pulse import Pulse
from eroica.producers.trace.samesteps import apart, shift_to
from eroica.producers.trace.steps import Steps
from eroica.schemas.summaries import Identity, StepRecord, Summary

pytestmark = pytest.mark.unit
STEPS, IN_STEP, NOON_US = 5, 4, 1.7e15


def job(steps: int = STEPS, jitter_us: float = 300.0, seed: int = 3) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """When each collective of the job ends, µs; shape (steps × collectives,)."""
    rng = np.random.default_rng(seed)
    return np.cumsum(1_000.0 + jitter_us * rng.uniform(-1, 1, steps * IN_STEP))


def pulse(
    rank: int,
    first: int = 10,
    ahead_us: float = 0.0,
    held: range = range(STEPS),
    sequence: bool = False,
    jitter_us: float = 300.0,
    steps: int = STEPS,
    group: str = "dp",
    noise_us: float = 3.0,
) -> Pulse:
    """One rank's collectives of the job's steps *held*, which it numbers from *first* on, on a clock that is ahead."""
    chance = random.Random(rank)
    ends = job(steps, jitter_us)
    rows = [k * IN_STEP + i for k in held for i in range(IN_STEP)]
    end = np.array([ends[r] + chance.uniform(0, noise_us) for r in rows]) + ahead_us + NOON_US
    issued = np.array([ends[r] - chance.uniform(50, 400) for r in rows]) + ahead_us + NOON_US
    bounds = np.array([ends[k * IN_STEP] - 500 for k in held] + [ends[held[-1] * IN_STEP + IN_STEP - 1] + 50])
    start, stop = bounds[:-1] + ahead_us, bounds[1:] + ahead_us
    number = np.arange(first, first + len(held))
    return Pulse(
        kind=tuple(("all_reduce", "all_gather")[r % IN_STEP == 0] for r in rows),
        issued=issued,
        done=issued,
        end=end,
        steps=Steps(number, start, stop, (float(start[0]), float(stop[-1])), "profiler_step"),
        origin_us=NOON_US,
        size=tuple(100 + r % IN_STEP for r in rows),
        number=tuple((group, r) if sequence else None for r in rows),
    )


@pytest.mark.parametrize("ahead_us", [0.0, 30e6, -3600e6])
@pytest.mark.parametrize(
    ("mine", "shift"),
    [
        pytest.param({"first": 10}, 0, id="numbered alike"),
        pytest.param({"first": 12}, -2, id="numbered higher"),
        pytest.param({"first": 3, "held": range(1, 4)}, 8, id="other steps and numbers"),
        pytest.param({"first": 10, "held": range(2, 5)}, 2, id="other steps under the same numbers"),
    ],
)
def test_steps_are_told_by_the_ends_of_collectives(mine: dict[str, int], shift: int, ahead_us: float) -> None:
    assert shift_to(pulse(1, ahead_us=ahead_us, **mine), pulse(0)) == shift  # type: ignore[arg-type]


SILENT: dict[str, tuple[Pulse, Pulse]] = {
    "steps that repeat exactly": (pulse(1, 12, 30e6, jitter_us=0.0), pulse(0, jitter_us=0.0)),
    "one step": (pulse(1, 12, 30e6, held=range(2, 3)), pulse(0, held=range(2, 3))),
    "another part of the job": (pulse(1, 12, 30e6, held=range(3)), pulse(0, held=range(3, 5))),
    "no collectives": (replace(pulse(1, 12, 30e6), kind=(), end=np.empty(0), issued=np.empty(0), size=(), number=()), pulse(0)),
    "other sizes": (replace(pulse(1, 12, 30e6), size=(7,) * STEPS * IN_STEP), pulse(0)),
    "ends that are not one moment": (pulse(1, 12, 30e6, noise_us=2_000.0), pulse(0)),
    "numbers of another communicator": (
        pulse(1, 12, 30e6, sequence=True, group="tp", jitter_us=0.0), pulse(0, sequence=True, jitter_us=0.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("own", "other"), SILENT.values(), ids=SILENT)
def test_what_is_not_told_is_not_guessed(own: Pulse, other: Pulse) -> None:
    assert shift_to(own, other) is None


@pytest.mark.parametrize("held", [range(STEPS), range(2, 3)], ids=["all steps", "one step"])
def test_sequence_numbers_tell_where_order_does_not(held: range) -> None:
    own = pulse(1, 12, 30e6, held=held, sequence=True, jitter_us=0.0)
    assert shift_to(own, pulse(0, sequence=True, jitter_us=0.0)) == (-2 if len(held) > 1 else 0)


def test_sends_are_counted_by_each_member_for_itself() -> None:
    own = pulse(1, 12, 30e6, sequence=True, jitter_us=0.0)
    other = pulse(0, sequence=True, jitter_us=0.0)
    sends = ("send",) * len(own.kind)
    assert shift_to(replace(own, kind=sends), replace(other, kind=sends)) is None


@pytest.mark.parametrize(("ahead_us", "by", "off"), [(0, 0, False), (1_000, 0, False), (30e6, 0, True), (0, 5, True)])
def test_clocks_that_are_off_by_half_a_step_tell_nothing(ahead_us: float, by: int, off: bool) -> None:
    assert apart(pulse(1, ahead_us=ahead_us), pulse(0), by) == off


def summary(rank: int, of: Pulse) -> Summary:
    told = of.steps.number.tolist()
    return Summary(
        who=Identity(job="offline", run_id="offline", request="o", cls="all", rank=rank, world_size=4, host="h"),
        first_step=told[0],
        last_step=told[-1],
        window_us=1,
        ended_at_us=int(NOON_US),
        steps=[StepRecord(step=n, start_us=0, duration_us=1) for n in told],
    )


def matched(*pulses: Pulse) -> tuple[list[list[int]], list[str]]:
    found, notes = match_steps([summary(r, p) for r, p in enumerate(pulses)], pulses)
    return [[s.step for s in one.steps] for one in found], notes


def test_ranks_whose_clocks_are_off_are_renumbered_and_that_is_said() -> None:
    numbers, notes = matched(pulse(0), pulse(1), pulse(2, 12, 30e6), pulse(3, 12, 30e6))
    assert numbers == [[10, 11, 12, 13, 14]] * 4
    assert notes == [
        "ranks 2-3 number the steps 2 higher than others do, and their clocks do not fit: told by the collectives that they share"
    ]


def test_one_rank_tells_the_next() -> None:
    """Of a pipeline the first stage shares no communicator with the last."""
    same = {"sequence": True, "jitter_us": 0.0}
    middle = pulse(1, 12, 30e6, **same)  # type: ignore[arg-type]
    middle = replace(middle, number=tuple((("dp", "pp")[r % 2], r) for r in range(STEPS * IN_STEP)))
    last = pulse(2, 14, 60e6, group="pp", **same)  # type: ignore[arg-type]
    assert shift_to(last, pulse(0, **same)) is None  # type: ignore[arg-type]
    numbers, notes = matched(pulse(0, **same), last, middle)  # type: ignore[arg-type]
    assert numbers == [[10, 11, 12, 13, 14]] * 3
    assert len(notes) == 2


def test_clocks_that_fit_are_not_asked_again() -> None:
    """Nor is a rank that really profiled other steps, as its clock says."""
    assert matched(pulse(0), pulse(1), pulse(2, 12, held=range(2, 5))) == ([[*range(10, 15)], [*range(10, 15)], [12, 13, 14]], [])


def test_whom_nobody_tells_stays_as_it_is() -> None:
    exact = {"jitter_us": 0.0}
    numbers, notes = matched(pulse(0, **exact), pulse(1, **exact), pulse(2, 12, 30e6, **exact))  # type: ignore[arg-type]
    assert (numbers[2], notes) == ([12, 13, 14, 15, 16], [])
