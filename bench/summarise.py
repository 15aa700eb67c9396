"""Summaries against HolisticTraceAnalysis (HTA) on the same real traces in the same run, one core: time and peak memory.

HTA lives in an environment of its own (``python -m venv DIR && DIR/bin/pip install HolisticTraceAnalysis``); what it finds
is compared in ``against_hta.py``. Every measurement is a process of its own, pinned to one core; times are processor time, so
that a busy machine changes little. ``s`` counts from the file to the figures, without imports; ``process_s`` is the whole process
with imports, and so is the peak of memory. A run of each that nobody counts comes first, so that both find their bytecode.

Usage::

    python bench/summarise.py TRACES_DIR [--hta DIR/bin/python] [--tile-mb 500] [--fuzz 10000] [--json]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from needs import DATA, existing
from trace_mutations import difference, mutated

from eroica.producers.trace import SummarySettings, identity_from_trace, read_trace, summarise
from eroica.producers.trace.compiled import COMPILED
from eroica.producers.trace.fit import json_bytes, wire_bytes
from eroica.producers.trace.identity import identify
from eroica.producers.trace.naming import step_number
from eroica.schemas.errors import EroicaError

COMPARED = ("single/nccl_data.json.gz", "single/ns_resolution.json.gz", "torchrec_sleep_20ms/host0_4102.pt.trace.json.gz")
TILED = "single/nccl_data.json.gz"
FUZZED = ("single/simple_add.json.gz", "single/cuda_event_sync.json.gz", "single/cpu_only_rank34_of_300.json.gz")
GOALS = {"times_faster": 20.0, "memory_ratio": 0.25, "mb_per_s": 150.0, "memory_to_file": 1.5}

OURS = """
import resource, sys, time
from eroica.producers.trace import identity_from_trace, read_trace, summarise_trace, SummarySettings
path = sys.argv[1]
start = time.process_time()
trace = read_trace(path, max_bytes=2**40)
read = time.process_time()
who = identity_from_trace(trace, path, job="bench", rank=0)
summary = summarise_trace(trace, who, SummarySettings())
end = time.process_time()
import json
print(json.dumps({"s": end - start, "read_s": read - start, "events": len(trace)}))
"""
HTA = """
import logging, os, sys, time, json
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
path = sys.argv[1]
start = time.process_time()
analysis = TraceAnalysis(trace_files={0: path}, trace_dir=os.path.dirname(path))
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
print(json.dumps({"s": time.process_time() - start}))
"""


def measured(sides: Sequence[tuple[str, str, str]], path: Path, times: int) -> dict[str, dict[str, Any]]:
    """For each side (name, interpreter, code) the fastest of some :func:`once`, in turns: what else the machine does only ever
    adds, and does it to all alike.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in sides}
    for _, python, code in sides:
        once(python, code, path)
    for _ in range(times):
        for name, python, code in sides:
            found[name].append(once(python, code, path))
    return {name: min(runs, key=lambda figures: float(figures["s"])) for name, runs in found.items()}


def once(python: str, code: str, path: Path) -> dict[str, Any]:
    """Run *code* on *path* in a process on one core; its printed figures and its peak memory in MB."""
    core = min(os.sched_getaffinity(0))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    script = f"import os; os.sched_setaffinity(0, {{{core}}})\n{code}\n"
    # Not ru_maxrss: that of a child begins with its parent's.
    script += "print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) * 1.024e-3)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | threads
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([python, "-c", script, str(path)], capture_output=True, text=True, env=environment, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{python} failed on {path}: {done.stderr[-1500:]}")
    figures, memory = done.stdout.strip().splitlines()[-2:]
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(figures), "process_s": whole, "peak_mb": float(memory)}


