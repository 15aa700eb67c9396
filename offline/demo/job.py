"""The demo's training job: an ordinary DDP script that knows nothing of Eroica. Run by torchrun.

Usage: job.py DATA_FILE SIGNAL_DIR FAULT FAULT_RANK

It trains until it is ended. When the file ``fault`` appears in SIGNAL_DIR, rank FAULT_RANK becomes slow: ``slow-data`` reads its
samples in small pieces, as a storage system in trouble hands them out; ``slow-host`` does Python work in every step that nobody
needs.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

FEATURES = 256
HIDDEN = 384
BATCH = 8
SAMPLE_BYTES = FEATURES * 4
READ_LATENCY_S = 0.002
"""What the storage takes for one request, healthy or not."""
SLOW_PIECES = 8
"""Requests for one sample when reads come in pieces: 8 samples x 7 more requests x 2 ms make a step some 110 ms longer."""
CHECKS = 60
"""Rounds of the needless work: some 100 ms and more, as the machine is."""


class Samples:
    """A map-style data set: rows of a file of float32, read one request at a time."""

    def __init__(self, path: Path, faulty: Fault) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._rows = path.stat().st_size // SAMPLE_BYTES
        self._fault = faulty

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        pieces = SLOW_PIECES if self._fault.now("slow-data") else 1
        raw = read_sample(self._file, index % self._rows, pieces)
        return torch.frombuffer(bytearray(raw), dtype=torch.float32)


class Fault:
    """Whether this rank is to be slow now."""

    def __init__(self, directory: Path, kind: str, mine: bool) -> None:
        self._signal = str(directory / "fault")
        self._kind = kind
        self._mine = mine

    def now(self, kind: str) -> bool:
        """Whether the fault *kind* is on here."""
        return self._mine and kind == self._kind and os.path.exists(self._signal)  # noqa: PTH110  # a stat a sample, kept cheap


def read_sample(file: int, row: int, pieces: int) -> bytes:
    """One row of the file in *pieces* requests to the storage."""
    size = SAMPLE_BYTES // pieces + 1
    start, end = row * SAMPLE_BYTES, (row + 1) * SAMPLE_BYTES
    parts = []
    for offset in range(start, end, size):
        time.sleep(READ_LATENCY_S)
        parts.append(os.pread(file, min(size, end - offset), offset))
    return b"".join(parts)


def checksum(raw: bytes) -> int:
    """A check in pure Python that somebody forgot in the training step."""
    total = 0
    for _ in range(CHECKS):
        for byte in raw:
            total = (total * 31 + byte) % 65_521
    return total


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, fault: Fault) -> None:
    """Forward, backward, optimizer; DDP reduces the gradients meanwhile."""
    loss = (model(batch) - batch).pow(2).mean()
    loss.backward()
    if fault.now("slow-host"):
        checksum(batch.numpy().tobytes())
    optimizer.step()
    optimizer.zero_grad()


def main(data: Path, signals: Path, kind: str, fault_rank: int) -> None:
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    layers = [nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, FEATURES)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fault = Fault(signals, kind, rank == fault_rank)
    for batch in DataLoader(Samples(data, fault), batch_size=BATCH):
        train_step(model, optimizer, batch, fault)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
