"""Counters of hosts and devices: what they show on a healthy machine, and what faults move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from eroica.schemas.summaries import Metric
from eroica.simulator.effects import Effects, FloatArray

__all__ = ["BASE", "metrics_of", "readings"]


class Counter(NamedTuple):
    """A counter's healthy value and its relative spread."""

    name: str
    unit: str
    value: float
    spread: float


BASE: tuple[Counter, ...] = (
    Counter("sm_clock", "MHz", 1980.0, 0.005),
    Counter("sm_throttle", "share", 0.0, 0.0),
    Counter("gpu_temperature", "C", 62.0, 0.05),
    Counter("gpu_foreign_processes", "count", 0.0, 0.0),
    Counter("pcie_width", "lanes", 16.0, 0.0),
    Counter("pcie_rx", "GB/s", 1.5, 0.1),
    Counter("nvlink_active", "share", 1.0, 0.0),
    Counter("nvlink_tx", "GB/s", 60.0, 0.05),
    Counter("nic_link", "Gb/s", 400.0, 0.0),
    Counter("nic_retransmits", "1/s", 0.0, 0.0),
    Counter("cpu_busy", "share", 0.22, 0.1),
    Counter("cpu_steal", "share", 0.0, 0.0),
    Counter("cpu_foreign", "cores", 0.4, 0.3),
    Counter("cpu_pressure", "share", 0.01, 0.3),
    Counter("mem_pressure", "share", 0.0, 0.0),
    Counter("io_pressure", "share", 0.004, 0.3),
)


def readings(effects: Effects, seed: int) -> FloatArray:
    """Means over the window, shape (counters, world)."""
    rng = np.random.default_rng([seed, 3])
    value = np.array([c.value for c in BASE])[:, None]
    spread = np.array([c.spread for c in BASE])[:, None]
    out: FloatArray = np.abs(value * (1.0 + spread * rng.standard_normal((len(BASE), effects.world))))
    row = {c.name: i for i, c in enumerate(BASE)}
    for reading in effects.readings:
        mine = out[row[reading.name]]
        mine[reading.ranks] = mine[reading.ranks] * reading.value if reading.relative else reading.value
    return out


def metrics_of(column: list[float]) -> list[Metric]:
    """One rank's counters (rounded already) as a summary holds them."""
    return [Metric(name=c.name, unit=c.unit, mean=v) for c, v in zip(BASE, column, strict=True)]
