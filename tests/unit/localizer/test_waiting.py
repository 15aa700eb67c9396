from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scenes import Scene, steady

from eroica.localizer.build import build_frame
from eroica.localizer.frame import Frame
from eroica.localizer.waiting import measure
from eroica.schemas.groups import ExecutionColumns, SlotName

pytestmark = pytest.mark.unit

CHUNK = Scene(2, steady(50_000.0, {})).chunks()[0]


def frame(*workers: list[tuple[int, float, float, float]]) -> Frame:
    """Per worker the executions of one step: (communicator, start, duration, exposed), the n-th of each being the same one."""
    rows = [(row, at, *execution) for row, executions in enumerate(workers) for at, execution in enumerate(executions)]
    row, occurrence, communicator, start, duration, exposed = (list(column) for column in zip(*rows, strict=True))
    executions = ExecutionColumns(
        row=row, slot=communicator, step=[0] * len(row), occurrence=occurrence, start_us=start, duration_us=duration,
        exposed_us=exposed,
    )  # fmt: skip
    one = CHUNK.communicators[0]
    chunk = msgspec.structs.replace(
        CHUNK,
        communicators=[one, msgspec.structs.replace(one, name="other")],
        slots=[SlotName(communicator=at, op="all_reduce", index=0, bytes=8) for at in (0, 1)],
        executions=executions,
    )
    return build_frame([chunk])


def punctual(*communicators: int) -> list[tuple[int, float, float, float]]:
    """Who is the last to come each time."""
    return [
        (c, start, 1e3, exposed) for c, start, exposed in zip(communicators, (50e3, 51e3, 52e3), (0.0, 0.0, 1e3), strict=True)
    ]


@pytest.mark.parametrize(
    ("waiter", "waits"),
    [
        # On the critical path from the beginning.
        ([(0, 20e3, 31e3, 31e3), (0, 51e3, 1e3, 1e3), (0, 52e3, 1e3, 1e3)], [30e3, 0.0, 0.0]),
        # Hidden behind compute, and nothing comes later by it.
        ([(0, 20e3, 31e3, 0.0), (0, 51e3, 1e3, 0.0), (0, 52e3, 1e3, 0.0)], [0.0, 0.0, 0.0]),
        # Hidden itself, but the two behind it in the queue would have been hidden too: 2 ms of it are paid there.
        ([(0, 20e3, 31e3, 0.0), (0, 51e3, 1e3, 1e3), (0, 52e3, 1e3, 1e3)], [2e3, 0.0, 0.0]),
        # A pause between: the second was not ready before, so the first did not delay it.
        ([(0, 20e3, 30e3, 0.0), (0, 51e3, 1e3, 1e3), (0, 52e3, 1e3, 1e3)], [0.0, 0.0, 0.0]),
        # Another communicator has another queue.
        ([(0, 20e3, 31e3, 0.0), (1, 51e3, 1e3, 1e3), (1, 52e3, 1e3, 1e3)], [0.0, 0.0, 0.0]),
        # Two waits in a queue: the earlier is paid first, the rest of the later was hidden.
        ([(0, 48e3, 3e3, 0.0), (0, 51e3, 1e3, 1e3), (0, 52e3, 5e3, 3e3)], [2e3, 0.0, 2e3]),
    ],
)
def test_a_wait_counts_as_far_as_it_reaches_the_critical_path(
    waiter: list[tuple[int, float, float, float]], waits: list[float]
) -> None:
    measured = measure(frame(waiter, punctual(*(communicator for communicator, *_ in waiter))))
    assert measured.wait_us[:3].tolist() == waits
    assert measured.wait_us[3:].tolist() == [0.0, 0.0, 0.0]


def test_waiting_never_exceeds_the_wait_nor_what_is_exposed() -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        lengths = rng.uniform(0.0, 5e3, (2, 12))
        begins = np.cumsum(
            np.concatenate((np.zeros((2, 1)), lengths[:, :-1] + rng.choice([0.0, 500.0], (2, 11))), axis=1), axis=1
        )
        shown = lengths * rng.uniform(0.0, 1.0, (2, 12))
        jobs = [
            [(0, *map(float, one)) for one in zip(*columns, strict=True)] for columns in zip(begins, lengths, shown, strict=True)
        ]
        measured = measure(frame(*jobs))
        raw = (lengths - lengths.min(axis=0)).reshape(-1)
        assert (measured.wait_us >= -1e-9).all()
        assert (measured.wait_us <= raw + 1e-9).all()
        assert (measured.wait_us.reshape(2, 12).sum(axis=1) <= shown.sum(axis=1) + 1e-6).all()
