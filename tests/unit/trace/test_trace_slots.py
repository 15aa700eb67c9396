"""Places of collectives in steps that lost some: by sequence number, else from the end of the first step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.producers.trace.collectives import Communication, Operation
from eroica.producers.trace.slots import communicators
from eroica.producers.trace.steps import Steps

pytestmark = pytest.mark.unit

PER_STEP, STEPS = 4, 5


def operation(step: int, place: int, *, seq: bool = True, stride: int = PER_STEP, gap: int = 0) -> Operation:
    """The *place*-th of a step; its size tells the place."""
    number, at = 100 + step * stride + place + (gap if place > 1 else 0), step * 10.0 + place
    return Operation(
        row=0, group="0", op="all_reduce", backend="nccl", step=step, issued_us=at, start_us=at, duration_us=1.0,
        exposed_us=1.0, bytes=place + 1, dtype="Byte", seq=number if seq else -1, size=2,
    )  # fmt: skip


def slots(operations: list[Operation]) -> dict[tuple[int, int], int]:
    """Step and size (which tells the true place) → the place given."""
    start = np.arange(STEPS) * 10.0
    steps = Steps(np.arange(STEPS), start, start + 10, (0.0, 50.0), "none")
    (communicator,) = communicators(Communication(operations, 0), steps, 10_000)
    place: dict[int, int] = {}
    for slot in communicator.slots:
        place.update({round(s + step * 10.0): slot.index for s, step in zip(slot.start_us, slot.step, strict=True)})
    return {(o.step, o.bytes - 1): place[round(o.start_us)] for o in operations}


@pytest.mark.parametrize(("stride", "gap"), [(PER_STEP, 0), (9, 0), (9, 3)], ids=["dense", "others between", "others within"])
@given(st.sets(st.tuples(st.integers(0, STEPS - 1), st.integers(0, PER_STEP - 1)), max_size=2))
def test_lost_operations_move_no_other(stride: int, gap: int, lost: set[tuple[int, int]]) -> None:
    every = [(s, p) for s in range(STEPS) for p in range(PER_STEP)]
    kept = [operation(s, p, stride=stride, gap=gap) for s, p in every if (s, p) not in lost]
    assert all(given_place == true for (_, true), given_place in slots(kept).items())


def test_without_numbers_the_first_step_counts_from_its_end() -> None:
    kept = [operation(s, p, seq=False) for s in range(STEPS) for p in range(PER_STEP) if (s, p) not in ((0, 0), (0, 1))]
    assert all(given_place == true for (_, true), given_place in slots(kept).items())


def test_numbers_that_do_not_repeat_by_steps_are_not_trusted() -> None:
    """Whole steps at uneven distances: what a step lost cannot be told, and places go by order."""
    kept = [operation(s, p, stride=PER_STEP + s) for s in range(STEPS) for p in range(PER_STEP) if (s, p) != (3, 1)]
    found = slots(kept)
    assert [found[3, p] for p in (0, 2, 3)] == [0, 1, 2]
