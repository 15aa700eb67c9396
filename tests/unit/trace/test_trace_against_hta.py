"""Why HolisticTraceAnalysis (HTA) has other figures on nccl_data: it rounds. Its figures, as version 0.5 printed them, come out
of an independent count of the raw file once that rounds alike, and the exact count is ours.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eroica.producers.trace import read_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
from against_hta import first_time, ours

pytestmark = pytest.mark.unit

HTA = {"compute_us": 75_169.0, "communication_us": 24_278.0, "memory_us": 1_015.0, "idle_us": 338_781.0}


def total(spans: list[tuple[float, float]]) -> float:
    """Time that the spans cover, by walking them."""
    covered, reach = 0.0, -math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return covered


def counted(events: list[dict[str, Any]], whole: bool) -> dict[str, float]:
    """Device work that was launched before the last step began, as HTA cuts it."""
    calls = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") == "cuda_runtime" and e["args"].get("correlation")}
    steps = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")]
    last = max(e["ts"] for e in steps)
    spans: dict[str, list[tuple[float, float]]] = {"compute_us": [], "communication_us": [], "memory_us": []}
    for e in events:
        if e.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset") or calls.get(e["args"]["correlation"], last) >= last:
            continue
        kind = "memory_us" if e["cat"] != "kernel" else "communication_us" if "nccl" in e["name"] else "compute_us"
        start, end = e["ts"], e["ts"] + e["dur"]
        spans[kind].append((math.ceil(start), math.floor(end)) if whole else (start, end))
    every = [span for kind in spans.values() for span in kind]
    idle = max(end for _, end in every) - min(start for start, _ in every) - total(every)
    return {**{kind: total(mine) for kind, mine in spans.items()}, "idle_us": idle}


@pytest.mark.parametrize("whole", [True, False])
def test_the_difference_is_the_rounding(whole: bool, real_trace: Callable[[str], Path]) -> None:
    path = real_trace("single/nccl_data.json.gz")
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    count = counted(events, whole)
    found = ours(read_trace(path), whole, first_time(path))
    assert {kind: found[kind] for kind in count} == pytest.approx(count, abs=0.2 if not whole else 1e-6)
    if whole:
        assert count == pytest.approx(HTA)
    else:
        assert count["memory_us"] == pytest.approx(1.727 * HTA["memory_us"], rel=1e-3)
