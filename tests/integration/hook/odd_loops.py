"""Training loops as people really write them. Run: python odd_loops.py ROOT NAME... (see hooked_loops.py)."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import hooked_loops
import torch
from hooked_loops import HELLO, Job, Result, await_command, await_trace, data, main
from torch.utils.data import DataLoader, Dataset, IterableDataset

from eroica.producers import hook


def generator_loader() -> Result:
    """The loader is wrapped in a generator that filters and moves batches; 60 iterations, one batch in three is passed over."""

    def stream() -> Iterator[torch.Tensor]:
        for i, (batch,) in enumerate(data(rows=360)):
            if i % 3 != 2:
                yield batch * 2

    job = Job()
    for batch in stream():
        job.backward(batch)
        job.step()
    return job.result()


def plain_generator() -> Result:
    """No torch loader at all, a generator of tensors: 60 iterations by the optimizer alone."""
    job = Job()
    for _ in range(60):
        job.backward(next(iter([torch.ones(2, 8)])))
        job.step()
    return job.result()


def zipped() -> Result:
    """Three loaders in zip, the shortest ends the epoch; 3 epochs of 20."""
    job = Job()
    for _ in range(3):
        for (a,), (b,), (c,) in zip(data(rows=120), data(rows=80, batch=4), data(rows=300, batch=3), strict=False):
            job.backward(torch.cat([a, b, c]))
            job.step()
    return job.result()


def closure() -> Result:
    """LBFGS evaluates its closure several times a step; 40 steps."""
    job = Job()
    optimizer = torch.optim.LBFGS(job.model.parameters(), max_iter=3)
    for (batch,) in data(rows=160):

        def again(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = job.model(batch).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(again)
    return job.result()


def closure_reads() -> Result:
    """The closure itself reads the next batch; 40 steps of two batches."""
    job = Job()
    batches = iter(data(rows=400))

    def closure() -> torch.Tensor:
        job.optimizer.zero_grad()
        for _ in range(2):
            (batch,) = next(batches)
            loss = job.model(batch).pow(2).mean()
            loss.backward()
        return loss

    for _ in range(40):
        job.optimizer.step(closure)
    return job.result()


def fused() -> Result:
    """Fused and foreach optimizers in turn within a step; 40 iterations."""
    job = Job()
    one = torch.optim.AdamW(job.model[0].parameters(), fused=True)
    two = torch.optim.SGD(job.model[2].parameters(), lr=1e-3, foreach=True)
    for (batch,) in data(rows=160):
        job.backward(batch)
        one.step()
        two.step()
        job.model.zero_grad()
    return job.result()


def compiled_step() -> Result:
    """Only the optimizer's step is compiled and nothing is marked; 40 iterations, of which the hook may see none."""
    job = Job()
    step = torch.compile(job.optimizer.step, backend="eager")
    for (batch,) in data(rows=160):
        job.backward(batch)
        step()
        job.optimizer.zero_grad()
    return job.result()


def caught() -> Result:
    """Every twelfth step fails half way and the program goes on with the next batch; 72 batches, 66 steps."""
    job = Job()
    for i, (batch,) in enumerate(data(rows=288)):
        with suppress(RuntimeError):
            job.backward(batch)
            if i % 12 == 11:
                raise RuntimeError("out of memory, they say")
            job.step()
    return job.result()


