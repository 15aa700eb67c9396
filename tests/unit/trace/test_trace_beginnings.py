"""Operations written as a beginning and an end (``ph: B``, ``E``) are the same as whole ones."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.producers.trace import beginnings, reader
from eroica.producers.trace.columns import Trace
from eroica.producers.trace.compiled import COMPILED
from eroica.producers.trace.reader import read_trace

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]
MakeTrace = Callable[..., Path]
ALONE = "beginnings_or_ends_alone"


def half(phase: str, ts: Any, name: str = "aten::mm", tid: int = 1, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts, **more}


def spans(trace: Trace) -> list[tuple[str, float, float]]:
    return [
        (trace.names[n], a, b) for n, a, b in zip(trace.name.tolist(), trace.ts_us.tolist(), trace.end_us.tolist(), strict=True)
    ]


CASES: dict[str, tuple[list[dict[str, Any]], list[tuple[str, float, float]], int]] = {
    "one": ([half("B", 0), half("E", 5)], [("aten::mm", 0, 5)], 0),
    "nested": (
        [half("B", 0, "a"), half("B", 1, "b"), half("E", 2, "b"), half("E", 5, "a")], [("a", 0, 5), ("b", 1, 2)], 0,
    ),
    "ends without a name": (
        [half("B", 0, "a"), half("B", 1, "b"), *({"ph": "E", "pid": 1, "tid": 1, "ts": ts} for ts in (2, 5))],
        [("a", 0, 5), ("b", 1, 2)], 0,
    ),
    "two threads at once": (
        [half("B", 0, "a"), half("B", 1, "b", tid=2), half("E", 3, tid=1), half("E", 4, tid=2)], [("a", 0, 3), ("b", 1, 4)], 0,
    ),
    "beside whole ones": ([half("B", 0, "a"), half("X", 1, "x", dur=1), half("E", 5)], [("a", 0, 5), ("x", 1, 2)], 0),
    "a beginning alone": ([half("X", 0, "x", dur=9), half("B", 1)], [("x", 0, 9)], 1),
    "an end alone": ([half("E", 0), half("X", 0, "x", dur=9)], [("x", 0, 9)], 1),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("events", "wanted", "alone"), CASES.values(), ids=CASES)
def test_an_end_closes_the_latest_beginning_of_its_thread(
    make_trace: MakeTrace, events: list[dict[str, Any]], wanted: list[tuple[str, float, float]], alone: int, compiled: bool
) -> None:
    trace = read_trace(make_trace(events), compiled=compiled)
    assert spans(trace) == wanted
    assert trace.repairs == ({ALONE: alone} if alone else {})


def test_a_half_without_a_time_takes_its_other_half_with_it(make_trace: MakeTrace) -> None:
    events = [half("B", 0, "a"), half("B", "noon", "b"), half("E", 2), half("E", "5")]
    trace = read_trace(make_trace(events))
    assert spans(trace) == [("a", 0, 5)]
    assert trace.repairs == {"times_as_strings": 1, "times_not_finite": 1}


def test_open_ones_are_bounded_and_those_beyond_are_counted(make_trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "MAX_OPEN", 3)
    events = [half("B", i, f"f{i}") for i in range(5)] + [half("E", 10 + i) for i in range(5)]
    trace = read_trace(make_trace(events))
    assert spans(trace) == [("f0", 0, 14), ("f1", 1, 13), ("f2", 2, 12)]
    assert trace.repairs == {ALONE: 4}


def split(path: Path, to: Path) -> Path:
    """The host's operations of a trace as halves, in the order of time on each thread."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    halves: list[tuple[float, float, dict[str, Any]]] = []
    rest = []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "cuda_runtime") and event["dur"] > 0:
            whole = {k: v for k, v in event.items() if k not in ("dur", "ph")}
            end = event["ts"] + event["dur"]
            halves.append((event["ts"], -event["dur"], {**whole, "ph": "B"}))
            halves.append((end, event["dur"] - 1e9, {"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": end}))
        else:
            rest.append(event)
    halves.sort(key=lambda one: one[:2])
    document["traceEvents"] = [*rest, *(event for _, _, event in halves)]
    to.write_text(json.dumps(document), encoding="utf-8")
    return to


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.skipif(not COMPILED, reason="not built")), False])
def test_a_real_trace_in_halves_is_the_same_trace(real_trace: Callable[[str], Path], tmp_path: Path, compiled: bool) -> None:
    source = real_trace("single/b200_eager.json.gz")
    whole, halves = read_trace(source), read_trace(split(source, tmp_path / "halves.json"), compiled=compiled)
    assert len(halves) == len(whole) > 1000
    names = [[t.names[n] for n in t.name.tolist()] for t in (whole, halves)]
    assert sorted(zip(names[0], whole.ts_us.tolist(), strict=True)) == sorted(zip(names[1], halves.ts_us.tolist(), strict=True))
    assert np.allclose(np.sort(whole.dur_us), np.sort(halves.dur_us), atol=1e-3)


@pytest.mark.parametrize("piece_bytes", [200, 1000, 5000])
def test_halves_of_one_event_may_lie_in_two_pieces(
    make_trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    chance = random.Random(0)
    events, open_now = [], 0
    for t in range(300):
        begin = open_now == 0 or (open_now < 6 and chance.random() < 0.5)
        events.append(half("B" if begin else "E", t, f"f{t}"))
        open_now += 1 if begin else -1
    path = make_trace(events)
    wanted = spans(read_trace(path))
    monkeypatch.setattr(reader, "PIECE_BYTES", piece_bytes)
    assert spans(read_trace(path)) == wanted
    assert len(wanted) == (300 - open_now) // 2
