"""Traces, stacks, host metrics and the summariser's limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.producers.agent.hostmetrics import SAMPLE_INTERVAL_US, UNITS, HostMetrics, Raw, difference
from eroica.producers.agent.stacks import MAX_ENTRY_CHARACTERS, dump_stacks, format_dump
from eroica.producers.agent.summariser import MEMORY_BASE_BYTES, memory_limit_bytes
from eroica.producers.agent.traces import PREFIX, TraceStore

pytestmark = pytest.mark.unit
GIB = 2**30


def test_traces_of_a_killed_agent_are_removed_and_those_of_a_living_one_are_not(tmp_path: Path) -> None:
    living = TraceStore(str(tmp_path))
    code = (
        "import os, sys; from eroica.producers.agent.traces import TraceStore\n"
        "s = TraceStore(sys.argv[1]); (s.for_request('r') / 'rank0.json').write_text('x'); os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 2
    third = TraceStore(str(tmp_path))
    assert third.removed == 1
    assert set(tmp_path.glob(f"{PREFIX}*")) == {living.directory, third.directory}
    living.close()
    third.close()
    assert list(tmp_path.iterdir()) == []


def test_a_successor_goes_on_with_the_folder_of_a_killed_agent(tmp_path: Path) -> None:
    base, memo = tmp_path / "base", tmp_path / "traces"
    base.mkdir()
    code = (
        "import os, sys; from pathlib import Path; from eroica.producers.agent.traces import TraceStore\n"
        "s = TraceStore(sys.argv[1], Path(sys.argv[2])); (s.for_request('r') / 'rank0.json').write_text('x'); os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(base), str(memo)], check=False)
    store = TraceStore(str(base), memo)
    assert store.adopted and store.removed == 0
    trace = store.for_request("r") / "rank0.json"
    store.tidy(set())
    assert store.is_ours(str(trace), "r"), "the request may not have been read again yet"
    other = TraceStore(str(base), memo)
    assert not other.adopted and other.directory != store.directory, "a living agent keeps its folder"
    other.close()
    store.remove(trace)
    assert store.was_ours(str(trace), "r") and not store.is_ours(str(trace), "r")
    store.close()
    assert list(base.iterdir()) == [] and not memo.exists()


@pytest.mark.parametrize(
    "text", ["", "/", "/nowhere", "{base}/eroica-traces-x", "{base}/other", "{base}/eroica-traces-link", "\0"]
)
def test_a_folder_that_is_no_agents_is_not_taken_over(tmp_path: Path, text: str) -> None:
    base, memo = tmp_path / "base", tmp_path / "traces"
    (base / "other").mkdir(parents=True)
    (base / f"{PREFIX}x").mkdir()
    (base / f"{PREFIX}link").symlink_to(base / "other")
    memo.write_text(text.format(base=base))
    store = TraceStore(str(base), memo)
    assert not store.adopted
    store.close()


def test_only_a_plain_file_in_the_requests_own_folder_is_read(tmp_path: Path) -> None:
    store = TraceStore(str(tmp_path))
    folder = store.for_request("../../etc")
    assert folder.parent == store.directory
    good = folder / "rank0.json"
    good.write_text("{}")
    good.with_suffix(".side.json").write_text("{}")
    secret = tmp_path / "secret"
    secret.write_text("s")
    (folder / "link.json").symlink_to(secret)
    assert store.is_ours(str(good), "../../etc")
    for path in (
        folder / "link.json",
        secret,
        folder / ".." / ".." / "secret",
        folder,
        folder / "absent.json",
        folder / "null\0byte",
    ):
        assert not store.is_ours(str(path), "../../etc")
    assert not store.is_ours(str(good), "other")
    store.remove(good)
    assert sorted(p.name for p in folder.iterdir()) == ["link.json"]
    store.tidy(set())
    assert not folder.exists()
    store.close()


def test_stacks_are_told_outermost_first_and_are_bounded() -> None:
    frames = [{"name": f"f{n}", "short_filename": "a.py", "line": n} for n in range(3)]
    threads = [
        {"pid": 7, "thread_id": 1, "thread_name": "Main/Thread", "active": True, "owns_gil": True, "frames": frames},
        {"pid": 7, "thread_id": 2, "thread_name": None, "active": False, "frames": [{"name": "x;y" * 3_000, "line": None}] * 900},
    ]
    first, second = format_dump(json.dumps(threads).encode())
    assert first == "7/Main_Thread/active+gil: f2 (a.py:2);f1 (a.py:1);f0 (a.py:0)"
    assert len(second) == MAX_ENTRY_CHARACTERS
    assert format_dump(b"[1, {}, {'") == []
    assert format_dump(b'{"a": 1}') == []


def test_real_stacks_of_a_process_and_its_child() -> None:
    inner = "import time\ndef waits_for_ever():\n    time.sleep(600)\nprint('ready', flush=True)\nwaits_for_ever()\n"
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
        "def waits_for_ever():\n    time.sleep(600)\n"
        "print('ready', flush=True)\nwaits_for_ever()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "ready\n"]
        found = dump_stacks(process.pid, 100_000)
        if "no permission" in found.error:
            pytest.skip(found.error)
        assert found.error == ""
        stuck = [t for t in found.threads if "waits_for_ever" in t]
        assert len({t.split("/")[0] for t in stuck}) == 2, found.threads
    finally:
        subprocess.run(["kill", "-9", *children_of(process.pid), str(process.pid)], check=False)
        process.wait()


def children_of(pid: int) -> list[str]:
    import psutil

    return [str(child.pid) for child in psutil.Process(pid).children(recursive=True)]


def test_why_stacks_are_missing_is_said() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert "is gone" in dump_stacks(process.pid, 5_000).error
    assert "did not start" in dump_stacks(process.pid, 5_000, program="/nonexistent/py-spy").error


def test_a_refused_look_says_what_to_do(tmp_path: Path) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\necho 'Error: Permission Denied: Try running again with elevated permissions' >&2\n"
                    "echo 'Operation not permitted (os error 1)' >&2\nexit 1\n")  # fmt: skip
    fake.chmod(0o700)
    found = dump_stacks(1, 100_000, program=str(fake))
    assert found.threads == []
    assert "SYS_PTRACE" in found.error and "ptrace_scope" in found.error


def raw(at_us: int, busy: float, total: float, own: float = 0.0, steal: float | None = 0.0, stalled: int = 0) -> Raw:
    return Raw(at_us, busy, total, steal, own, 1.5, 0.25, {"cpu": stalled})


def test_shares_are_of_the_time_between_two_readings() -> None:
    values = difference(raw(0, 10, 100, own=4), raw(2_000_000, 13, 104, own=6, steal=1.0, stalled=500_000))
    assert values == {
        "load1": 1.5, "mem_available": 0.25, "cpu_busy": 0.75, "cpu_steal": 0.25, "cpu_foreign": 0.5, "cpu_pressure": 0.25,
    }  # fmt: skip


def test_counters_that_stand_still_or_run_backwards_give_no_nonsense() -> None:
    assert set(difference(raw(0, 10, 100), raw(0, 10, 100))) == {"load1", "mem_available", "cpu_pressure"}
    values = difference(raw(0, 10, 100, own=50), raw(1_000_000, 5, 110, own=0, steal=None, stalled=-5))
    assert values["cpu_busy"] == values["cpu_foreign"] == values["cpu_pressure"] == 0.0
    assert "cpu_steal" not in values


def test_a_window_gets_the_samples_inside_it() -> None:
    readings = iter([raw(n * SAMPLE_INTERVAL_US, n * n, 10.0 * n) for n in range(100)])
    metrics = HostMetrics(lambda _now, _pids: next(readings))
    for n in range(10):
        metrics.sample(n * SAMPLE_INTERVAL_US, [1])
        metrics.sample(n * SAMPLE_INTERVAL_US + 1, [1])
    found = {m.name: m for m in metrics.window(3 * SAMPLE_INTERVAL_US, 5 * SAMPLE_INTERVAL_US)}
    assert (found["cpu_busy"].min, found["cpu_busy"].max) == (0.7, 0.9)
    assert {m.name for m in metrics.window(3 * SAMPLE_INTERVAL_US + 5, 3 * SAMPLE_INTERVAL_US + 9)} == set(found), "a short one"
    assert found["cpu_busy"].unit == UNITS["cpu_busy"]
    assert metrics.window(10**12, 10**12 + 1) == ()


def test_the_real_sources_give_readings_within_their_range() -> None:
    metrics = HostMetrics()
    for n in range(3):
        metrics.sample(n * SAMPLE_INTERVAL_US, [1])
    for metric in metrics.window(0, 10**9):
        assert metric.min is not None and metric.max is not None
        assert 0 <= metric.min <= metric.mean <= metric.max
        assert UNITS[metric.name] != "share" or metric.max <= 1


@pytest.mark.parametrize(
    ("trace", "total", "limit"),
    [(0, 64 * GIB, MEMORY_BASE_BYTES), (GIB, 64 * GIB, MEMORY_BASE_BYTES + 12 * GIB), (4 * GIB, 64 * GIB, 32 * GIB),
     (GIB, 4 * GIB, MEMORY_BASE_BYTES)],
)  # fmt: skip
def test_the_summarisers_memory_grows_with_the_trace_up_to_half_of_the_machine(trace: int, total: int, limit: int) -> None:
    assert memory_limit_bytes(trace, total) == limit
