"""1,200 iterations' worth of the hook's calls between two marks on standard error, with the agent's reader in a thread. OUT."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["EROICA_RUNTIME_DIR"] = sys.argv[1]

import torch
from torch.utils.data import DataLoader, TensorDataset

from eroica.producers import hook
from eroica.producers.agent.server import DatagramServer

hook.activate()
heard: list[bytes] = []
server = DatagramServer(Path(sys.argv[1]), heard.extend)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train() -> None:
    for (batch,) in DataLoader(TensorDataset(torch.ones(40, 8)), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()


train()
assert hook._patch is not None
recorder = hook._patch.recorder
while not recorder.sender._attended:
    time.sleep(0.1)
    train()
began = time.monotonic()
os.write(2, b"MARK")
for _ in range(1_200):
    entered = recorder.loader_enter(0)
    recorder.loader_exit(0, entered, True)
    hook._patch._after_step(optimizer, (), {})
os.write(2, b"MARK")
seconds = time.monotonic() - began
assert hook.status()["failures"] == 0
assert hook.status()["channel"] == "ring"
step = hook.status()["step"]
recorder.goodbye()
server.close()
assert step > 1_200
print(len(heard), seconds)
