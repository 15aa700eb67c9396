"""Hardware counters in an Nsight Systems export (``--gpu-metrics-devices``): samples of one GPU, some thousands a second.

``GPU_METRICS`` holds (timestamp, typeId, metricId, value); the low byte of a type is the GPU. Another table names the metrics, by
architecture a little differently. Throughputs are percent; clocks are in Hz, whatever the name says.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass

import numpy as np

from eroica.producers.trace.columns import Floats
from eroica.producers.trace.nsys_db import NsysDatabase
from eroica.producers.trace.pattern import Samples
from eroica.producers.trace.samples import MAX_SAMPLES as MAX_LEVELS
from eroica.producers.trace.samples import SampleSeries
from eroica.schemas.summaries import Metric

METRICS, NAMES, DEVICES, GPUS = "GPU_METRICS", "TARGET_INFO_GPU_METRICS", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_GPU"
MAX_SAMPLES = 4_000_000
"""Values of one GPU that are read; what follows is left out, and a note says so."""
MAX_NAMES = 10_000
_KINDS = (
    ("sm_clock", re.compile(r"^gpc clock frequency\b")),
    ("sm_active", re.compile(r"^sms? active\b(?!.*workloads)")),
    ("tensor_active", re.compile(r"^tensor active\b")),
    ("dram_read", re.compile(r"^dram read (?:bandwidth|throughput)\b")),
    ("dram_write", re.compile(r"^dram write (?:bandwidth|throughput)\b")),
    ("nvlink_rx", re.compile(r"^nvlink rx\b")),
    ("nvlink_tx", re.compile(r"^nvlink tx\b")),
    ("pcie_rx", re.compile(r"^pcie rx throughput\b")),
    ("pcie_tx", re.compile(r"^pcie tx throughput\b")),
)
_CLOCK = "sm_clock"
_PERCENT = re.compile(r"\[throughput %\]|^[^\[]*$")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the counters of a worker's GPU say. ``samples`` count from the session's start (µs), not from the first event."""

    samples: tuple[Samples, ...] = ()
    metrics: tuple[Metric, ...] = ()
    notes: tuple[str, ...] = ()

    def since(self, origin_us: float) -> tuple[Samples, ...]:
        """The samples on a trace's own time, which begins *origin_us* after the session."""
        return tuple(Samples(s.resource, s.ts_us - origin_us, s.value) for s in self.samples)

    def levels(self) -> tuple[SampleSeries, ...]:
        """The clock over all of the window, for kernels too short to hold samples: else a kernel about as long as two samples are
        apart would be measured by one thing on one rank and by another on the next.
        """
        clocks = [s for s in self.samples if s.resource == _CLOCK]
        thin = [slice(None, None, -(-s.value.size // MAX_LEVELS)) for s in clocks]
        return tuple(
            SampleSeries(_CLOCK, s.ts_us[cut].astype(np.int64).tolist(), s.value[cut].tolist())
            for s, cut in zip(clocks, thin, strict=True)
        )


NOTHING = Hardware()


def read_hardware(db: NsysDatabase, pid: int, device: int, alone: bool) -> Hardware:
    """The counters of the GPU that process *pid* calls *device*.

    :param alone: no other worker gives its GPU that number, so that it may stand for the GPU's own where nothing else tells it.
    """
    if not db.has(METRICS, "timestamp", "typeId", "metricId", "value") or not db.has(NAMES, "typeId", "metricId", "metricName"):
        return NOTHING
    gpu = _gpu_of(db, pid, device, alone)
    if gpu is None:
        return Hardware(notes=("the GPU's counters are not used: which GPU is this worker's is not in the export",))
    kinds = _kinds(db, gpu)
    series = {kind: _series(db, gpu, [m for m, k in kinds.items() if k == kind]) for kind in dict.fromkeys(kinds.values())}
    notes = [
        f"of the GPU's counter {kind} only the first {MAX_SAMPLES:,} values are used"
        for kind, (_, _, cut) in series.items()
        if cut
    ]
    known = {kind: (at, value) for kind, (at, value, _) in series.items() if at.size}
    top = _top_clock_hz(db, gpu)
    if _CLOCK in known and top <= 0:
        top = float(known[_CLOCK][1].max())
        notes.append("the GPU's highest clock is not in the export: the highest of the samples stands for it")
    return Hardware(
        tuple(_samples(known, top)),
        tuple(_metric(kind, value) for kind, (_, value) in known.items()),
        tuple(notes),
    )


def _gpu_of(db: NsysDatabase, pid: int, device: int, alone: bool) -> int | None:
    if db.has(DEVICES, "gpuId", "cudaId", "pid"):
        for (gpu,) in db.rows(f"SELECT gpuId FROM {DEVICES} WHERE pid IS ? AND cudaId IS ? LIMIT 1", (pid, device)):
            if isinstance(gpu, int):
                return gpu
    return device if alone and device >= 0 else None


def _kinds(db: NsysDatabase, gpu: int) -> dict[tuple[int, int], str]:
    """Type and metric → what of ours it is."""
    found: dict[tuple[int, int], str] = {}
    for kind, metric, name in db.rows(f"SELECT DISTINCT typeId, metricId, metricName FROM {NAMES} LIMIT {MAX_NAMES}"):
        if not (isinstance(kind, int) and isinstance(metric, int) and isinstance(name, str)) or kind & 0xFF != gpu:
            continue
        text = name.lower()
        ours = next((k for k, pattern in _KINDS if pattern.match(text)), "")
        if ours and (ours == _CLOCK or _PERCENT.search(text)):
            found[kind, metric] = ours
    return found


def _series(db: NsysDatabase, gpu: int, metrics: list[tuple[int, int]]) -> tuple[Floats, Floats, bool]:
    """Times (µs) ascending and values; of several metrics (a link's user and protocol data) the sum at each moment; and whether
    there were more.
    """
    at, value = array("q"), array("d")
    for kind, metric in metrics:
        rows = db.rows(f"SELECT timestamp, value FROM {METRICS} WHERE typeId IS ? AND metricId IS ?", (kind, metric))
        for time, reading in rows:
            if len(at) >= MAX_SAMPLES:
                break
            if isinstance(time, int) and isinstance(reading, int | float) and 0 <= reading < 1e15:
                at.append(time)
                value.append(reading)
    if not at:
        return np.empty(0), np.empty(0), False
    times, place = np.unique(np.frombuffer(at, np.int64), return_inverse=True)
    sums: Floats = np.asarray(np.bincount(place, np.frombuffer(value, np.float64), times.size), np.float64)
    if len(metrics) == 1:
        sums = sums / np.bincount(place)  # a moment twice is one
    return times / 1e3, sums, len(at) >= MAX_SAMPLES


def _top_clock_hz(db: NsysDatabase, gpu: int) -> float:
    if not db.has(GPUS, "id", "clockRate"):
        return 0.0
    for (rate,) in db.rows(f"SELECT clockRate FROM {GPUS} WHERE id IS ? LIMIT 1", (gpu,)):
        if isinstance(rate, int | float) and 0 < rate < 1e15:
            return float(rate) if rate > 1e7 else float(rate) * 1e3  # Hz, in some versions kHz
    return 0.0


def _samples(known: dict[str, tuple[Floats, Floats]], top: float) -> list[Samples]:
    found = []
    if _CLOCK in known and top > 0:
        at, value = known[_CLOCK]
        found.append(Samples(_CLOCK, at, np.minimum(value / top, 1.0)))
    links = [known[kind] for kind in ("nvlink_rx", "nvlink_tx") if kind in known]
    if links:
        at = np.unique(np.concatenate([t for t, _ in links]))
        busiest = np.zeros(at.size)
        for times, value in links:
            place = np.searchsorted(at, times)
            busiest[place] = np.maximum(busiest[place], value)
        found.append(Samples("nvlink", at, np.minimum(busiest / 100, 1.0)))
    return found


def _metric(kind: str, value: Floats) -> Metric:
    scale, unit, name = (1e-6, "MHz", kind) if kind == _CLOCK else (1e-2, "share", f"{kind}_share")
    mean, low, high = (float(f) * scale for f in (value.mean(), value.min(), value.max()))
    return Metric(name=name, unit=unit, mean=round(mean, 4), min=round(low, 4), max=round(high, 4))
