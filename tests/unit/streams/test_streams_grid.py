"""The grid and the liveness of a shard keep accounts as they go; counting everything anew each time gives the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams_kit import SECOND, T0, batch, iterations

from eroica.schemas.codec import encode
from eroica.schemas.iterations import IterationBatch
from eroica.schemas.settings import DetectSettings
from eroica.streams import shard
from eroica.streams.grid import MAX_OPEN_STEPS, StepGrid
from eroica.streams.liveness import Liveness
from eroica.streams.shard import ShardCore

pytestmark = pytest.mark.unit

RANKS = 3


class PlainGrid:
    """The rules of the grid with a dictionary of cells and no bookkeeping at all."""

    cells = 0

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._held: dict[tuple[int, int], int] = {}
        self._closed_any = False
        self.head, self.end = -1, 0

    def put(self, row: int, first_step: int, values: npt.NDArray[np.int64]) -> tuple[int, int]:
        if self.head < 0:
            self.head = self.end = first_step
        if first_step < self.head and not self._closed_any:
            if self.end - first_step > MAX_OPEN_STEPS:
                return int(values.size), 0
            self.head = first_step
        late = ahead = 0
        for (r, i), value in np.ndenumerate(values):
            cell = row + r, first_step + i
            if cell[1] < self.head:
                late += 1
            elif cell[1] >= self.head + MAX_OPEN_STEPS:
                ahead += 1
            else:
                self._held[cell] = max(int(value), self._held.get(cell, -1))
                self.end = max(self.end, cell[1] + 1)
        return late, ahead

    def full_until(self) -> int:
        step = self.head
        while all((row, step) in self._held for row in range(self._ranks)):
            step += 1
        return step

    def close(self, until: int) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        first, stop = self.head, min(until, self.end)
        rows = [[self._held.get((row, step), -1) for step in range(first, stop)] for row in range(self._ranks)]
        cells = np.array(rows, dtype=np.int64).reshape(self._ranks, -1)
        self.head = max(first, until)
        self.end = max(self.end, self.head)
        self._closed_any = True
        return first, (cells >= 0).sum(axis=0), cells


class PlainLiveness(Liveness):
    """Looks through all ranks each time."""

    def slowest(self) -> int:
        return min(self._holds)


puts = st.tuples(
    st.integers(0, RANKS - 1), st.integers(0, 40) | st.integers(8_000, 9_000), st.integers(1, 30), st.integers(1, RANKS)
)
closes = st.integers(-2, 12)


@given(st.lists(puts | closes, max_size=40))
@settings(max_examples=120)
def test_the_grid_agrees_with_a_plain_one(moves: list[tuple[int, int, int, int] | int]) -> None:
    grid, plain = StepGrid(RANKS), PlainGrid(RANKS)
    for number, move in enumerate(moves):
        if isinstance(move, int):
            if grid.head < 0:
                continue
            until = grid.full_until() + move
            first, count, cells = grid.close(until)
            expected = plain.close(until)
            assert first == expected[0] and count.tolist() == expected[1].tolist() and cells.tolist() == expected[2].tolist()
        else:
            row, step, n, ranks = move
            values = np.full((min(ranks, RANKS - row), n), 1_000 + number % 7, dtype=np.int64)
            assert grid.put(row, step, values) == plain.put(row, step, values)
        assert (grid.head, grid.end, grid.full_until()) == (plain.head, plain.end, plain.full_until())


@st.composite
def talks(draw: st.DrawFn) -> list[IterationBatch]:
    """Batches of two hosts with two ranks each: steps lost, told twice and out of order, ranks that end, return or go silent."""
    made = []
    reached = dict.fromkeys(range(4), 0)
    at = T0
    for turn in range(draw(st.integers(2, 14))):
        at += draw(st.sampled_from([1, 1, 1, 3])) * SECOND
        for host in draw(st.sampled_from([(0, 1), (0, 1), (1, 0), (0,)])):
            ranks = []
            for rank in (2 * host, 2 * host + 1):
                first = max(0, reached[rank] + draw(st.sampled_from([0, 0, 0, 0, 1, -2, 9])))
                durations = [50_000 + (rank * 37 + turn) % 11] * draw(st.sampled_from([0, 3, 3, 3, 4, 12]))
                reached[rank] = first + len(durations)
                ended = draw(st.integers(0, 19)) == 7
                ranks.append(iterations(rank, first, durations, idle_us=draw(st.sampled_from([0, SECOND])), ended=ended))
            made.append(batch(ranks, host=f"h{host}", at=at, seq=turn))
    for _ in range(draw(st.integers(0, 3))):
        a, b = (draw(st.integers(0, len(made) - 1)) for _ in range(2))
        made[a], made[b] = made[b], made[a]
    return [*made, *made[: draw(st.integers(0, 3))]]


@given(talks(), st.integers(1, 6))
@settings(max_examples=60)
def test_a_shard_decides_the_same_as_with_plain_accounts(batches: list[IterationBatch], grace: int) -> None:
    choices = DetectSettings(shard_grace_steps=grace, silence_ms=4_000)
    core = ShardCore(choices)
    said = [encode(output.message) for one in batches for output in core.feed(one)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "StepGrid", PlainGrid)
        patch.setattr(shard, "Liveness", PlainLiveness)
        plain = ShardCore(choices)
        assert [encode(output.message) for one in batches for output in plain.feed(one)] == said
    assert (core.counters.late, core.counters.ahead) == (plain.counters.late, plain.counters.ahead)
