"""What the hook costs: one event, and the time of a training step with it against without it.

The events are the callbacks that the wrapped loader and optimizer make, with an agent in a process of its own that reads its
socket; next to them, in the same run, a bare 40-byte datagram to the same socket, the least that telling an agent can cost. The
steps are a real loop (data loader, forward, backward, SGD) in blocks that alternate between torch as installed and torch with
the hook; the ratio is that of the blocks of a pair, its interval a bootstrap over the pairs.

Usage: python bench/hook_overhead.py [--json] [--events N] [--pairs N] [--steps N] [--width N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

EVENT_MEDIAN_GOAL_US = 5.0
EVENT_P99_GOAL_US = 20.0
RATIO_GOAL = 1.001
WARM_UP_STEPS = 30
RESAMPLES = 2_000
PAUSE_NS = 200_000
READER = """
import socket, sys
bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
bound.bind(sys.argv[1])
print("up", flush=True)
while True:
    bound.recv(65536)
"""


@contextmanager
def reading_agent() -> Iterator[Path]:
    """A process that reads the agent's socket and throws away what it hears."""
    with tempfile.TemporaryDirectory(prefix="eroica-bench-") as folder:
        reader = subprocess.Popen([sys.executable, "-c", READER, f"{folder}/agent.sock"], stdout=subprocess.PIPE, text=True)
        try:
            assert reader.stdout is not None
            reader.stdout.readline()
            yield Path(folder)
        finally:
            reader.kill()
            reader.communicate()


def processor_ns() -> int:
    """Processor time of this thread: what a call costs on a machine that other programs keep busy."""
    return time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)


def timed(calls: list[Callable[[], object]], rounds: int, clock: Callable[[], int]) -> list[list[float]]:
    """Microseconds of each call of each round; the calls take turns, so that a noisy moment meets all."""
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, kept in zip(calls, spent, strict=True):
            start = clock()
            call()
            kept.append((clock() - start) / 1e3)
        # Far more than training sends, yet the reader keeps up. Busy, since a training thread is busy between events too.
        pause = time.perf_counter_ns() + PAUSE_NS
        while time.perf_counter_ns() < pause:
            pass
    return spent


def summary(wall: list[float], processor: list[float]) -> dict[str, float]:
    return {
        "median_us": round(statistics.median(wall), 3),
        "p99_us": round(statistics.quantiles(wall, n=100)[98], 3),
        "cpu_median_us": round(statistics.median(processor), 3),
        "cpu_p99_us": round(statistics.quantiles(processor, n=100)[98], 3),
        "events": len(wall),
    }


