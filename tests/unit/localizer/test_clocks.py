"""Waiting by clocks, put right by the common ends of collectives, against waiting without clocks."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from gallery import simulated
from scenes import Scene, steady

from eroica.localizer.build import build_frame
from eroica.localizer.clocks import read_clocks
from eroica.localizer.frame import Frame
from eroica.localizer.rules.eroica import CLOCKS_AGREE
from eroica.localizer.waiting import measure
from eroica.schemas.groups import GroupChunk

pytestmark = pytest.mark.unit

PIPELINE = "job: {world: 16, framework: megatron, sizes: {tp: 2, pp: 4}, micro_batches: 8, sharding: 1}\n"
EXPERTS = "job: {world: 16, framework: megatron, sizes: {tp: 2, ep: 4}, micro_batches: 2, model: {experts: true}}\n"
DATA = "job: {world: 16, framework: fsdp, sharding: 3, model: {layers_per_stage: 4}}\n"


def shifted(chunks: list[GroupChunk], seed: int) -> Frame:
    """Each worker's clock begins anywhere within half a minute."""
    rng = np.random.default_rng(seed)
    moved = []
    for chunk in chunks:
        by = rng.uniform(-30e6, 30e6, len(chunk.workers))
        starts = [start + float(by[row]) for row, start in zip(chunk.steps.row, chunk.steps.start_us, strict=True)]
        moved.append(msgspec.structs.replace(chunk, steps=msgspec.structs.replace(chunk.steps, start_us=starts)))
    return build_frame(moved)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("job", "least"),
    [
        pytest.param(DATA, 0.99, id="parameter shards"),
        pytest.param(PIPELINE, 0.9, id="tensor and pipeline"),
        pytest.param(EXPERTS, 0.95, id="experts"),
    ],
)
def test_both_ways_find_the_same_waiting_whatever_the_clocks_say(job: str, least: float, seed: int) -> None:
    chunks, _ = simulated(job + f"faults: [{{fault: slow_gpu_clock, dose: 1.3}}]\nseed: {seed}\n")
    frame = shifted(chunks, seed)
    clocks = read_clocks(frame, measure(frame))
    assert clocks is not None
    assert np.isfinite(clocks.offset_us).all()
    assert clocks.agreement >= least


def test_offsets_and_waits_are_those_of_the_scene() -> None:
    scene = Scene(8, steady(50_000.0, {3: 1.5}), communicators=[(0, 1, 2, 3), (4, 5, 6, 7), range(8)])
    frame = build_frame(scene.chunks())
    moved = shifted(scene.chunks(), 5)
    told, waiting = read_clocks(moved, measure(moved)), measure(frame)
    assert told is not None
    by = np.random.default_rng(5).uniform(-30e6, 30e6, 8)
    assert told.offset_us - told.offset_us[0] == pytest.approx(by[0] - by, abs=1.0)
    shared = waiting.arriver >= 0
    assert told.wait_us[shared] == pytest.approx((frame.executions.duration_us - waiting.transfer_us)[shared], abs=1.0)
    assert told.agreement == pytest.approx(1.0, abs=1e-4)


def test_members_that_do_not_end_together_are_noticed() -> None:
    [chunk] = Scene(8, steady(50_000.0, {3: 1.5})).chunks()
    rng = np.random.default_rng(1)
    # What each member calls the collective ends when its own part is done.
    durations = [d * float(f) for d, f in zip(chunk.executions.duration_us, rng.uniform(0.05, 1.0, 1_000), strict=False)]
    frame = build_frame(
        [msgspec.structs.replace(chunk, executions=msgspec.structs.replace(chunk.executions, duration_us=durations))]
    )
    clocks = read_clocks(frame, measure(frame))
    assert clocks is not None
    assert clocks.agreement < CLOCKS_AGREE


def test_who_met_nobody_has_no_clock() -> None:
    apart = build_frame(Scene(6, steady(50_000.0, {}), communicators=[(0, 1), (2, 3), (4,), (5,)]).chunks())
    clocks = read_clocks(apart, measure(apart))
    assert clocks is not None
    assert np.isnan(clocks.offset_us).tolist() == [False] * 4 + [True] * 2
