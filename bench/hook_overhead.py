"""What the hook costs: one event, and the time of a training step with it against without it.

The events are the callbacks that the wrapped loader and optimizer make, with the agent's own reader in another process; next to
them, in the same run, a bare 40-byte datagram to the agent's socket, the least that telling an agent by a system call can cost.

The steps are a real loop (data loader, forward, backward, SGD), each pair one with the hook and one without in random order, so
that whatever changes on the machine meets both. The ratio is the median difference of the pairs over the median step, its
interval a bootstrap over the pairs; once by the clock, once by the processor time of the training thread. A machine whose steps
vary by several per cent cannot decide about one in a thousand that way; so, third, the time inside the hook's own calls is added
up step by step in the same loop, with the caches as the step leaves them (what the hook's use of the caches costs the step
itself is in the first two only).

Rounds and pairs in which another program took the processor away say nothing about the hook: they are counted and left out
where enough others remain (``all`` keeps them).

Usage: python bench/hook_overhead.py [--json] [--events N] [--seconds S] [--width N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
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
MIN_KEPT = 30
"""Fewer undisturbed rounds or pairs say too little: then all are taken."""
READER = """
import sys, time
from pathlib import Path
from eroica.producers.agent.server import DatagramServer
server = DatagramServer(Path(sys.argv[1]), lambda batch: None)
print("up", flush=True)
time.sleep(3600)
"""


@contextmanager
def reading_agent() -> Iterator[Path]:
    """A process with the agent's own reader, which throws away what it hears."""
    with tempfile.TemporaryDirectory(prefix="eroica-bench-") as folder:
        reader = subprocess.Popen([sys.executable, "-c", READER, folder], stdout=subprocess.PIPE, text=True)
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


