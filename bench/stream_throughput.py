"""Worker iterations a second through one real detect process from real Kafka, against a bare consumer that only decodes.

Both read the same messages from the same broker, one after the other: host batches of 8 ranks × 20 iterations of a few
large jobs. Detect does everything it does in service: Faust, decoding, both hops, commits.

Usage: python bench/stream_throughput.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import psutil
from needs import leave_out

from eroica.bus import BusProducer, ensure_topics, read_partitions
from eroica.bus.local import KafkaCluster
from eroica.schemas.codec import decode, encode
from eroica.schemas.errors import EroicaError, MissingDependency
from eroica.schemas.iterations import IterationBatch, RankIterations, StepPartial
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import message_key

RANKS_PER_HOST = 8
STEP_US = 50_000
GOAL = 500_000
RUN_DETECT = (
    "import sys; from eroica.schemas.settings import load_settings; from eroica.streams.service import run_detect; "
    "sys.exit(run_detect(load_settings()))"
)


@dataclass(frozen=True)
class Result:
    messages: int
    iterations: int
    message_bytes: int
    detect_s: float
    detect_per_s: float
    detect_cpu_s: float
    detect_per_cpu_s: float
    consumer_s: float
    consumer_per_s: float
    ratio: float
    goal_per_s: int = GOAL
    cpus: int = os.cpu_count() or 1


def batches(jobs: int, hosts: int, rounds: int, steps: int) -> list[tuple[str, bytes, int]]:
    """``(key, value, timestamp ms)`` in the order in which hosts would send; durations differ by less than a millisecond."""
    world = hosts * RANKS_PER_HOST
    start_us = int(time.time() * 1_000_000) - rounds * steps * STEP_US
    made = []
    for turn in range(rounds):
        sent = start_us + (turn + 1) * steps * STEP_US
        for job in range(jobs):
            name = f"bench-{job}"
            for host in range(hosts):
                first = host * RANKS_PER_HOST
                ranks = [
                    RankIterations(
                        rank=rank,
                        first_step=turn * steps,
                        duration_us=[STEP_US + (rank * 37 + step * 11 + turn) % 997 for step in range(steps)],
                        ended_at_us=sent,
                        idle_us=1_000,
                        last_event="optimizer_exit",
                    )
                    for rank in range(first, first + RANKS_PER_HOST)
                ]
                batch = IterationBatch(
                    job=name, run_id="run", host=f"host-{host}", shard=0, ranks_per_shard=max(1_024, world), world_size=world,
                    seq=turn, sent_at_us=sent, ranks=ranks,
                )  # fmt: skip
                made.append((message_key(name, 0), encode(batch), sent // 1_000))
    return made


def fill(settings: KafkaSettings, messages: list[tuple[str, bytes, int]]) -> None:
    with BusProducer(settings, "bench") as producer:
        for key, value, at_ms in messages:
            while not producer.send("iterations", key=key, value=value, timestamp_ms=at_ms):
                producer.flush(0.2)
        while producer.flush(5.0):
            pass


def bare_consumer_s(settings: KafkaSettings, messages: int) -> float:
    """Seconds to read and decode everything once."""
    seen, start = 0, 0.0
    for batch in read_partitions(settings, "iterations", poll_s=0.05):
        if batch and not start:
            start = time.perf_counter()
        for message in batch:
            decode("iterations", message.value)
        seen += len(batch)
        if seen >= messages:
            break
    return time.perf_counter() - start


def detect_s(settings: KafkaSettings, jobs: int, last_step: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of the process, from detect's readiness until the last step of every job was on ``partials``."""
    environment = os.environ | {
        "EROICA_KAFKA__BOOTSTRAP": settings.bootstrap,
        "EROICA_KAFKA__PREFIX": settings.prefix,
    }
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, "-c", RUN_DETECT], env=environment, stderr=log)
        try:
            start = _ready_at(process, log)
            watched = psutil.Process(process.pid)
            used = sum(watched.cpu_times()[:2])
            done: set[str] = set()
            for batch in read_partitions(settings, "partials", stop=lambda: len(done) == jobs, poll_s=0.02):
                for message in batch:
                    partial = decode("partials", message.value)
                    assert isinstance(partial, StepPartial)
                    if partial.first_step + len(partial.count) > last_step:
                        done.add(partial.job)
                if process.poll() is not None:
                    raise SystemExit(f"detect ended early ({process.returncode})")
            return time.perf_counter() - start, sum(watched.cpu_times()[:2]) - used
        finally:
            process.terminate()
            process.wait(30)


def _ready_at(process: subprocess.Popen[bytes], log: object) -> float:
    path = Path(f"/proc/self/fd/{log.fileno()}")  # type: ignore[attr-defined]
    while process.poll() is None:
        if "detect ready" in path.read_text():
            return time.perf_counter()
        time.sleep(0.01)
    raise SystemExit(f"detect did not start: {path.read_text()[-500:]}")


def measure(jobs: int, hosts: int, rounds: int, steps: int) -> Result:
    with KafkaCluster(1) as cluster:
        settings = KafkaSettings(bootstrap=cluster.bootstrap, prefix="bench.")
        ensure_topics(settings)
        messages = batches(jobs, hosts, rounds, steps)
        fill(settings, messages)
        iterations = len(messages) * RANKS_PER_HOST * steps
        consumer = bare_consumer_s(settings, len(messages))
        detect, cpu = detect_s(settings, jobs, rounds * steps - 1)
    size = sum(len(value) for _, value, _ in messages) // len(messages)
    return Result(
        messages=len(messages), iterations=iterations, message_bytes=size, detect_s=detect, detect_per_s=iterations / detect,
        detect_cpu_s=cpu, detect_per_cpu_s=iterations / cpu,
        consumer_s=consumer, consumer_per_s=iterations / consumer, ratio=consumer / detect,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=64, help="hosts of a job, 8 ranks each")
    parser.add_argument("--rounds", type=int, default=200, help="batches of a host")
    parser.add_argument(
        "--steps", type=int, default=20, help="iterations of a rank in a batch: a second of a job with steps of 50 ms"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    try:
        result = measure(options.jobs, options.hosts, options.rounds, options.steps)
    except MissingDependency as error:
        leave_out(error)
    except EroicaError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(orjson.loads(orjson.dumps(asdict(result)))))
        return 0
    shape = f"{RANKS_PER_HOST} ranks x {options.steps} iterations, {result.message_bytes} bytes each"
    print(f"{result.messages} host batches of {shape}")
    print(f"detect (Faust, both hops):    {result.detect_per_s:12,.0f} worker iterations/s  ({result.detect_s:.1f} s)")
    print(f"  per CPU second of its own:  {result.detect_per_cpu_s:12,.0f} worker iterations    ({result.detect_cpu_s:.1f} s)")
    print(f"bare consumer, decoding only: {result.consumer_per_s:12,.0f} worker iterations/s  ({result.consumer_s:.1f} s)")
    verdict = "met" if result.detect_per_s >= GOAL else "missed"
    print(f"detect reaches {result.ratio:.1%} of the bare consumer; goal {GOAL:,} a second: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
