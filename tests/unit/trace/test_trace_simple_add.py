"""The trace simple_add, counted on the raw file: the path of events that HolisticTraceAnalysis calls critical, and time by class.

Its path through the second measured forward has 315 nodes (starts and ends), 159 events and 314 edges; events without a duration
are no part of it. It can be counted without a graph: the last piece of device work did not wait for its launch, but for the piece
before it. The first one of this chain did wait for its launch, and until then every start and end on the training thread lies
on the path.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.producers.trace import read_trace
from eroica.producers.trace.columns import CPU_OP, KERNEL, MEMCPY, MEMSET, RUNTIME, Trace
from eroica.producers.trace.critical_path import COMPUTE, HOST, MEMORY, find_critical_path
from eroica.producers.trace.steps import Steps

pytestmark = pytest.mark.unit
MEASURED = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture
def path(real_trace: Callable[[str], Path]) -> Path:
    return real_trace("single/simple_add.json.gz")


@pytest.fixture
def raw(path: Path) -> list[dict[str, Any]]:
    return [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]


def path_on_the_raw_file(raw: list[dict[str, Any]]) -> tuple[int, int, int]:
    window = sorted((e for e in raw if e["name"] == MEASURED), key=lambda e: e["ts"])[1]
    low, high = window["ts"], window["ts"] + window["dur"]
    host = [
        e
        for e in raw
        if e["cat"] in ("cpu_op", "cuda_runtime") and e["tid"] == window["tid"] and low <= e["ts"] < high and e["dur"]
    ]
    launch = {e["args"]["correlation"]: e for e in host if e["cat"] == "cuda_runtime"}
    device = sorted((e for e in raw if e["cat"] in DEVICE and e["args"]["correlation"] in launch), key=lambda e: e["ts"])
    chain = [device[-1]]
    for before in reversed(device[:-1]):
        if before["ts"] + before["dur"] < launch[chain[-1]["args"]["correlation"]]["ts"]:
            break
        chain.append(before)
    turn = launch[chain[-1]["args"]["correlation"]]["ts"]
    points = [(e["ts"], i) for i, e in enumerate(host)] + [(e["ts"] + e["dur"], i) for i, e in enumerate(host)]
    on_host = [i for t, i in points if t <= turn]
    nodes = len(on_host) + 2 * len(chain)
    return nodes, len(set(on_host)) + len(chain), nodes - 1


def path_by_our_columns(trace: Trace) -> tuple[int, int, int]:
    measured = [r for r in range(len(trace)) if trace.names[trace.name[r]] == MEASURED][1]
    low, high = trace.ts_us[measured], trace.end_us[measured]
    rows = trace.rows(CPU_OP, RUNTIME)
    host = rows[(trace.thread[rows] == trace.thread[measured]) & (trace.ts_us[rows] >= low) & (trace.ts_us[rows] < high)]
    host = host[trace.dur_us[host] > 0]
    device = trace.rows(KERNEL, MEMCPY, MEMSET)
    device = device[np.isin(trace.launch[device], host)]
    queued = trace.end_us[device[:-1]] >= trace.ts_us[trace.launch[device[1:]]]
    waited = np.flatnonzero(~queued)
    chain = device[int(waited[-1]) + 1 if waited.size else 0 :]
    turn = trace.ts_us[trace.launch[chain[0]]]
    started, ended = trace.ts_us[host] <= turn, trace.end_us[host] <= turn
    nodes = int(started.sum() + ended.sum()) + 2 * chain.size
    return nodes, int((started | ended).sum()) + chain.size, nodes - 1


def test_the_path_of_events_as_published(path: Path, raw: list[dict[str, Any]]) -> None:
    assert path_on_the_raw_file(raw) == (315, 159, 314)
    assert path_by_our_columns(read_trace(path)) == (315, 159, 314)


def test_time_by_class_against_a_count_on_a_grid(path: Path, raw: list[dict[str, Any]]) -> None:
    trace = read_trace(path)
    first = min(e["ts"] for e in raw)
    measured = sorted((e for e in raw if e["name"] == MEASURED), key=lambda e: e["ts"])
    low, high = measured[0]["ts"] - first, measured[1]["ts"] + measured[1]["dur"] - first
    size = int(high - low)
    busy = {kind: np.zeros(size, bool) for kind in ("kernel", "memory", "host")}
    for e in raw:  # whole microseconds in this file
        a, b = max(0, int(e["ts"] - first - low)), max(0, int(e["ts"] + e["dur"] - first - low))
        if e["cat"] in DEVICE:
            busy["kernel" if e["cat"] == "kernel" else "memory"][a:b] = True
        elif e["cat"] in ("cpu_op", "cuda_runtime", "user_annotation") and e["tid"] == measured[0]["tid"]:
            busy["host"][a:b] = True
    expected = {
        COMPUTE: busy["kernel"].sum(),
        MEMORY: (busy["memory"] & ~busy["kernel"]).sum(),
        HOST: (busy["host"] & ~busy["memory"] & ~busy["kernel"]).sum(),
    }
    steps = Steps(np.zeros(1, np.int64), np.array([low]), np.array([high]), (float(low), float(high)), "none")
    found = find_critical_path(trace, steps)
    assert found.compute.total() == expected[COMPUTE] > 0
    assert found.memory.minus(found.compute).total() == expected[MEMORY] > 0
    kinds = np.array([kind for kind, _, _ in found.executions.functions])[found.executions.function]
    assert found.executions.exclusive_us[kinds == HOST].sum() == expected[HOST] > 0
