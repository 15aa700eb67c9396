"""A job as a user writes it, with no word of Eroica: gloo DDP under torchrun, or alone. Run: ddp_loop.py OUT STEPS [WAIT].

With WAIT it stands still after so many steps until OUT/told-PID is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
model: torch.nn.Module = torch.nn.Linear(8, 1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
out = Path(sys.argv[1])
for (batch,) in DataLoader(TensorDataset(torch.ones(int(sys.argv[2]) * 2, 8)), batch_size=2):
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    (out / f"at-{os.environ.get('RANK', '0')}").write_text(str(len(losses)))
    while sys.argv[3:] == [str(len(losses))] and not (out / f"told-{os.getpid()}").exists():
        time.sleep(0.005)
    time.sleep(0.005)
(out / f"done-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(losses))
if dist.is_initialized():
    dist.destroy_process_group()
