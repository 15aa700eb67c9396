"""From readings to a rank's figures; and threads that hang, fail, sleep and end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hardware_kit import Gpu, RecordedNvml, rdma, write_sysfs
from waiting import until

from eroica.producers.agent.hardware import Hardware
from eroica.producers.agent.nics import NicSource
from eroica.producers.agent.nvml import NvmlSource
from eroica.producers.agent.readings import MAX_READINGS, Absent, Moments, Reading, moment
from eroica.producers.agent.sampler import MAX_FAILURES, SampledHost, SampledSource
from eroica.producers.trace.samples import SampleSeries, with_levels
from eroica.schemas.summaries import FunctionPattern, Identity, Metric

pytestmark = [pytest.mark.unit, pytest.mark.timeout(300)]
SECOND = 1_000_000


def now_us() -> int:
    return time.time_ns() // 1_000


def who(pid: int = 1, local_rank: int = 0) -> Identity:
    return Identity(job="j", run_id="r", request="q", cls="all", rank=0, world_size=8, host="h", pid=pid, local_rank=local_rank)


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        pytest.param("gauge", [4, 6, 8], (6, 4, 8), id="levels: mean, lowest, highest"),
        pytest.param("counter", [10, 30, 40], (15, 10, 20), id="counters: per second"),
        pytest.param("counter", [10, 2, 12], (10, 10, 10), id="a counter that was reset tells nothing of that interval"),
        pytest.param("counter", [10], None, id="one reading is no rate"),
        pytest.param("events", [3, 3, 5], (2, 2, 2), id="events: how many"),
        pytest.param("events", [7, 1], (0, 0, 0), id="events that were reset"),
    ],
)
def test_what_a_window_comes_to(kind: str, values: list[float], told: tuple[float, float, float] | None) -> None:
    moments = Moments()
    for second, value in enumerate(values):
        moments.add(moment(second * SECOND, [Reading("x", "u", value, "d", kind)]))  # type: ignore[arg-type]
    found = moments.metrics(0, 2 * SECOND)
    assert [(m.mean, m.min, m.max) for m in found] == ([] if told is None else [told])


def test_a_window_takes_the_moments_around_it_and_no_others() -> None:
    moments = Moments()
    for second in range(10):
        moments.add(moment(second * SECOND, [Reading("x", "u", second)]))
    assert [m.at_us // SECOND for m in moments.around(int(3.2 * SECOND), int(4.9 * SECOND))] == [3, 4, 5]
    assert [m.at_us // SECOND for m in moments.around(int(8.5 * SECOND), int(99 * SECOND))] == [8, 9]


def test_a_moment_is_bounded_and_finite() -> None:
    endless = (Reading(f"n{i}", "u", float("nan") if i == 0 else i) for i in range(10**9))
    one = moment(0, endless)
    assert len(one.values) == MAX_READINGS and ("n0", "") not in one.values


def hardware(nvml: RecordedNvml | None = None, sys: Path | None = None) -> Hardware:
    gpus = [SampledSource("gpus", lambda: NvmlSource(nvml), 0.02, now_us)] if nvml is not None else []
    nics = [SampledSource("nics", lambda: NicSource(sys), 0.02, now_us)] if sys is not None else []
    return Hardware([*nics, *gpus], gpus)


def sample(one: Hardware, pids: Iterable[int] = (1,)) -> int:
    """Have every source that answers read three times, so that there are rates too; returns when that began."""
    start = now_us()
    for _ in range(3):
        asked_us = now_us()
        until(lambda: (one.want(pids), all(s.silent or s.last_us > asked_us for s in one._sources))[1], "samples")  # noqa: B023
    return start


def window_of(one: Hardware, identity: Identity, pids: Iterable[int] = (1,)) -> dict[tuple[str, str], Metric]:
    try:
        start = sample(one, pids)
        return {(m.name, m.device): m for m in one.window(identity, start, now_us()).metrics}
    finally:
        one.close()


def test_a_rank_gets_the_figures_of_the_gpu_that_its_process_is_on() -> None:
    nvml = RecordedNvml([Gpu(clock=1980, pids=(os.getpid(),)), Gpu(clock=700, pids=(4_000_000,))])
    told = window_of(hardware(nvml), who(pid=os.getpid(), local_rank=1), [os.getpid()])
    assert told["sm_clock", ""].mean == 1980
    assert told["gpu_foreign_processes", ""].mean == 0
    assert ("sm_clock_max", "") not in told and not [key for key in told if key[1]]


def test_without_its_process_in_sight_the_local_rank_counts_and_that_is_said() -> None:
    one = hardware(RecordedNvml([Gpu(clock=1980), Gpu(clock=700)]))
    start = sample(one)
    window = one.window(who(local_rank=1), start, now_us())
    one.close()
    assert next(m.mean for m in window.metrics if m.name == "sm_clock") == 700
    assert window.notes == ("its GPU is taken to be number 1, its local rank",)
    [series] = window.series
    assert series.resource == "sm_clock" and set(series.value) == {round(700 / 1980, 4)}


def test_of_many_nics_the_host_tells_one_figure_and_those_that_stand_out(tmp_path: Path) -> None:
    files: dict[str, object] = {}
    for i in range(8):
        files |= rdma(f"mlx5_{i}", rate="100 Gb/sec (2X NDR)" if i == 5 else "400 Gb/sec (4X NDR)")
    told = window_of(hardware(sys=write_sysfs(tmp_path, files)), who())
    assert {device for name, device in told if name == "nic_link"} == {"", "mlx5_5"}
    assert told["nic_link", ""].mean == told["nic_link", "mlx5_5"].mean == 100
    assert {device for name, device in told if name == "nic_retransmits"} == {""}
    assert len(msgspec.json.encode(list(told.values()))) < 6_000


class Hanging:
    """A driver that does not come back."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = self.answered = 0

    def read(self, pids: frozenset[int]) -> Iterable[Reading]:
        self.asked += 1
        self.release.wait(600)
        self.answered += 1
        return []


