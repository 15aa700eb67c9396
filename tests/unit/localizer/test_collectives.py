"""What is read of collectives chunk by chunk is what the table of all executions holds."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import pytest
from gallery import simulated

from eroica.localizer import collectives
from eroica.localizer.build import build_frame
from eroica.localizer.frame import Frame
from eroica.schemas.groups import GroupChunk

pytestmark = pytest.mark.unit

PIPELINE = "{world: 16, framework: megatron, sizes: {tp: 2, pp: 4}, micro_batches: 4, sharding: 1}"


@pytest.fixture(scope="module")
def chunks() -> list[GroupChunk]:
    """Sends and receives, tensor and data groups; four classes."""
    return simulated(f"name: x\njob: {PIPELINE}\nfaults: [{{fault: slow_gpu_clock, dose: 1.3}}]\n")[0]


def numbered_far_apart(chunk: GroupChunk) -> GroupChunk:
    """With sequence numbers that no table has room for."""
    e = chunk.executions
    return msgspec.structs.replace(
        chunk, executions=msgspec.structs.replace(e, occurrence=[k * 10**12 + 7 for k in e.occurrence])
    )


def assert_right(frame: Frame) -> None:
    e, m, all_ = frame.executions, frame.meetings, frame.collectives
    assert e.size == all_.size > 0
    took, lost = defaultdict(list), defaultdict(float)
    for instance, us in zip(e.instance.tolist(), e.duration_us.tolist(), strict=True):
        took[instance].append(us)
    assert m.transfer_us.tolist() == [min(took[i]) for i in range(len(took))]
    assert m.members.tolist() == [len(took[i]) for i in range(len(took))]
    assert np.array_equal(m.communicator[e.instance], e.communicator)
    assert np.array_equal(m.kind[e.instance], e.kind)
    communicator, row = all_.members
    assert list(zip(communicator.tolist(), row.tolist(), strict=True)) == sorted(
        set(zip(e.communicator.tolist(), e.row.tolist(), strict=True))
    )
    excess = np.arange(m.members.size, dtype=np.float64) % 97 * 10
    by_step: dict[tuple[int, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for c, r, s, i, x in zip(*(x.tolist() for x in (e.communicator, e.row, e.step, e.instance, e.exposed_us)), strict=True):
        by_step[c, r, s][0] += excess[i]
        by_step[c, r, s][1] += max(x, 0.0)
    for (c, r, _), (slow, exposed) in by_step.items():
        lost[c, r] += min(slow, exposed) / all_.steps.size
    worst = [max((us for (c, _), us in lost.items() if c == number), default=0.0) for number in range(len(frame.communicators))]
    assert np.allclose(all_.lost_us(excess), worst)


@pytest.mark.parametrize("at_once", [1, 1_000, 10**9])
@pytest.mark.parametrize("far", [False, True])
def test_chunk_by_chunk(chunks: list[GroupChunk], monkeypatch: pytest.MonkeyPatch, at_once: int, far: bool) -> None:
    monkeypatch.setattr(collectives, "AT_ONCE", at_once)
    frame = build_frame([numbered_far_apart(c) if far else c for c in chunks])
    assert any(slot.startswith("send up") for slot in frame.kinds), "pairs are matched"
    assert_right(frame)


def test_a_rank_that_stands_twice_counts_once(chunks: list[GroupChunk]) -> None:
    first, second, *rest = chunks
    again = msgspec.structs.replace(
        second, workers=[msgspec.structs.replace(second.workers[0], rank=first.workers[0].rank), *second.workers[1:]]
    )
    frame = build_frame([first, again, *rest])
    whole = build_frame(chunks)
    assert frame.size == whole.size - 1
    assert_right(frame)
    place = np.arange(frame.size)
    table = frame.patterns.table("exclusive_us", place, frame.size, len(frame.functions))
    same = np.isin(whole.ranks, frame.ranks)
    assert np.array_equal(
        table, whole.patterns.table("exclusive_us", np.arange(whole.size), whole.size, len(whole.functions))[same]
    )
    assert frame.pattern["exclusive_us"].sum() == pytest.approx(table.sum())
    assert frame.pattern_row.size == frame.pattern_function.size == frame.pattern["beta"].size


def test_ranks_of_one_class_between_those_of_another(chunks: list[GroupChunk]) -> None:
    """Rows ascend by rank whatever chunk they stand in."""
    other = {r: i for i, r in enumerate(sorted(range(16), key=lambda r: (r % 4, r)))}
    mixed = [
        msgspec.structs.replace(c, workers=[msgspec.structs.replace(w, rank=other[w.rank]) for w in c.workers]) for c in chunks
    ]
    mixed = [
        msgspec.structs.replace(c, communicators=[msgspec.structs.replace(n, ranks="") for n in c.communicators]) for c in mixed
    ]
    frame = build_frame(mixed)
    assert (np.diff(frame.cls) < 0).any()
    assert (np.diff(frame.executions.row) >= 0).all()
    assert_right(frame)
