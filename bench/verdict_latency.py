"""From the last summary to the verdict, through a real Kafka: how long, and which part takes how much of it.

    python bench/verdict_latency.py                     # 3,400 workers
    python bench/verdict_latency.py --workers 800 --runs 2

Real processes of group and localize; summaries of a simulated job with a slow host. ``last one``: all summaries but one are there
and dealt with, and the last one comes. ``burst``: all summaries are sent as fast as the broker takes them, so what queues up is
in it. The parts *group* and *localize* are what the same cores take for the same messages in this process, without a broker; what
is left of the way between two topics is *transport*: clients, broker, batching, commits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from needs import leave_out

from eroica.bus import BusProducer, ensure_topics, read_partitions
from eroica.bus.local import KafkaCluster
from eroica.bus.producer import wait_delivered
from eroica.localizer.core import LocalizerCore
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import EroicaError, MissingDependency
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import GroupSettings, KafkaSettings, LocalizeSettings
from eroica.schemas.summaries import Expectation, Summary
from eroica.schemas.topics import message_key
from eroica.schemas.verdicts import Verdict
from eroica.simulator.messages import Emission
from eroica.simulator.simulation import Simulation
from eroica.simulator.source import parse_scenario
from eroica.streams.collect import GroupCore

GOAL_S = 3.0
TIMEOUT_S = 120.0
OPEN_S = 1.0
"""For group to open the classes of a request."""
SETTLE_S = 3.0
"""After the last chunk of the other classes: what is under way gets there."""
SCENARIO = (
    "job: {{name: latency, world: {workers}, framework: megatron, sizes: {{tp: 4, pp: 2}}, micro_batches: 8, schedule: 1f1b, "
    "sharding: 1}}\nfaults: [{{fault: cpu_contention, dose: 1.3}}]\nhistory: {{before: 0, after: 0}}\n"
)
_START = (
    "import sys; from eroica.schemas.settings import load_settings; from eroica.{0} import {1}; sys.exit({1}(load_settings()))"
)
SERVICES = {
    "group": _START.format("streams.service", "run_group"),
    "localize": _START.format("localizer.service", "run_localizer"),
}


@dataclass(frozen=True)
class Timing:
    """Seconds from the moment at which the broker has the last summary."""

    way: str
    groups_s: float
    """Until the last chunk stands on ``groups``."""
    verdict_s: float
    """Until the verdict stands on its topic."""


@dataclass(frozen=True)
class Work:
    """What the cores alone take, seconds."""

    group_s: float
    """Close the class that the last summary completes: its columns, encoded."""
    group_all_s: float
    """All classes, from the messages' bytes."""
    localize_s: float
    """Judge the last chunk's request, with decoding of that chunk and the verdict's bytes."""
    localize_all_s: float
    """Decode all chunks, and judge."""


def job_messages(workers: int) -> tuple[ProfileRequest, list[Expectation], list[tuple[str, Summary]]]:
    """The request, the classes and the summaries with their keys."""
    emission = Emission(Simulation(parse_scenario(SCENARIO.format(workers=workers), ())))
    request = emission.request
    summaries = [(o.key, o.message) for o in emission.all() if isinstance(o.message, Summary)]
    names = sorted(request.classes)
    opened = [Expectation(cls=name, ranks=request.classes[name], classes=names, request=request) for name in names]
    return request, opened, [(key, s) for key, s in summaries if s.who.request == request.request]


def renamed(
    request: ProfileRequest, opened: list[Expectation], summaries: list[tuple[str, Summary]], run: int
) -> tuple[ProfileRequest, list[Expectation], list[tuple[str, Summary]]]:
    """The same as another request, now: services that have judged one would not look at it again."""
    new = msgspec.structs.replace(request, request=f"{request.request}{run}", issued_at_us=int(time.time() * 1e6))
    made = []
    for _, summary in summaries:
        who = msgspec.structs.replace(summary.who, request=new.request)
        moved = msgspec.structs.replace(summary, who=who, ended_at_us=new.issued_at_us)
        made.append((message_key(who.job, who.request, who.cls), moved))
    return new, [msgspec.structs.replace(one, request=new) for one in opened], made