def tile(source: Path, target: Path, size_mb: int) -> None:
    """Repeat a real trace in time until it is *size_mb* large; ids and step numbers go on."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    events = [e for e in document.pop("traceEvents") if "ts" in e]
    complete = [e for e in events if e["ph"] == "X"]
    span = max(e["ts"] + e["dur"] for e in complete) - min(e["ts"] for e in complete) + 10
    steps = [step_number(e["name"]) for e in complete if step_number(e["name"]) >= 0]
    written, turn = 0, 0
    with target.open("w") as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [')
        while written < size_mb * 1e6:
            text = ",\n".join(json.dumps(_moved(e, turn, span, max(steps) - min(steps) + 1)) for e in events)
            file.write((",\n" if turn else "") + text)
            written, turn = written + len(text), turn + 1
        file.write("]}")


def _moved(event: dict[str, Any], turn: int, span: float, steps: int) -> dict[str, Any]:
    moved = {**event, "ts": event["ts"] + turn * span}
    if "args" in event:
        moved["args"] = {k: v + turn * 10**7 if k in ("correlation", "External id") else v for k, v in event["args"].items()}
    if (number := step_number(event["name"])) >= 0:
        moved["name"] = f"ProfilerStep#{number + turn * steps}"
    return moved


def sizes(folder: Path) -> Iterator[dict[str, Any]]:
    """Raw, gz and summary bytes of every trace."""
    for path in sorted(folder.glob("*/*.json*")):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        trace = read_trace(path)
        told = identify(trace, path).rank
        summary = summarise(path, identity_from_trace(trace, path, job="bench", rank=None if told >= 0 else 0))
        yield {
            "trace": str(path.relative_to(folder)),
            "raw_bytes": len(raw),
            "gz_bytes": path.stat().st_size if path.suffix == ".gz" else len(gzip.compress(raw)),
            "json_bytes": json_bytes(summary),
            "zstd_bytes": wire_bytes(summary),
        }


def fuzz(folder: Path, count: int) -> dict[str, Any]:
    """Mutate real traces: summaries or clear errors, nothing else; and the compiled scanner and Python see the same."""
    sources = [gzip.decompress((folder / p).read_bytes()) for p in FUZZED]
    dice, refused, slowest = random.Random(1), 0, 0.0
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "rank0.json"
        for number in range(count):
            path.write_bytes(mutated(dice.choice(sources), dice))
            start = time.process_time()
            try:
                trace = read_trace(path)
                slowest = max(slowest, time.process_time() - start)
                if COMPILED and (column := difference(trace, read_trace(path, compiled=False))):
                    raise AssertionError(f"the scanner and Python differ in {column}")
                start = time.process_time()
                summarise(path, identity_from_trace(trace, path, job="fuzz", rank=0), trace=trace)
            except EroicaError:
                refused += 1
            except Exception:
                kept = Path(tempfile.gettempdir()) / f"eroica-fuzz-{number}.json"
                kept.write_bytes(path.read_bytes())
                print(f"crash: the trace is kept as {kept}", file=sys.stderr)
                raise
            slowest = max(slowest, time.process_time() - start)
    return {"traces": count, "refused": refused, "slowest_cpu_s": round(slowest, 3), "compiled": COMPILED}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="?", default=DATA / "traces")
    parser.add_argument("--hta", help="interpreter of an environment with HolisticTraceAnalysis")
    parser.add_argument("--tile-mb", type=int, default=500)
    parser.add_argument("--times", type=int, default=5, help="each measurement; the fastest counts")
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    existing(options.traces)
    result: dict[str, Any] = {"compared": [], "goals": GOALS, "cores": os.cpu_count(), "limit_bytes": SummarySettings().max_bytes}
    for place in COMPARED:
        path = (options.traces / place).resolve()
        sides = [("eroica", sys.executable, OURS), *([("hta", options.hta, HTA)] if options.hta else [])]
        row: dict[str, Any] = {"trace": place, **measured(sides, path, options.times)}
        if options.hta:
            theirs = row["hta"]
            row["times_faster"] = theirs["s"] / row["eroica"]["s"]
            row["process_times_faster"] = theirs["process_s"] / row["eroica"]["process_s"]
            row["memory_ratio"] = row["eroica"]["peak_mb"] / theirs["peak_mb"]
        result["compared"].append(row)
    if options.tile_mb:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").exists() else None) as place:
            path = Path(place) / "rank0.json"
            tile(options.traces / TILED, path, options.tile_mb)
            size = path.stat().st_size / 1e6
            large = measured([("eroica", sys.executable, OURS)], path, min(options.times, 3))["eroica"]
            large |= {
                "mb": size,
                "mb_per_s": size / large["s"],
                "read_mb_per_s": size / large["read_s"],
                "memory_to_file": large["peak_mb"] / size,
            }
            result["large"] = large
    result["sizes"] = list(sizes(options.traces))
    if options.fuzz:
        result["fuzz"] = fuzz(options.traces, options.fuzz)
    print(json.dumps(result, indent=2) if options.json else shown(result))


def shown(result: dict[str, Any]) -> str:
    """For a person."""
    lines = []
    for row in result["compared"]:
        ours = row["eroica"]
        lines.append(f"{row['trace']}: {ours['s']:.3f} s, {ours['peak_mb']:.0f} MB")
        if "hta" in row:
            theirs = row["hta"]
            lines[-1] += f"; HTA {theirs['s']:.2f} s, {theirs['peak_mb']:.0f} MB:"
            lines[-1] += f" {row['times_faster']:.1f}x faster, {row['memory_ratio']:.2f} of the memory;"
            lines[-1] += (
                f" with imports {ours['process_s']:.2f} and {theirs['process_s']:.2f} s, {row['process_times_faster']:.1f}x"
            )
    if (large := result.get("large")) is not None:
        lines.append(f"{large['mb']:.0f} MB, {large['events']} events: {large['mb_per_s']:.0f} MB/s")
        lines[-1] += f" (reading alone {large['read_mb_per_s']:.0f})"
        lines[-1] += f", peak {large['peak_mb']:.0f} MB = {large['memory_to_file']:.2f} of the file"
    columns = ("trace", "raw_bytes", "gz_bytes", "json_bytes", "zstd_bytes")
    lines += ["", "| trace | raw | gz | summary JSON | zstd |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(str(row[c]) for c in columns) + " |" for row in result["sizes"]]
    if "fuzz" in result:
        lines.append(f"fuzz: {result['fuzz']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