def event_costs(patch: Any, optimizer: Any, folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Cost of each callback, after the signature is fixed, against a bare datagram and an empty call."""
    import socket

    recorder = patch.recorder
    bare = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bare.setblocking(False)
    bare.connect(str(folder / "agent.sock"))
    payload = b"x" * 40
    entered = [0]

    def send() -> None:
        with suppress(BlockingIOError):
            bare.send(payload)

    def enter() -> None:
        with patch.guard:
            entered[0] = recorder.loader_enter(0)

    def leave() -> None:
        with patch.guard:
            recorder.loader_exit(0, entered[0], True)

    def step() -> None:
        patch._after_step(optimizer, (), {})

    names = ["empty call", "bare datagram", "loader asked", "loader returned", "iteration complete"]
    calls: list[Callable[[], object]] = [lambda: None, send, enter, leave, step]
    timed(calls, 500, time.perf_counter_ns)
    wall = timed(calls, rounds, time.perf_counter_ns)
    processor = timed(calls, rounds, processor_ns)
    bare.close()
    table = {name: summary(*values) for name, *values in zip(names, wall, processor, strict=True)}
    return {**table, "one hook event": summary(one_event(wall), one_event(processor))}


def one_event(costs: list[list[float]]) -> list[float]:
    """All three events of an iteration alike."""
    return [*costs[2], *costs[3], *costs[4]]


def verdict(low: float, high: float, goal: float) -> str:
    """A goal is met or missed only where the whole interval says so."""
    return "met" if high <= goal else "missed" if low > goal else "undecided"


class Switch:
    """Takes the hook out of torch and puts it back, so that blocks with and without it alternate in one process."""

    def __init__(self) -> None:
        self.base = import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
        self.hooks = import_module("torch.optim.optimizer")._global_optimizer_post_hooks
        self.plain = (self.base.__init__, self.base.__next__)

    def remember(self) -> None:
        """Call once the hook is installed."""
        self.hooked = (self.base.__init__, self.base.__next__)
        self.entries = dict(self.hooks)

    def set(self, on: bool) -> None:
        self.base.__init__, self.base.__next__ = self.hooked if on else self.plain
        self.hooks.clear()
        if on:
            self.hooks.update(self.entries)


def step_ratio(switch: Switch, train: Callable[[int], None], pairs: int, steps: int) -> dict[str, Any]:
    """Step time with the hook over step time without it."""
    clock = time.perf_counter_ns

    def block(on: bool) -> list[float]:
        switch.set(on)
        train(2)
        times = []
        for _ in range(steps):
            start = clock()
            train(1)
            times.append((clock() - start) / 1e3)
        return times

    ratios, with_us, without_us = [], [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        # The median of a block: a moment when the machine did something else says nothing about the hook.
        medians = {on: statistics.median(block(on)) for on in order}
        ratios.append(medians[True] / medians[False])
        with_us.append(medians[True])
        without_us.append(medians[False])
        progress(f"pair {pair + 1} of {pairs}")
    switch.set(True)
    rng = random.Random(0)
    means = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return {
        "step_without_us": round(statistics.median(without_us), 1),
        "step_with_us": round(statistics.median(with_us), 1),
        "ratio": round(statistics.median(ratios), 5),
        "ratio_95": [round(means[int(RESAMPLES * 0.025)], 5), round(means[int(RESAMPLES * 0.975)], 5)],
        "pairs": pairs,
        "steps_a_block": steps,
    }


def progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}\x1b[K")


def measure(folder: Path, events: int, pairs: int, steps: int, width: int) -> dict[str, Any]:
    os.environ["EROICA_RUNTIME_DIR"] = str(folder)
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from eroica.producers import hook

    torch.set_num_threads(1)
    torch.manual_seed(0)
    switch = Switch()
    hook.activate()
    switch.remember()
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = TensorDataset(torch.randn(100_000, 4).repeat(1, width // 4)[:20_000])
    batches = iter(())  # replaced at once: an epoch's end makes the next loader

    def train(count: int) -> None:
        nonlocal batches
        for _ in range(count):
            batch = next(batches, None)
            if batch is None:
                batches = iter(DataLoader(rows, batch_size=32))
                batch = next(batches)
            model(batch[0]).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    train(WARM_UP_STEPS)
    ratio = step_ratio(switch, train, pairs, steps)
    patch = hook._patch
    costs = event_costs(patch, optimizer, folder, events)
    status = hook.status()
    told = costs["loader asked"]["median_us"] + costs["loader returned"]["median_us"]
    told += costs["iteration complete"]["median_us"]
    return {
        "events": costs,
        "step": {**ratio, "hook_us_a_step": round(told, 2), "ratio_from_events": round(1 + told / ratio["step_without_us"], 6)},
        "goals": {
            "event_median": verdict(*[costs["one hook event"]["median_us"]] * 2, EVENT_MEDIAN_GOAL_US),
            "event_p99": verdict(*[costs["one hook event"]["p99_us"]] * 2, EVENT_P99_GOAL_US),
            "ratio": verdict(*ratio["ratio_95"], RATIO_GOAL),
        },
        "dropped": status["dropped"],
        "failures": status["failures"],
        "torch": str(torch.__version__),
        "load_average": round(os.getloadavg()[0], 1),
    }


def show(result: dict[str, Any]) -> None:
    print(f"torch {result['torch']}, load average {result['load_average']}\n")
    print(f"{'':32}{'median µs':>12}{'p99 µs':>12}{'cpu median':>12}{'cpu p99':>12}")
    for name, row in result["events"].items():
        print(f"{name:32}{row['median_us']:12.2f}{row['p99_us']:12.2f}{row['cpu_median_us']:12.2f}{row['cpu_p99_us']:12.2f}")
    step = result["step"]
    low, high = step["ratio_95"]
    print(f"\nstep without the hook {step['step_without_us'] / 1e3:.2f} ms, with it {step['step_with_us'] / 1e3:.2f} ms")
    print(f"ratio {step['ratio']:.4f} (95 % interval {low:.4f} to {high:.4f}, {step['pairs']} pairs of blocks)")
    print(f"the hook's calls take {step['hook_us_a_step']:.1f} µs a step: ratio {step['ratio_from_events']:.5f} from them alone")
    for name, met in result["goals"].items():
        print(f"goal {name}: {met}")


def main() -> int:
    parser = argparse.ArgumentParser(description="What the hook costs a training job.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--events", type=int, default=20_000, help="rounds of each callback")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks with and without the hook")
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    parser.add_argument("--width", type=int, default=1024, help="width of the model's layers")
    options = parser.parse_args()
    with reading_agent() as folder:
        result = measure(folder, options.events, options.pairs, options.steps, options.width)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 1 if "missed" in result["goals"].values() else 0


if __name__ == "__main__":
    sys.exit(main())
