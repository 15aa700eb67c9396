"""What an agent knows of processes outlives it; what no longer holds is not taken over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_unit_kit import MONO_NS, NOW_US, hello, iteration, request

from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hoststate import HostState
from eroica.producers.agent.launches import SETTLE_NS, SILENT_NS, SILENT_STEPS
from eroica.producers.agent.liveness import ProcessWatch
from eroica.producers.agent.openrequests import OpenRequests
from eroica.producers.agent.remembered import Remembered
from eroica.producers.hook.wire import LOADER_EXIT, Event
from eroica.schemas.iterations import IterationBatch

pytestmark = pytest.mark.unit
OURS = os.getpid()
GONE = 4_000_007
KEY = ("job", "run-1")
MEAN_US = 40_000
LATER_NS = MONO_NS + 90 * 10**9


def fresh() -> tuple[HostState, ProcessWatch]:
    return HostState("h", 1_024, Counters()), ProcessWatch(lambda _: False)


def write(folder: Path, boot: str = "boot", pids: tuple[int, ...] = (OURS, GONE)) -> None:
    """An agent that follows *pids*, ranks from 0, steps 0 to 2 behind them, in the middle of the next."""
    state, watch = fresh()
    for rank, pid in enumerate(pids):
        state.hello(hello(pid, rank), NOW_US, MONO_NS)
        watch.met(pid)
        for step in range(3):
            state.event(iteration(pid, step, MEAN_US))
        state.event(Event(LOADER_EXIT, pid, 3, MONO_NS + 7_000_000, 0, 0))
    state.gone(GONE)
    remembered = Remembered(folder, boot)
    remembered.save({}, watch)
    state.batches(NOW_US, MONO_NS)
    state.runs[KEY].started_at_us = NOW_US - 99
    remembered.save(state.runs, watch)


def taken_over(folder: Path, boot: str = "boot") -> tuple[int, HostState, ProcessWatch]:
    state, watch = fresh()
    return Remembered(folder, boot).take_over(state, watch, LATER_NS), state, watch


def test_a_process_that_stands_still_is_followed_from_where_it_was(tmp_path: Path) -> None:
    write(tmp_path)
    alive, state, watch = taken_over(tmp_path)
    assert alive == 1
    assert state.runs[KEY].started_at_us == NOW_US - 99
    assert state.living_pids() == [OURS] and watch.gone([OURS]) == []
    (output,) = state.batches(NOW_US, LATER_NS)
    assert isinstance(output.message, IterationBatch)
    idle_us = (LATER_NS - MONO_NS - 7_000_000) // 1_000
    assert [(r.rank, r.last_event, r.idle_us, r.duration_us) for r in output.message.ranks] == [
        (0, "loader_exit", idle_us, []),
        (1, "process_gone", idle_us, []),
    ]
    # When it goes on it says hello; what was reported is not reported again.
    state.hello(hello(OURS, 0), NOW_US, LATER_NS)
    for step in (2, 3):
        state.event(iteration(OURS, step, mono_ns=LATER_NS))
    (output,) = state.batches(NOW_US + 1, LATER_NS)
    assert isinstance(output.message, IterationBatch)
    assert [(r.first_step, len(r.duration_us)) for r in output.message.ranks] == [(3, 1), (0, 0)]


def spoil(name: str, text: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(text) and None


@pytest.mark.parametrize(
    ("change", "known", "last_step"),
    [
        (lambda _: None, {0, 1}, 2),
        (lambda folder: write(folder, boot="another start of the machine"), set(), 0),
        (lambda folder: write(folder, pids=(GONE,)), set(), 0),
        (lambda folder: (folder / "processes").unlink(), set(), 0),
        (lambda folder: (folder / "places").unlink(), {0, 1}, -1),
        (spoil("places", b'{"places": [{"pid": -1}]}'), {0, 1}, -1),
        (spoil("processes", b"\xff\x00 cut o"), set(), 0),
        (spoil("processes", b'{"boot": "boot", "processes": [{"hello": {"v": 1}, "started": 1, "launch_at_us": 1, '
               b'"refused": false}]}'), set(), 0),
    ],
)  # fmt: skip
def test_what_no_longer_holds_is_not_taken_over(
    tmp_path: Path, change: Callable[[Path], None], known: set[int], last_step: int
) -> None:
    write(tmp_path)
    change(tmp_path)
    _, state, _ = taken_over(tmp_path)
    assert {rank for run in state.runs.values() for rank in run.workers} == known
    assert all(run.workers[0].last_step == last_step for run in state.runs.values())


def test_another_process_with_the_old_number_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        state, watch = fresh()
        state.hello(hello(other.pid, 0), NOW_US, MONO_NS)
        state.hello(hello(OURS, 1), NOW_US, MONO_NS)
        watch.met(OURS)
        assert watch.recall(other.pid, 1) is False, "it began at another time"
        Remembered(tmp_path, "boot").save(state.runs, watch)
        alive, state, watch = taken_over(tmp_path)
        assert alive == 1
        assert watch.gone(state.living_pids()) == [other.pid]


def test_a_folder_that_takes_no_files_does_no_harm(tmp_path: Path) -> None:
    state, watch = fresh()
    state.hello(hello(OURS, 0), NOW_US, MONO_NS)
    Remembered(tmp_path / "absent", "boot").save(state.runs, watch)
    assert taken_over(tmp_path / "absent")[0] == 0


def test_a_refused_launch_stays_refused(tmp_path: Path) -> None:
    state, watch = fresh()
    state.hello(hello(OURS, 0), NOW_US, MONO_NS)
    watch.met(OURS)
    state.runs[KEY].refused = True
    Remembered(tmp_path, "boot").save(state.runs, watch)
    _, state, _ = taken_over(tmp_path)
    assert state.runs[KEY].refused


@pytest.mark.parametrize(
    ("mode", "after_ns", "spoke", "asked"),
    [
        ("stacks", 0, "nothing", True),
        ("profile", SILENT_NS - 1, "nothing", False),
        ("profile", max(SILENT_NS, SILENT_STEPS * MEAN_US * 1_000), "nothing", True),
        ("profile", SETTLE_NS - 1, "hello", False),
        ("profile", SETTLE_NS, "hello", True),
        ("profile", 0, "iteration", True),
    ],
)
def test_a_profile_is_asked_for_when_it_is_known_in_which_step_the_process_is(
    tmp_path: Path, mode: str, after_ns: int, spoke: str, asked: bool
) -> None:
    write(tmp_path)
    _, state, _ = taken_over(tmp_path)
    if spoke != "nothing":
        state.hello(hello(OURS, 0), NOW_US, LATER_NS)
    if spoke == "iteration":
        state.event(iteration(OURS, 500, MEAN_US, LATER_NS))
    open_ = OpenRequests()
    open_.add(request(mode=mode, steps=0 if mode == "stacks" else 3, classes={"all": "0"}))
    assert len(open_.due(state.runs, frozenset(), NOW_US, LATER_NS + after_ns)) == asked
