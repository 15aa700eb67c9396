"""DDP with uneven inputs: rank 0 has more batches, the other shadows it inside ``join()``. Under torchrun: ddp_join.py OUT."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
with model.join():
    for (batch,) in DataLoader(TensorDataset(torch.ones(80 if rank else 120, 8)), batch_size=2):
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
weights = [parameter.detach().sum().item() for parameter in model.parameters()]
(Path(sys.argv[1]) / f"done-{os.environ['RANK']}.json").write_text(json.dumps([steps, weights]))
dist.destroy_process_group()
