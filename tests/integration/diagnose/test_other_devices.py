"""A real job as traces of other devices and programs would tell it: other categories, names and marks, the same culprit."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from eroica.offline.diagnose import diagnose
from eroica.schemas.settings import load_settings

TRACES = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "traces" / "torchrec_sleep_20ms"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here: ../shared/data/traces"),
]
Event = dict[str, Any]
RANKS = {"host0_4100": 0, "host0_4101": 1, "host0_4102": 2, "host0_4103": 3}


def _device(runtime: str, kernel: str, call: str, exchange: str, reduce: str) -> Callable[[Event], Event]:
    """The same work on another device: its categories, its runtime's calls and its library's kernels."""

    def change(event: Event) -> Event:
        category, name = event.get("cat"), str(event.get("name", ""))
        if category == "cuda_runtime":
            return {**event, "cat": runtime, "name": name.replace("cuda", call)}
        if category == "kernel":
            ours = (exchange if "SendRecv" in name else reduce) if name.startswith("nccl") else name
            return {**event, "cat": kernel, "name": ours}
        return event

    return change


def _named(prefix: str) -> Callable[[Event], Event]:
    """Steps that the program names itself."""

    def change(event: Event) -> Event:
        name = str(event.get("name", ""))
        return {**event, "name": f"{prefix}{name.partition('#')[2]}"} if name.startswith("ProfilerStep") else event

    return change


FORMS: dict[str, Callable[[Event], Event]] = {
    "ROCm": _device("cuda_runtime", "kernel", "hip", "ncclDevKernel_Generic_1(x)", "ncclDevKernel_Generic_1(x)"),
    "XPU": _device("xpu_runtime", "kernel", "ur", "oneccl_alltoall_large", "oneccl_allreduce_large"),
    "HPU": _device("privateuse1_runtime", "hpu_op", "syn", "hccl_alltoall", "hccl_allreduce"),
    "NPU": _device("privateuse1_runtime", "kernel", "acl", "hcom_alltoallv__123_0_1", "hcom_allReduce__123_1_1"),
    "MTIA": _device("mtia_runtime", "mtia_ccp_events", "mtia", "hccl_alltoall", "hccl_allreduce"),
    "2021": lambda e: (
        {**e, "cat": {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}.get(e["cat"], e["cat"])}
        if "cat" in e
        else e
    ),
    "step_4": _named("step_"),
    "iteration 4": _named("iteration "),
}


@pytest.mark.parametrize("change", FORMS.values(), ids=FORMS)
def test_the_culprit_stays_the_same(tmp_path: Path, change: Callable[[Event], Event]) -> None:
    for path in TRACES.glob("*.json.gz"):
        trace = orjson.loads(gzip.decompress(path.read_bytes()))
        rank = RANKS[path.name.partition(".")[0]]
        del trace["distributedInfo"]
        trace["traceEvents"] = [change(e) for e in trace["traceEvents"]]
        (tmp_path / f"trace_rank_{rank}.json.gz").write_bytes(gzip.compress(orjson.dumps(trace), 1))
    verdict = diagnose(tmp_path, load_settings()).verdict
    assert [cause.suspects.ranks for cause in verdict.causes] == ["2"]
    assert tuple(verdict.request.steps) == (4, 6)
    assert verdict.waiters.ranks == "0-1,3"