def test_a_source_that_hangs_holds_up_nobody() -> None:
    hanging = Hanging()
    stuck, host = SampledSource("stuck", lambda: hanging, 0.02, now_us), SampledHost(0.02, now_us)
    one = Hardware([stuck, host], [])
    until(lambda: (one.want([os.getpid()]), hanging.asked)[1] > 0, "the reading that hangs")
    for _ in range(100):
        one.want([os.getpid()])
        one.at_once()
        time.sleep(0.005)
    assert (hanging.asked, hanging.answered) == (1, 0), "nobody has waited for it"
    until(lambda: (one.want([1]), stuck.silent)[1], "it counts as silent")
    start = sample(one)
    names = {m.name for m in one.window(who(), start, host.last_us).metrics}
    assert "cpu_busy" in names
    hanging.release.set()
    one.close()


def test_an_absent_source_is_said_once_and_not_asked_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def make() -> NicSource:
        asked.append(1)
        raise Absent("there is none")

    one = SampledSource("thing", make, 0.01, now_us)
    with caplog.at_level(logging.INFO):
        until(lambda: (one.want(frozenset()), one.silent)[1], "the absence")
        for _ in range(20):
            one.want(frozenset())
            one.at_once()
            time.sleep(0.005)
    one.close()
    assert len(asked) == 1
    assert [r.getMessage() for r in caplog.records if "thing" in r.getMessage()] == ["thing: absent on this host: there is none"]


class Failing:
    """A source that never can."""

    def read(self, pids: frozenset[int]) -> Iterable[Reading]:
        raise OSError("the page is gone")


def test_failures_are_counted_and_said_once_and_then_the_source_rests(caplog: pytest.LogCaptureFixture) -> None:
    one = SampledSource("page", Failing, 0.001, now_us)
    with caplog.at_level(logging.INFO):
        until(lambda: (one.want(frozenset()), one.failures >= MAX_FAILURES)[1], "failures")
        for _ in range(20):
            one.want(frozenset())
            time.sleep(0.005)
    window = Hardware([one], []).window(who(), 0, 1)
    one.close()
    assert one.failures == MAX_FAILURES
    assert window.notes == (f"{MAX_FAILURES} readings of page have failed since the agent began",)
    assert sum("the page is gone" in r.getMessage() for r in caplog.records) == 1


def test_nothing_is_sampled_until_somebody_wants_it_and_the_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eroica.producers.agent.sampler.WANTED_S", 0.1)
    reads = []

    class Counting:
        def read(self, pids: frozenset[int]) -> Iterable[Reading]:
            reads.append(pids)
            return []

    before = set(threading.enumerate())
    one = SampledSource("quiet", Counting, 0.01, now_us)
    assert set(threading.enumerate()) <= before and not reads, "threads of other tests may end meanwhile"
    until(lambda: (one.want(frozenset({os.getpid()})), len(reads) > 2)[1], "reads")
    assert os.getpid() in reads[0]
    thread = one._thread
    assert thread is not None
    until(lambda: not one._go.is_set(), "rest")
    calm = len(reads)
    time.sleep(0.1)
    assert len(reads) == calm
    one.close()
    thread.join(100)
    assert not thread.is_alive()


def test_levels_stand_in_where_nothing_was_sampled_and_say_so() -> None:
    functions = [
        FunctionPattern(name="gemm", category="compute", beta=0.5, mu=0.9, resource="critical_share"),
        FunctionPattern(name="nccl", category="collective", beta=0.1, mu=40.0, resource="bus_gbps"),
        FunctionPattern(name="sampled", category="compute", beta=0.1, mu=0.7, resource="sm_clock"),
    ]
    series = SampleSeries(resource="sm_clock", at_us=[1, 2, 3, 4], value=[0.4, 0.6, float("nan"), 0.5])
    out, notes = with_levels(functions, [series, SampleSeries(resource="unheard of", at_us=[], value=[])])
    assert [(f.mu, f.resource) for f in out] == [(0.5, "sm_clock"), (40.0, "bus_gbps"), (0.7, "sm_clock")]
    assert out[0].sigma == pytest.approx(0.0816, abs=1e-4)
    assert len(notes) == 1 and "3 samples" in notes[0]
    assert with_levels(functions, [])[0] == functions
