"""Steps that ranks number differently; what a folder lacks; two workers alone."""

from __future__ import annotations

import pytest

from eroica.offline.align import align_steps, missing_note, pair_notes, run_notes
from eroica.schemas.summaries import Communicator, Identity, Slot, StepRecord, Summary

pytestmark = pytest.mark.unit
NOON_US = 1_700_000_000_000_000
STEP_US = 100_000


def summary(rank: int, steps: range, begun: float = 0.0, total_us: float = 100.0, origin: int = NOON_US) -> Summary:
    """Steps of 100 ms, the first of which began *begun* steps after noon."""
    slot = Slot(op="all_reduce", index=0, count=len(steps), total_us=total_us, step=list(steps), duration_us=[1.0] * len(steps))
    return Summary(
        who=Identity(job="offline", run_id="offline", request="o", cls="all", rank=rank, world_size=4, host="h"),
        first_step=steps[0],
        last_step=steps[-1],
        window_us=len(steps) * STEP_US,
        ended_at_us=int(origin + (begun + len(steps)) * STEP_US),
        steps=[StepRecord(step=n, start_us=i * STEP_US, duration_us=STEP_US) for i, n in enumerate(steps)],
        communicators=[Communicator(name="dp", slots=[slot])],
    )


def numbers(found: list[Summary]) -> list[list[int]]:
    return [[s.step for s in one.steps] for one in found]


def test_ranks_that_agree_are_left_alone() -> None:
    given = [summary(r, range(4, 7)) for r in range(4)]
    assert align_steps(given) == (given, [])


def test_a_rank_that_counts_from_another_start_is_renumbered_and_that_is_said() -> None:
    found, notes = align_steps([summary(0, range(4, 7)), summary(1, range(4, 7), 0.1), summary(2, range(14, 17), 0.2)])
    assert numbers(found) == [[4, 5, 6]] * 3
    assert found[2].communicators[0].slots[0].step == [4, 5, 6]
    assert (found[2].first_step, found[2].last_step) == (4, 6)
    assert notes == ["rank 2 numbers the steps 14–16 that others number 4–6: taken as the same"]


def test_a_rank_that_began_later_did_profile_other_steps() -> None:
    found, notes = align_steps([summary(0, range(4, 7)), summary(1, range(4, 7)), summary(2, range(5, 8), 1.0)])
    assert numbers(found)[2] == [5, 6, 7]
    assert notes == ["not every rank holds the same steps (ranks 0-1 4–6; rank 2 5–7): all share 5–6"]


def test_the_clock_tells_a_late_start_from_another_count() -> None:
    found, _ = align_steps([summary(0, range(4, 7)), summary(1, range(4, 7)), summary(2, range(5, 8), 0.1)])
    assert numbers(found)[2] == [4, 5, 6]


@pytest.mark.parametrize(
    ("steps", "renumbered"),
    [pytest.param(range(14, 17), True, id="no number shared"), pytest.param(range(5, 8), False, id="some are shared")],
)
def test_without_a_clock_only_numbers_that_share_nothing_are_renumbered(steps: range, renumbered: bool) -> None:
    found, notes = align_steps(
        [summary(0, range(4, 7), origin=0), summary(1, range(4, 7), origin=0), summary(2, steps, origin=0)]
    )
    assert (numbers(found)[2] == [4, 5, 6]) is renumbered
    assert len(notes) == 1


def test_another_number_of_steps_is_never_renumbered() -> None:
    found, notes = align_steps([summary(0, range(4, 7)), summary(1, range(4, 7)), summary(2, range(14, 16), 0.1)])
    assert numbers(found)[2] == [14, 15]
    assert notes[0].endswith("no step is shared by all")


@pytest.mark.parametrize(
    ("ranks", "world", "notes"),
    [
        ([0, 1], 2, []),
        ([0, 1], 128, ["ranks 2-127 of 128 were not in the folder"]),
        ([0, 2], 3, ["rank 1 of 3 was not in the folder"]),
    ],
)
def test_who_is_missing(ranks: list[int], world: int, notes: list[str]) -> None:
    assert missing_note(ranks, world) == notes


def test_of_two_workers_the_one_that_spends_less_in_what_they_share_came_late() -> None:
    given = [summary(0, range(3), total_us=17_200), summary(1, range(3), total_us=8_200)]
    assert pair_notes(given, 2) == [
        "rank 0 spent 17.2 ms in 3 all_reduce of dp, rank 1 8.2 ms: rank 1 came late to them, rank 0 waited"
    ]
    assert pair_notes([summary(0, range(3), total_us=8_300), summary(1, range(3), total_us=8_200)], 2) == []
    assert pair_notes([*given, summary(2, range(3))], 3) == []
    assert pair_notes(given, 128) == []


@pytest.mark.parametrize(
    ("ranks", "worlds", "times_us", "says"),
    [
        ([0, 1, 2], [3, 3, 3], [(0, 9), (1, 10), (2, 11)], []),
        ([0, 1, 2], [0, 0, 0], [(0, 9), (1, 10), (2, 11)], []),
        ([0, 1, 2], [3, 8, 0], [(0, 9), (1, 10), (2, 11)], ["worlds of 3 and 8 ranks"]),
        ([0, 1, 4], [4, 4, 4], [(0, 9), (1, 10), (2, 11)], ["rank 4 cannot be in a world of 4"]),
        ([0, 1, 2, 3], [4] * 4, [(0, 1), (5, 6), (50, 60), (80, 90)], ["the ranks were profiled at different times"]),
        ([0, 1, 2], [3, 3, 3], [(0, 9), (1, 10), (50, 60)], ["rank 2 and the others were profiled at different times"]),
        ([0, 1], [2, 2], [(0, 9), (50, 60)], []),  # of two, neither is the odd one
    ],
)
def test_what_speaks_against_traces_of_one_run(
    ranks: list[int], worlds: list[int], times_us: list[tuple[float, float]], says: list[str]
) -> None:
    notes = run_notes(ranks, worlds, times_us)
    assert len(notes) == len(says) and all(part in note for part, note in zip(says, notes, strict=True))
