"""A cause that slows a recorded job, and what comes back without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eroica.topology.slow_transfers import NOWHERE, SlowPlace, Worker

__all__ = ["CauseKind", "MendedCause"]

CauseKind = Literal["worker", "pipeline_stage", "data_imbalance", "software_pause", "link", "fabric"]


@dataclass(frozen=True)
class MendedCause:
    """A cause and what comes back without it. Times in the unit of the timeline."""

    kind: CauseKind
    workers: tuple[Worker, ...]
    """(lane, stage) of suspects; empty if no single place is at fault."""
    stage: int
    """The heavy stage, else -1."""
    recovered: float
    """Share of the loss that comes back with this cause mended on top of those before it."""
    step: float
    """Mean step then."""
    ratio: float
    """How far out it is, against its peers (1 is as they are)."""
    agreement: float
    """Share of the steps in which it is so."""
    peers: int
    """How many it was compared with."""
    replicas: tuple[int, ...] = ()
    """Lanes whose data are at fault."""
    steps: tuple[int, ...] = ()
    """Which steps it is of, by their place in the timeline; empty if of all."""
    where: SlowPlace = NOWHERE
    """Of slow transfers: what they have in common."""
    kinds: tuple[str, ...] = ()
    """Of slow transfers: kinds that give back most, if not all do. Of a worker: what is slow, if not its compute."""