class Watch(threading.Thread):
    """When the chunks and the verdict of a request arrive at somebody who reads the topic."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        super().__init__(daemon=True)
        self._settings, self._topic = settings, topic
        self.ended = threading.Event()
        self.said = ""
        """The last headline."""
        self._seen: dict[str, list[float]] = {}
        """Request → time of each message."""

    def run(self) -> None:
        for batch in read_partitions(self._settings, self._topic, stop=self.ended.is_set, poll_s=0.005):
            now = time.perf_counter()
            for message in batch:
                if self._topic == "verdicts":
                    verdict = decode_as(Verdict, message.value)
                    request, self.said = verdict.request.id, verdict.headline
                else:
                    request = (message.key or b"").decode().rpartition("/")[2]
                self._seen.setdefault(request, []).append(now)

    def wait(self, request: str, count: int) -> float:
        """Time at which *count* messages of *request* were there."""
        deadline = time.perf_counter() + TIMEOUT_S
        while len(self._seen.get(request, ())) < count:
            if time.perf_counter() > deadline:
                raise SystemExit(
                    f"{self._topic}: {len(self._seen.get(request, ()))} of {count} messages came in {TIMEOUT_S:.0f} s"
                )
            time.sleep(0.002)
        return self._seen[request][count - 1]


def cores(opened: list[Expectation], summaries: list[tuple[str, Summary]]) -> tuple[Work, list[int]]:
    """What the work takes without a broker, and the number of chunks of each class."""
    raw = [encode(s) for _, s in summaries]
    group = GroupCore(GroupSettings())
    for offset, one in enumerate(opened):
        group.feed(one, InputRef("summaries", 0, offset))
    chunks: list[bytes] = []
    number: list[int] = []
    began, last = time.perf_counter(), 0.0
    for offset, value in enumerate(raw):
        at = time.perf_counter()
        outputs = group.feed(decode_as(Summary, value), InputRef("summaries", 0, 10 + offset))
        made = [o.encoded or encode(o.message) for o in outputs]
        if made:
            last = time.perf_counter() - at
            number.append(len(made))
        chunks += made
    group_all = time.perf_counter() - began
    core = LocalizerCore(LocalizeSettings())
    began = time.perf_counter()
    judge = 0.0
    for offset, value in enumerate(chunks):
        at = time.perf_counter()
        for output in core.feed(decode_as(GroupChunk, value), InputRef("groups", 0, offset)):
            encode(output.message)
        judge = time.perf_counter() - at
    return Work(last, group_all, judge, time.perf_counter() - began), number


def send(producer: BusProducer, messages: list[tuple[str, str, bytes]]) -> float:
    """Send and wait until the broker has them all; returns when that was."""
    for topic, key, value in messages:
        while not producer.send(topic, key=key.encode(), value=value):
            producer.flush(0.05)
    wait_delivered(producer, TIMEOUT_S)
    return time.perf_counter()


def measure(settings: KafkaSettings, workers: int, runs: int) -> tuple[Work, list[Timing], str]:
    """Work without a broker, the ways of all runs, and the last headline."""
    job = job_messages(workers)
    work, number = cores(*renamed(*job, 0)[1:])
    groups, verdicts = Watch(settings, "groups"), Watch(settings, "verdicts")
    groups.start()
    verdicts.start()
    timings: list[Timing] = []
    with BusProducer(settings, "bench") as producer:
        for run in range(1, 2 * runs + 1):
            request, _, summaries = renamed(*job, run)
            lines = [("summaries", key, encode(s)) for key, s in summaries]
            send(producer, [("control", message_key(request.job), encode(request))])
            time.sleep(OPEN_S)
            way = "burst" if run % 2 else "last one"
            if way == "last one":
                send(producer, lines[:-1])
                groups.wait(request.request, sum(number) - number[-1])
                time.sleep(SETTLE_S)
                lines = lines[-1:]
            began = send(producer, lines)
            there = groups.wait(request.request, sum(number))
            timings.append(Timing(way, there - began, verdicts.wait(request.request, 1) - began))
    for watch in (groups, verdicts):
        watch.ended.set()
        watch.join(10)
    return work, timings, verdicts.said


def start(name: str, settings: KafkaSettings, folder: Path) -> subprocess.Popen[bytes]:
    """One service, once it is ready."""
    environment = os.environ | {"EROICA_KAFKA__BOOTSTRAP": settings.bootstrap, "EROICA_KAFKA__PREFIX": settings.prefix}
    log = folder / f"{name}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen([sys.executable, "-c", SERVICES[name]], env=environment, stderr=stream, cwd=folder)
    deadline = time.monotonic() + TIMEOUT_S
    while f"{name} ready" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"{name} did not start: {log.read_text()[-500:]}")
        time.sleep(0.05)
    return process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3_400, help="a multiple of 8")
    parser.add_argument("--runs", type=int, default=3, help="of each way; the median is printed")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="eroica-latency-") as name:
        try:
            with KafkaCluster(1) as cluster:
                settings = KafkaSettings(bootstrap=cluster.bootstrap, prefix="latency.")
                ensure_topics(settings)
                try:
                    processes += [start(service, settings, Path(name)) for service in SERVICES]
                    work, timings, said = measure(settings, options.workers, options.runs)
                finally:
                    for process in processes:
                        process.terminate()
                    for process in processes:
                        process.wait(30)
        except MissingDependency as error:
            leave_out(error)
        except EroicaError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    if options.json:
        print(json.dumps({"workers": options.workers, "work": asdict(work), "timings": [asdict(t) for t in timings]}))
        return 0
    show(options.workers, work, timings, said)
    return 0


def show(workers: int, work: Work, timings: list[Timing], said: str) -> None:
    """The table."""
    print(f"{workers} workers; seconds from the last summary at the broker, medians of {len(timings) // 2} runs")
    print(f"{'':10} {'groups':>8} {'verdict':>8}   {'group':>7} {'localize':>8} {'transport':>9}   {'slowest':>8}")
    for way, group, localize in (("last one", work.group_s, work.localize_s), ("burst", work.group_all_s, work.localize_all_s)):
        mine = [t for t in timings if t.way == way]
        at_groups = statistics.median(t.groups_s for t in mine)
        verdict = statistics.median(t.verdict_s for t in mine)
        left = max(verdict - group - localize, 0.0)
        print(
            f"{way:10} {at_groups:8.2f} {verdict:8.2f}   {group:7.2f} {localize:8.2f} {left:9.2f}   "
            f"{max(t.verdict_s for t in mine):8.2f}"
        )
    worst = statistics.median(t.verdict_s for t in timings if t.way == "last one")
    print(f"goal for the last one: {GOAL_S:g} s, {'met' if worst <= GOAL_S else 'missed'}")
    print(
        "group and localize: the cores alone, in this process; of a burst all of their work, most of it while it still comes in"
    )
    print(f"verdict: {said}")


if __name__ == "__main__":
    sys.exit(main())