class Broken(Dataset[Any]):
    """Every fifth sample cannot be read."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 5 == 4:
            raise OSError("no such sample")
        return torch.full((8,), index / 100)


def caught_in_loader() -> Result:
    """The loader raises on every fifth batch and the program asks for the next; 80 steps."""
    job = Job()
    batches = iter(DataLoader(Broken(), batch_size=1))
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except OSError:
            continue
        job.backward(batch)
        job.step()
    return job.result()


def evaluated() -> Result:
    """Evaluation inside the loop with the same loader object, gradients off by mode or by decorator; 60 iterations."""
    job = Job()
    loader = data(rows=80)

    @torch.no_grad()
    def evaluate() -> None:
        for (batch,) in loader:
            job.model(batch)

    for _ in range(3):
        for i, (batch,) in enumerate(loader):
            job.backward(batch)
            job.step()
            if i % 6 == 5:
                evaluate()
        with torch.inference_mode():
            for (batch,) in loader:
                job.model(batch)
    return job.result()


def evaluated_with_gradients() -> Result:
    """Evaluation forgets to switch gradients off; a loader of its own, every tenth step; 60 iterations."""
    job = Job()
    for i, (batch,) in enumerate(data(rows=240)):
        job.backward(batch)
        job.step()
        if i % 10 == 9:
            for (other,) in data(rows=20, batch=2):
                job.model(other)
    return job.result()


def manual() -> Result:
    """``while True`` with ``next()``, a new iterator at the end of the data; 60 iterations, 15 an epoch."""
    job = Job()
    loader = data(rows=60)
    batches = iter(loader)
    for _ in range(60):
        while True:
            try:
                (batch,) = next(batches)
                break
            except StopIteration:
                batches = iter(loader)
        job.backward(batch)
        job.step()
    return job.result()


def remade() -> Result:
    """A new loader every epoch, every third epoch has no batch at all; 20 epochs of 6."""
    job = Job()
    for epoch in range(30):
        for (batch,) in data(rows=0 if epoch % 3 == 2 else 24):
            job.backward(batch)
            job.step()
    return job.result()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(240):
            yield torch.full((8,), i / 240)


def iterable() -> Result:
    """An iterable data set, read by a worker, with persistent workers over 2 epochs; 120 iterations."""
    job = Job()
    loader = DataLoader(Stream(), batch_size=4, num_workers=1, persistent_workers=True)
    for _ in range(2):
        for batch in loader:
            job.backward(batch)
            job.step()
    return job.result()


def threaded() -> Result:
    """A daemon thread trains, and the program ends without waiting for it to end."""
    job = Job()
    done = threading.Event()

    def train() -> None:
        while True:
            for (batch,) in data(rows=80):
                job.backward(batch)
                job.step()
                if len(job.losses) >= 60:
                    done.set()

    threading.Thread(target=train, daemon=True).start()
    done.wait(100)
    return {"losses": job.losses[:60], "weights": 0.0}


def slow(steps: int, pause_s: float = 0.01) -> Job:
    job = Job()
    for i, (batch,) in enumerate(data(rows=4 * steps)):
        if i == HELLO:
            await_command()
        job.backward(batch)
        job.step()
        time.sleep(pause_s)
    return job


def ends_in_profile() -> Result:
    """The job is at its end in the middle of a profile: what there is is kept."""
    return slow(60).result()


def hard_exit() -> Result:
    """``os._exit`` after 60 steps: nobody says goodbye."""
    result = {**slow(60).result(), "status": hook.status()}
    (Path(os.environ["EROICA_RUNTIME_DIR"]) / "result.json").write_text(json.dumps(result))
    os._exit(0)


def expired() -> Result:
    """A command whose step never comes must not stand in the way of the next one."""
    job = slow(60)
    await_command("told-again")
    for (batch,) in data(rows=40):
        job.backward(batch)
        job.step()
    return job.result()


def call(x: int) -> int:
    return x


def call_heavy() -> Result:
    """A step makes so many Python calls that the trace of the asked-for steps would have gigabytes with stacks."""
    job = Job()
    for i, (batch,) in enumerate(data(rows=4 * 60)):
        if i == HELLO:
            await_command()
        job.backward(batch)
        job.step()
        # The first steps are quick, so that the signature is found soon.
        for n in range(100_000 if i >= 12 else 1_000):
            call(n)
        time.sleep(0.05)
    return job.result()


def large_trace() -> Result:
    """A trace above the limit of the command."""
    job = slow(60)
    await_trace()
    for (batch,) in data(rows=40):
        job.backward(batch)
        job.step()
    return job.result()


ODD: dict[str, Callable[[], Result]] = {
    loop.__name__: loop
    for loop in (
        generator_loader, plain_generator, zipped, closure, closure_reads, fused, compiled_step, caught, caught_in_loader,
        evaluated, evaluated_with_gradients, manual, remade, iterable, threaded, ends_in_profile, hard_exit, expired,
        call_heavy, large_trace,
    )
}  # fmt: skip

if __name__ == "__main__":
    hooked_loops.LOOPS.update(ODD)
    main(Path(sys.argv[1]), sys.argv[2:])
