"""Small DDP jobs on CPU (gloo) for the agent's tests, from one process that has imported torch already: an import takes seconds.

Reads one JSON object a line from standard input: ``{"env": {…}, "steps": 100, "step_s": 0.01, "leash": "", "end": "", "output":
"FILE"}``, forks a rank for it, activates the hook there and trains. Answers ``started PID`` and, at its end, ``ended PID CODE``.
A rank trains steps of about *step_s* seconds and writes ``trained N steps``: *steps* of them; or, with *end*, until that file is
there and all ranks know it, however fast or slow the machine is. With *leash* it goes no further than to the step that stands in
that file.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer step would import it
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

TOGETHER = 25
"""After so many steps the ranks ask each other whether to end."""


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((16,), float(index % 7))


def stand_still(leash: Path, done: int) -> None:
    """Until more than *done* steps are allowed."""
    while int(leash.read_text()) <= done:
        time.sleep(0.02)


def train(steps: int, step_s: float, leash: str, end: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    done = 0
    for batch in DataLoader(Samples(), batch_size=4):
        model(batch).sum().backward()
        time.sleep(step_s)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if leash:
            stand_still(Path(leash), done)
        if done == steps or (end and done % TOGETHER == 0 and all_see(Path(end))):
            break
    print(f"trained {done} steps", flush=True)
    dist.destroy_process_group()


def all_see(file: Path) -> bool:
    """Whether *file* is there, as rank 0 sees it: all ranks must end with the same step."""
    seen = torch.tensor([file.exists()])
    dist.broadcast(seen, 0)
    return bool(seen.item())


def rank(order: dict[str, Any]) -> None:
    """The forked process."""
    os.environ.update(order["env"])
    output = os.open(order["output"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for fd in (1, 2):
        os.dup2(output, fd)
    import eroica.producers.hook.auto  # noqa: F401 - importing it is its use

    train(order["steps"], order["step_s"], order["leash"], order["end"])


def main() -> None:
    """Serve until standard input ends."""
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([0], [], [], 0.05)
        if ready:
            line = sys.stdin.readline()
            if not line:
                return
            pid = os.fork()
            if pid == 0:
                rank(json.loads(line))
                sys.exit(0)
            children.add(pid)
            print(f"started {pid}", flush=True)
        for pid in sorted(children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                children.discard(pid)
                print(f"ended {pid} {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
