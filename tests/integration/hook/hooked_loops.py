"""Training loops of many shapes, each in a fork of one process that has torch and the hook.

Run: python hooked_loops.py ROOT NAME... ; each loop uses the runtime folder ROOT/NAME and writes result.json there. Where that
holds a file ``awaits``, the loop stands still after hello until it was given a command, so that none comes after its step.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from eroica.producers import hook

hook.activate()

Result = dict[str, Any]
HELLO = 15
"""By this iteration hello was said: ten go by before the first is told."""


def await_command(mark: str = "told") -> None:
    """Stand still until the agent has sent a command to this process, where one is awaited."""
    folder = Path(os.environ["EROICA_RUNTIME_DIR"])
    while (folder / "awaits").exists() and not (folder / f"{mark}-{os.getpid()}").exists():
        time.sleep(0.005)


def await_trace() -> None:
    """Stand still until no trace is being written."""
    for thread in threading.enumerate():
        if thread.name == "eroica-trace":
            thread.join()


def data(rows: int = 400, batch: int = 4, **options: Any) -> DataLoader[Any]:
    features = torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8) / (rows * 8)
    return DataLoader(TensorDataset(features), batch_size=batch, **options)


class Job:
    """A model and an optimizer, the same in each run."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.losses: list[float] = []

    def backward(self, batch: torch.Tensor) -> None:
        loss = self.model(batch).pow(2).mean()
        loss.backward()
        self.losses.append(loss.item())

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def epoch(self, **options: Any) -> None:
        for (batch,) in data(**options):
            self.backward(batch)
            self.step()

    def result(self) -> Result:
        return {"losses": self.losses, "weights": sum(p.double().sum().item() for p in self.model.parameters())}


def plain() -> Result:
    """100 iterations, then 20 more of another epoch."""
    job = Job()
    job.epoch()
    job.epoch(rows=80)
    return job.result()


def everything() -> Result:
    """Two loaders, accumulation, two optimizers, evaluation every seventh step; 60 iterations."""
    job = Job()
    second = torch.optim.Adam(job.model.parameters(), lr=1e-3)
    main, extra = iter(data(rows=2000)), iter(data(rows=2000, batch=2))
    for i in range(60):
        for _ in range(3):
            job.backward(next(main)[0])
        job.backward(next(extra)[0])
        job.optimizer.step()
        second.step()
        job.optimizer.zero_grad()
        if i % 7 == 6:
            with torch.no_grad():
                for (batch,) in data(rows=40):
                    job.model(batch)
    return job.result()


def amp() -> Result:
    """A gradient scaler that skips every fifth of 60 steps."""
    job = Job()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1000)
    ran = 0
    for i, (batch,) in enumerate(data(rows=240)):
        loss = job.model(batch).pow(2).mean() * (float("inf") if i % 5 == 4 else 1.0)
        scaler.scale(loss).backward()
        before = job.model[0].weight.clone()
        scaler.step(job.optimizer)
        ran += not torch.equal(before, job.model[0].weight)
        scaler.update()
        job.optimizer.zero_grad()
    return {**job.result(), "ran": ran}


def marked() -> Result:
    """Neither loader nor optimizer; 30 iterations between 31 marks, profiled; receive waits of an exchange are handed over."""
    told = 0

    def counted() -> torch.Tensor:
        nonlocal told
        told += 1
        return torch.tensor([30, 20, 10 * told])

    for i in range(31):
        if i == 5:
            await_command()
        hook.record_receive_waits("dispatch", [0, 1, 2], [1.0, 2.0, float(i)])
        hook.record_receive_waits("combine", [2, 1, 0], counted)
        torch.ones(4, 4) @ torch.ones(4, 4)
        time.sleep(0.01)
        hook.mark_step(100 + i)
    hook.record_receive_waits("combine", [2, 1, 0], counted)
    return {"told": told}


def steps_only() -> Result:
    """An optimizer and no loader: 60 iterations."""
    job = Job()
    for i in range(60):
        if i == HELLO:
            await_command()
        job.backward(torch.ones(2, 8))
        job.step()
        time.sleep(0.005)
    return job.result()


