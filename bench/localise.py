"""How long the localizer takes, from a request's columns to its verdict, against the published rule in plain numpy.

    python bench/localise.py                                # 10,000 and 100,000 workers
    python bench/localise.py --workers 1000000              # 5 GB of memory
    python bench/localise.py --workers 100000 --profile     # and where the time goes

Each size runs in a process of its own, on one core, and keeps freed memory as ``eroica localize`` does. Shown is the best of
three takes (of two beyond 100,000 workers) and, beside it, the first. A worker has 20 functions, five steps with their phases,
four collectives a step, two pauses and six readings; one rank is slow. Both rules start from the same columns in memory and on
the same core: ``eroica`` goes all the way to the verdict's bytes, the published rule (D, Δ against min(100, |W|) sampled peers,
Eq. 11) to the set of abnormal workers and functions. Decoding is measured beside it on real messages of the same content, as JSON
from the topic.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np
from localise_job import FUNCTIONS, SLOW, job, message

from eroica.localizer.actions import Advice
from eroica.localizer.build import build_frame
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.memory import keep_freed_memory
from eroica.localizer.packed import PackedChunk, pack
from eroica.localizer.playbook import load_playbook
from eroica.localizer.rules import RULE_SETS
from eroica.localizer.verdict import make_verdict
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.groups import GroupChunk
from eroica.schemas.settings import LocalizeSettings

GOALS_S = {10_000: 0.1, 100_000: 1.0, 1_000_000: 10.0}
GOAL_BYTES = 8 * 10**9
SAMPLED = 100
"""Messages that are decoded; the time for all of them follows from their number."""
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Result:
    workers: int
    chunks: int
    eroica_s: float
    eroica_cpu_s: float
    first_s: float
    """The first take: the kernel hands out memory that later takes find in the process."""
    paper_s: float
    paper_cpu_s: float
    decode_s: float
    """All messages of the request, on this core."""
    decoded: int
    """So many of them were really decoded."""
    peak_bytes: int
    said: str
    goal_s: float | None


def paper_rule(parts: list[PackedChunk], functions: int) -> tuple[Ints, Ints]:
    """Workers and functions that are abnormal: β > 1 % and (D > 0 or Δ > median + 5 MAD) ([P] §4.3)."""
    settings = LocalizeSettings(rules="paper")
    starts = np.cumsum([0, *(part.workers.ranks.size for part in parts)])
    n = int(starts[-1])
    pattern = np.zeros((3, n, functions))
    for part, start in zip(parts, starts.tolist(), strict=False):
        for axis, name in enumerate(("beta", "mu", "sigma")):
            pattern[axis, part.pattern_row + start, part.pattern_function] = part.pattern[name]
    box = {"python": settings.python_beta_max, "collective": settings.collective_beta_max}
    limit = np.array([box.get(f.category, 1.0) for f in parts[0].functions])
    distance = np.maximum(pattern[0] - limit, 0.0)
    top = pattern.max(axis=1, keepdims=True)
    scaled = np.divide(pattern, top, out=np.zeros_like(pattern), where=top > 0)
    sample = np.random.default_rng(settings.seed).permutation(n)[: min(settings.peers_sampled, n)]
    delta = np.zeros((n, functions))
    for peer in sample.tolist():
        delta += np.abs(scaled - scaled[:, peer : peer + 1]).sum(axis=0) >= settings.peer_distance
    delta /= sample.size
    middle: Floats = np.median(delta, axis=0)
    mad = np.median(np.abs(delta - middle), axis=0)
    rows, columns = np.nonzero((pattern[0] > settings.beta_min) & ((distance > 0) | (delta > middle + settings.mad_factor * mad)))
    return rows, columns


def eroica_rule(parts: list[PackedChunk], advice: Advice) -> bytes:
    """The verdict as it stands on the topic; *advice* holds the playbook, which a service reads once."""
    settings = LocalizeSettings()
    frame = build_frame(parts)
    return encode(make_verdict(frame, RULE_SETS[settings.rules](frame, settings, None), settings, advice))


def decode_seconds(parts: list[PackedChunk]) -> tuple[float, int]:
    """Seconds to decode all messages and to turn their lists into columns, from a sample of them."""
    chunks, sampled = len(parts), min(SAMPLED, len(parts))
    raw = [encode(message(parts[int(i)])) for i in np.linspace(0, chunks - 1, sampled).astype(int)]
    began = time.perf_counter()
    for one in raw:
        pack(decode_as(GroupChunk, one))
    return (time.perf_counter() - began) * chunks / sampled, sampled


def measure(workers: int, profile: bool, slow: float) -> Result:
    keep_freed_memory()  # as `eroica localize` does
    parts, advice = job(workers, slow=slow), Advice(load_playbook())
    gc.collect()
    gc.freeze()
    profiler = cProfile.Profile()
    wall, cpu = [], []
    takes = 3 if workers <= 100_000 else 2
    for take in range(takes):
        began, used = time.perf_counter(), time.process_time()
        if profile and take == 0:
            profiler.enable()
        # The service frees the columns on the way; here they are needed again where there is another take.
        raw = eroica_rule(parts, advice)
        profiler.disable()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    paper_wall, paper_cpu = [], []
    for _ in wall:
        began, used = time.perf_counter(), time.process_time()
        paper_rule(parts, FUNCTIONS)
        paper_wall.append(time.perf_counter() - began)
        paper_cpu.append(time.process_time() - used)
    chunks = len(parts)
    if profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(35)
    decode_s, decoded = decode_seconds(parts)
    return Result(
        workers=workers, chunks=chunks, eroica_s=min(wall), eroica_cpu_s=min(cpu), first_s=wall[0], paper_s=min(paper_wall),
        paper_cpu_s=min(paper_cpu), decode_s=decode_s, decoded=decoded, peak_bytes=peak,
        said=json.loads(raw)["headline"], goal_s=GOALS_S.get(workers),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, action="append", help="a size (default 10000 and 100000); may be repeated")
    parser.add_argument("--full", action="store_true", help="10,000, 100,000 and 1,000,000 workers")
    parser.add_argument("--healthy", action="store_true", help="nobody is slow: then it is asked whom all wait for, too")
    parser.add_argument("--profile", action="store_true", help="which functions take the time")
    parser.add_argument("--json", action="store_true", help="one JSON object a size")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.workers or ([10_000, 100_000, 1_000_000] if options.full else [10_000, 100_000])
    if options.here:
        print(json.dumps(asdict(measure(sizes[0], options.profile, 1.0 if options.healthy else SLOW))))
        return 0
    if not options.json:
        print(f"{'workers':>9} {'eroica s':>9} {'CPU s':>7} {'first s':>8} {'paper s':>9} {'CPU s':>7} {'ratio':>6} "
              f"{'goal s':>7} {'decoding s':>11} {'peak GB':>8}")  # fmt: skip
    results = []
    for size in sizes:
        command = [sys.executable, __file__, "--here", "--workers", str(size), *(["--profile"] if options.profile else []),
                   *(["--healthy"] if options.healthy else [])]  # fmt: skip
        done = subprocess.run(command, env=os.environ | THREADS, stdout=subprocess.PIPE, check=True)
        r = Result(**json.loads(done.stdout))
        results.append(r)
        if options.json:
            print(json.dumps(asdict(r)))
            continue
        goal = f"{r.goal_s:>7g}" if r.goal_s else f"{'':>7}"
        print(
            f"{r.workers:>9,} {r.eroica_s:>9.3f} {r.eroica_cpu_s:>7.3f} {r.first_s:>8.3f} {r.paper_s:>9.3f} "
            f"{r.paper_cpu_s:>7.3f} {r.eroica_s / r.paper_s:>6.2f} {goal} {r.decode_s:>11.2f} {r.peak_bytes / 1e9:>8.2f}",
            flush=True,
        )
    if not options.json:
        print(f"ratio: time of eroica over that of the published rule, one process; peak memory: goal {GOAL_BYTES / 1e9:g} GB")
        print(f"verdict: {results[-1].said}")
        sampled = ", ".join(f"{r.decoded} of {r.chunks}" for r in results)
        print(f"decoding: JSON to columns, extrapolated from {sampled} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
