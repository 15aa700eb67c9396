"""A real DDP job on CPU (gloo) that writes one torch.profiler trace a rank. Run: python ddp_job.py OUT_DIR FAULT.

FAULT is ``none``, ``slow_data`` (a dataset read that takes longer) or ``slow_host`` (extra numpy work in the step), on rank
2 of 4.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # each rank's first optimizer would import it
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, Dataset

WORLD_SIZE = 4
CULPRIT = 2
WARM_UP_STEPS = 3
PROFILED_STEPS = 6


class Samples(Dataset[torch.Tensor]):
    """Rows of random numbers, read slowly if asked to."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return read_sample(index, self.delay_s)


def read_sample(index: int, delay_s: float) -> torch.Tensor:
    """Stand for a storage read."""
    if delay_s:
        time.sleep(delay_s)
    return torch.full((128,), float(index % 7))


def postprocess_metrics(rounds: int) -> float:
    """Extra host work that a user left in the training step."""
    total = 0.0
    for _ in range(rounds):
        total += float(np.sort(np.arange(20_000)[::-1]).sum())
    return total


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, rounds: int) -> None:
    """Forward, backward, optimizer; DDP overlaps its all-reduces with backward."""
    loss = model(batch).pow(2).mean()
    loss.backward()
    if rounds:
        postprocess_metrics(rounds)
    optimizer.step()
    optimizer.zero_grad()


def worker(rank: int, out_dir: str, fault: str, store: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(256, 8)), bucket_cap_mb=0.2)
    optimizer = torch.optim.Adam(model.parameters())
    slow = rank == CULPRIT
    # Far more than what a machine that does much else adds to any rank's step.
    loader = iter(DataLoader(Samples(0.02 if slow and fault == "slow_data" else 0.0), batch_size=8))
    rounds = 1_200 if slow and fault == "slow_host" else 0
    for _ in range(WARM_UP_STEPS):
        train_step(model, optimizer, next(loader), rounds)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        for step in range(PROFILED_STEPS):
            with record_function(f"ProfilerStep#{WARM_UP_STEPS + step}"):
                train_step(model, optimizer, next(loader), rounds)
    profiler.export_chrome_trace(str(Path(out_dir) / f"rank{rank}.json"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    directory, injected = sys.argv[1], sys.argv[2]
    arguments = (directory, injected, str(Path(directory) / "store"))
    mp.start_processes(worker, args=arguments, nprocs=WORLD_SIZE, start_method="fork")  # torch is imported once