def compiled() -> Result:
    """An optimizer step under torch.compile must compile as before; marks make the iterations."""
    job = Job()
    step = torch.compile(job.optimizer.step, backend="eager")
    for (batch,) in data(rows=100):
        job.backward(batch)
        step()
        job.optimizer.zero_grad()
        hook.mark_step()
    return job.result()


def forked_workers() -> Result:
    """Loader workers by fork."""
    job = Job()
    job.epoch(num_workers=2)
    return job.result()


def spawned_workers() -> Result:
    """Loader workers by spawn, which import the hook anew."""
    job = Job()
    job.epoch(rows=100, num_workers=1, multiprocessing_context="spawn")
    return job.result()


def paced() -> Result:
    """120 iterations with time for commands to arrive."""
    job = Job()
    for i, (batch,) in enumerate(data(rows=480)):
        if i == HELLO:
            await_command()
        job.backward(batch)
        job.step()
        time.sleep(0.01)
    return job.result()


def user_profiler() -> Result:
    """The program's own profiler runs when the command comes."""
    job = Job()
    with torch.profiler.profile() as profiler:
        for i, (batch,) in enumerate(data(rows=200)):
            if i == HELLO:
                await_command()
            job.backward(batch)
            job.step()
            time.sleep(0.01)
    return {**job.result(), "own": len(profiler.events())}


def user_profiler_later() -> Result:
    """The program starts its own profiler while ours runs."""
    job = Job()
    own = 0
    for i, (batch,) in enumerate(data(rows=400)):
        if i == HELLO:
            await_command()
        job.backward(batch)
        job.step()
        time.sleep(0.01)
        if i == 60:
            with torch.profiler.profile() as profiler:
                job.backward(batch)
            own = len(profiler.events())
    return {**job.result(), "own": own}


def in_thread() -> Result:
    """The training loop runs in a thread."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(paced()))
    thread.start()
    thread.join()
    return results[0]


def broken(part: str) -> Callable[[], Result]:
    """The same 120 iterations while a part of the hook raises."""

    def run() -> Result:
        from eroica.producers.hook import automaton, identity, profiling, recorder, registry, sender, session

        places: dict[str, tuple[Any, str]] = {
            "automaton": (automaton.Automaton, "feed"),
            "sender": (sender.Sender, "event"),
            "message": (sender.Sender, "message"),
            "receive": (sender.Sender, "receive"),
            "registry": (registry.Registry, "token"),
            "identity": (identity, "place"),
            "start": (session.Session, "annotate"),
            "stop": (session.Session, "close_annotation"),
            "write": (profiling, "check_complete"),
            "exit": (recorder.Recorder, "goodbye"),
        }
        owner, name = places[part]

        def fail(*args: object, **kwargs: object) -> None:
            raise OSError("injected")

        setattr(owner, name, fail)
        return paced()

    return run


LOOPS: dict[str, Callable[[], Result]] = {
    loop.__name__: loop
    for loop in (
        plain,
        everything,
        amp,
        marked,
        steps_only,
        compiled,
        forked_workers,
        spawned_workers,
        paced,
        user_profiler,
        user_profiler_later,
        in_thread,
    )
} | {
    f"broken_{part}": broken(part)
    for part in ("automaton", "sender", "message", "receive", "registry", "identity", "start", "stop", "write", "exit")
}


def child(root: Path, name: str) -> None:
    # Before the loop's own names: a folder "NAME.suffix" runs the loop NAME.
    result = LOOPS[name.partition(".")[0]]()
    (root / name / "result.json").write_text(json.dumps({**result, "status": hook.status()}))


def main(root: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    # The first optimizer imports torch's compiler, which takes seconds: once here, not in every child.
    Job()
    failed = 0
    for name in names:
        os.environ["EROICA_RUNTIME_DIR"] = str(root / name)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(root, name)
                code = 0
            finally:
                if code:
                    sys.stderr.write(f"{name}\n{traceback.format_exc()}")
                atexit._run_exitfuncs()
                os._exit(code)
        failed += os.waitpid(pid, 0)[1] != 0
    sys.exit(failed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
