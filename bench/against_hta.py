"""Figures of device time against HolisticTraceAnalysis (HTA) on the same real traces, and why they differ where they do.

Compared over the same cut: HTA leaves out device work whose launch is unknown or lies in the last step. It also rounds times to
whole microseconds (starts up, ends down), so our figures are computed twice: exactly, and on times so rounded.

HTA lives in an environment of its own; ``pip install '.[bench]'`` there or ``pip install HolisticTraceAnalysis``.

Usage::

    python bench/against_hta.py TRACES_DIR --hta DIR/bin/python [--json]
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from needs import DATA, existing

from eroica.producers.trace import read_trace
from eroica.producers.trace.columns import KERNEL, MEMCPY, MEMSET, Trace
from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.intervals import Intervals, union
from eroica.producers.trace.naming import step_number

COMPARED = (
    "single/nccl_data.json.gz", "single/ns_resolution.json.gz", "single/simple_add.json.gz", "single/b200_eager.json.gz",
    "torchrec_sleep_1s/host0_4102.pt.trace.json.gz", "torchrec_sleep_20ms/host0_4102.pt.trace.json.gz",
    "dlrm_8rank/worker0_step_12.1694128201545.pt.trace.json.gz", "hta_2_of_128/sampled_rank-0.json.gz",
)  # fmt: skip
HTA = """
import json, logging, os, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
path = sys.argv[1]
analysis = TraceAnalysis(trace_files={0: path}, trace_dir=os.path.dirname(path))
times = analysis.get_temporal_breakdown(visualize=False).to_dict("records")[0]
overlap = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")[0]
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
kinds = {k["kernel_type"]: float(k["sum"]) for k in kinds.to_dict("records")}
def total(word):
    return sum(v for k, v in kinds.items() if word in k)
print(json.dumps({"compute_us": times["compute_time(us)"], "idle_us": times["idle_time(us)"],
    "communication_us": total("COMMUNICATION"), "memory_us": total("MEMORY"),
    "overlap_share": overlap["comp_comm_overlap_pctg"] / 100}))
"""


def theirs(python: str, path: Path) -> dict[str, float] | str:
    """HTA's figures, or the last line of its complaint."""
    done = subprocess.run([python, "-c", HTA, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:120]
    return {k: float(v) for k, v in json.loads(done.stdout.strip().splitlines()[-1]).items()}


def first_time(path: Path) -> float:
    """The earliest time as the file has it, µs. Rounding must see times as they are written: with ``baseTimeNanoseconds`` added
    a float has no more than quarters of a microsecond.
    """
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(raw)
    events = document["traceEvents"] if isinstance(document, dict) else document
    return min(float(e["ts"]) for e in events if e.get("ph") == "X")


def ours(trace: Trace, whole: bool, first: float = 0.0) -> dict[str, float]:
    """The same figures over the same cut; *whole*: on times in whole microseconds, the first event's being *first*."""
    numbers = np.array([step_number(n) for n in trace.names])[trace.name]
    several = np.unique(numbers[numbers >= 0]).size > 1
    last = trace.ts_us[numbers == numbers.max()].min() if several else np.inf
    rows = trace.rows(KERNEL, MEMCPY, MEMSET)
    launch = trace.launch[rows]
    rows = rows[(launch >= 0) & (trace.ts_us[launch] < last)]
    start, end = first + trace.ts_us[rows], first + trace.end_us[rows]
    if whole:
        start, end = np.ceil(start), np.floor(end)
    collective = np.array([kernel_collective(n) is not None for n in trace.names])[trace.name[rows]]
    kernel = trace.category[rows] == KERNEL

    def busy(mask: Any) -> Intervals:
        return union(start[mask], end[mask])

    compute, transfer, memory = busy(kernel & ~collective), busy(collective), busy(~kernel)
    everything = union(start, end)
    span = float(everything.end[-1] - everything.start[0]) if everything.start.size else 0.0
    return {
        "compute_us": compute.total(),
        "idle_us": span - everything.total(),
        "communication_us": transfer.total(),
        "memory_us": memory.total(),
        "overlap_share": transfer.both(compute).total() / transfer.total() if transfer.total() else 0.0,
    }


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="?", default=DATA / "traces")
    parser.add_argument("--hta", help="interpreter of an environment with HolisticTraceAnalysis; without it our figures alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for place in COMPARED:
        path = existing((options.traces / place).resolve())
        trace = read_trace(path)
        row: dict[str, Any] = {"trace": place, "exact": ours(trace, False), "whole_us": ours(trace, True, first_time(path))}
        rows.append(row | ({"hta": theirs(options.hta, path)} if options.hta else {}))
    print(json.dumps(rows, indent=2) if options.json else shown(rows))


def shown(rows: list[dict[str, Any]]) -> str:
    """A table a person can check."""
    lines = ["| trace | figure | exact | whole µs | HTA |", "|---|---|---|---|---|"]
    for row in rows:
        hta = row.get("hta", "")
        for name, value in row["exact"].items():
            said = f"{hta[name]:.3f}" if isinstance(hta, dict) else hta
            lines.append(f"| {row['trace'].split('/')[1][:28]} | {name} | {value:.3f} | {row['whole_us'][name]:.3f} | {said} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