def switches() -> int:
    """How often another program has taken the processor from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def undisturbed(values: list[Any], disturbed: list[bool]) -> list[Any]:
    """Those of *values* that nothing disturbed; all where they are too few."""
    quiet = [value for value, bad in zip(values, disturbed, strict=True) if not bad]
    return quiet if len(quiet) >= max(MIN_KEPT, len(values) // 10) else values


def timed(calls: list[Callable[[], object]], rounds: int, clock: Callable[[], int]) -> tuple[list[list[float]], list[bool]]:
    """Microseconds of each call of each round, and which rounds were disturbed.

    The calls take turns, so that a noisy moment meets all.
    """
    spent: list[list[float]] = [[] for _ in calls]
    disturbed = []
    before = switches()
    for _ in range(rounds):
        for call, kept in zip(calls, spent, strict=True):
            start = clock()
            call()
            kept.append((clock() - start) / 1e3)
        # Far more than training sends, yet the reader keeps up. Busy, since a training thread is busy between events too.
        pause = time.perf_counter_ns() + PAUSE_NS
        while time.perf_counter_ns() < pause:
            pass
        # Taken away during the pause: then the next round's first call finds its memory cold.
        after = switches()
        disturbed.append(after != before)
        before = after
    return spent, [False, *disturbed[:-1]]


def summary(wall: list[float], processor: list[float], disturbed: list[bool]) -> dict[str, float]:
    quiet = undisturbed(wall, disturbed)
    return {
        "median_us": round(statistics.median(quiet), 3),
        "p99_us": round(statistics.quantiles(quiet, n=100)[98], 3),
        "all_p99_us": round(statistics.quantiles(wall, n=100)[98], 3),
        "cpu_median_us": round(statistics.median(processor), 3),
        "events": len(wall),
        "left_out": len(wall) - len(quiet),
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
        entered[0] = recorder.loader_enter(0)

    def leave() -> None:
        recorder.loader_exit(0, entered[0], True)

    def step() -> None:
        patch._after_step(optimizer, (), {})

    names = ["empty call", "bare datagram", "loader asked", "loader returned", "iteration complete"]
    calls: list[Callable[[], object]] = [lambda: None, send, enter, leave, step]
    timed(calls, 500, time.perf_counter_ns)
    wall, disturbed = timed(calls, rounds, time.perf_counter_ns)
    processor, _ = timed(calls, rounds // 4, processor_ns)
    bare.close()
    table = {name: summary(*values, disturbed) for name, *values in zip(names, wall, processor, strict=True)}
    # All three events of an iteration alike.
    together = [[value for one in costs[2:5] for value in one] for costs in (wall, processor)]
    return {**table, "one hook event": summary(together[0], together[1], disturbed * 3)}


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


def step_ratio(switch: Switch, train: Callable[[], None], seconds: float) -> dict[str, Any]:
    """Step time with the hook over step time without it, from pairs of steps for *seconds*."""
    rng = random.Random(0)
    wall: list[tuple[float, float]] = []
    processor: list[tuple[float, float]] = []
    disturbed: list[bool] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        order = rng.choice(((True, False), (False, True)))
        before = switches()
        times = {}
        for on in order:
            switch.set(on)
            cpu, start = processor_ns(), time.perf_counter_ns()
            train()
            end, cpu_end = time.perf_counter_ns(), processor_ns()
            times[on] = ((end - start) / 1e3, (cpu_end - cpu) / 1e3)
        disturbed.append(switches() != before)
        wall.append((times[True][0], times[False][0]))
        processor.append((times[True][1], times[False][1]))
        if len(wall) % 100 == 0:
            progress(f"{len(wall)} pairs of steps, {max(0, deadline - time.monotonic()):.0f} s left")
    switch.set(True)
    kept = undisturbed(wall, disturbed)
    return {
        "step_without_us": round(statistics.median(without for _, without in kept), 1),
        **compared(kept, "", rng),
        **compared(processor, "cpu_", rng),
        "pairs": len(wall),
        "pairs_left_out": len(wall) - len(kept),
    }


def inside(patch: Any, switch: Switch, train: Callable[[], None], seconds: float) -> dict[str, Any]:
    """Time inside the hook's calls, step by step in the real loop: the calls' time less that of what they wrap."""
    clock = time.perf_counter_ns
    base, inner, hook_ns, torn = switch.base, [0], [0], [False]
    original = switch.plain[1]

    def timed_original(iterator: Any) -> Any:
        start = clock()
        batch = original(iterator)
        inner[0] = clock() - start
        return batch

    base.__next__ = timed_original
    patch._wrap_next(base)
    wrapped = base.__next__

    def timed_next(iterator: Any) -> Any:
        before, start = switches(), clock()
        batch = wrapped(iterator)
        hook_ns[0] += clock() - start - inner[0]
        torn[0] |= switches() != before
        return batch

    def timed_after(*args: Any) -> None:
        before, start = switches(), clock()
        patch._after_step(*args)
        hook_ns[0] += clock() - start
        torn[0] |= switches() != before

    base.__next__ = timed_next
    switch.hooks.clear()
    switch.hooks.update(dict.fromkeys(switch.entries, timed_after))
    spent: list[float] = []
    lengths: list[float] = []
    disturbed: list[bool] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        hook_ns[0], torn[0], start = 0, False, clock()
        train()
        lengths.append((clock() - start) / 1e3)
        spent.append(hook_ns[0] / 1e3)
        disturbed.append(torn[0])
    switch.set(True)
    kept = undisturbed(spent, disturbed)
    # The shortest quarter of the steps is nearest to a machine of one's own, and the ratio is the larger for it.
    step_us = statistics.quantiles(lengths, n=4)[0]
    rng = random.Random(0)
    drawn = sorted(statistics.fmean(rng.choices(kept, k=len(kept))) for _ in range(RESAMPLES))
    mean, low, high = statistics.fmean(kept), drawn[int(RESAMPLES * 0.025)], drawn[int(RESAMPLES * 0.975)]
    return {
        "hook_us_a_step": round(mean, 2),
        "hook_us_a_step_median": round(statistics.median(kept), 2),
        "inside_step_us": round(step_us, 1),
        "holds_from_ms": round(high / (RATIO_GOAL - 1) / 1e3, 1),
        "inside_ratio": round(1 + mean / step_us, 6),
        "inside_ratio_95": [round(1 + low / step_us, 6), round(1 + high / step_us, 6)],
        "inside_steps": len(spent),
        "inside_left_out": len(spent) - len(kept),
    }


def compared(pairs: list[tuple[float, float]], prefix: str, rng: random.Random) -> dict[str, Any]:
    """Ratio and 95 % interval of *pairs* of (with, without)."""
    base = statistics.median(without for _, without in pairs)
    differences = [(hooked - without) / base for hooked, without in pairs]
    drawn = sorted(statistics.median(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    return {
        f"{prefix}ratio": round(1 + statistics.median(differences), 5),
        f"{prefix}ratio_95": [round(1 + drawn[int(RESAMPLES * 0.025)], 5), round(1 + drawn[int(RESAMPLES * 0.975)], 5)],
    }


def progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}\x1b[K")


def measure(folder: Path, events: int, seconds: float, width: int) -> dict[str, Any]:
    os.environ["EROICA_RUNTIME_DIR"] = str(folder)
    import torch
    from torch.utils.data import DataLoader, RandomSampler, TensorDataset

    from eroica.producers import hook

    torch.set_num_threads(1)
    torch.manual_seed(0)
    switch = Switch()
    hook.activate()
    switch.remember()
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = TensorDataset(torch.randn(4_096, width))
    # One epoch without end: no loader is made anew in a measured step.
    batches = iter(DataLoader(rows, batch_size=256, sampler=RandomSampler(rows, replacement=True, num_samples=1 << 40)))

    def train() -> None:
        (batch,) = next(batches)
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP_STEPS):
        train()
    patch = hook._patch
    ratio = {**step_ratio(switch, train, seconds), **inside(patch, switch, train, seconds / 2)}
    costs = event_costs(patch, optimizer, folder, events)
    status = hook.status()
    return {
        "events": costs,
        "step": ratio,
        "goals": {
            "event_median": verdict(*[costs["one hook event"]["median_us"]] * 2, EVENT_MEDIAN_GOAL_US),
            "event_p99": verdict(*[costs["one hook event"]["p99_us"]] * 2, EVENT_P99_GOAL_US),
            "ratio": verdict(*ratio["ratio_95"], RATIO_GOAL),
            "cpu_ratio": verdict(*ratio["cpu_ratio_95"], RATIO_GOAL),
            "inside_ratio": verdict(*ratio["inside_ratio_95"], RATIO_GOAL),
        },
        "dropped": status["dropped"],
        "failures": status["failures"],
        "channel": status["channel"],
        "torch": str(torch.__version__),
        "load_average": round(os.getloadavg()[0], 1),
    }


def show(result: dict[str, Any]) -> None:
    print(f"torch {result['torch']}, load average {result['load_average']}, events by {result['channel']}\n")
    print(f"{'':24}{'median µs':>12}{'p99 µs':>12}{'p99, all':>12}{'cpu median':>12}{'left out':>10}")
    for name, row in result["events"].items():
        cells = f"{row['median_us']:12.2f}{row['p99_us']:12.2f}{row['all_p99_us']:12.2f}{row['cpu_median_us']:12.2f}"
        print(f"{name:24}{cells}{row['left_out'] / row['events']:10.1%}")
    step = result["step"]
    print(f"\nstep without the hook {step['step_without_us'] / 1e3:.2f} ms; {step['pairs']} pairs", end="")
    print(f", {step['pairs_left_out']} of them disturbed and left out")
    for prefix, what in (("", "by the clock"), ("cpu_", "by processor time"), ("inside_", "from the time inside the hook")):
        low, high = step[f"{prefix}ratio_95"]
        print(f"ratio {what} {step[f'{prefix}ratio']:.5f} (95 % interval {low:.5f} to {high:.5f})")
    print(
        f"inside the hook {step['hook_us_a_step']:.1f} µs a step on average, median {step['hook_us_a_step_median']:.1f}", end=""
    )
    print(f": within {RATIO_GOAL} for steps of {step['holds_from_ms']:.0f} ms and more")
    for name, met in result["goals"].items():
        print(f"goal {name}: {met}")


def main() -> int:
    parser = argparse.ArgumentParser(description="What the hook costs a training job.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--events", type=int, default=20_000, help="rounds of each callback")
    parser.add_argument("--seconds", type=float, default=60, help="how long steps with and without the hook are compared")
    parser.add_argument("--width", type=int, default=512, help="width of the model's eight layers")
    options = parser.parse_args()
    with reading_agent() as folder:
        result = measure(folder, options.events, options.seconds, options.width)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 1 if "missed" in result["goals"].values() else 0


if __name__ == "__main__":
    sys.exit(main())
