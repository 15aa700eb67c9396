"""What a host's hardware did while one of its ranks was profiled: all sources of the host, brought down to that rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from eroica.producers.agent.amd import AmdSource
from eroica.producers.agent.cgroups import CgroupSource
from eroica.producers.agent.exporters import DCGM, NODE, ExporterSource
from eroica.producers.agent.nics import NicSource
from eroica.producers.agent.nvml import NvmlSource
from eroica.producers.agent.pci import PciSource
from eroica.producers.agent.readings import Moments, Series
from eroica.producers.agent.sampler import Sampled, SampledHost, SampledSource, wait_for
from eroica.schemas.settings import AgentSettings
from eroica.schemas.summaries import Identity, Metric

MAX_METRICS = 160
"""Of one summary."""
MAX_ODD_DEVICES = 8
"""Devices of a kind that are told apart, beside the figure for all of them."""
WORST_IS_LOW = frozenset({"nic_link", "nic_width", "nic_pcie_width", "nic_pcie_speed", "pcie_width", "pcie_gen"})
"""Of several devices the lowest stands for the host."""
CLOCK, CLOCK_MAX = "sm_clock", "sm_clock_max"
WAIT_S = 0.5
"""For the sample after the window, in a thread that may wait."""


@dataclass(frozen=True, slots=True)
class Window:
    """A rank's figures over its profile."""

    metrics: tuple[Metric, ...] = ()
    series: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()


class Hardware:
    """All sources of the host. ``want`` and ``at_once`` never block; ``window`` may wait for :data:`WAIT_S`."""

    def __init__(self, sources: Sequence[Sampled], gpus: Sequence[SampledSource]) -> None:
        self._sources, self._gpus = list(sources), list(gpus)

    @classmethod
    def of(cls, settings: AgentSettings, now_us: Callable[[], int] = lambda: time.time_ns() // 1_000) -> Hardware:
        """The sources that the settings ask for; each finds out for itself, when it is first wanted, whether the host has it."""
        interval_s = settings.sample_interval_ms / 1e3

        def source(name: str, make: Callable[[], object]) -> SampledSource:
            return SampledSource(name, make, interval_s, now_us)  # type: ignore[arg-type]

        if settings.dcgm_url:
            gpus = [source("dcgm exporter", lambda: ExporterSource(settings.dcgm_url, DCGM))]
        else:
            gpus = [source("NVIDIA GPUs", NvmlSource), source("AMD GPUs", AmdSource)]
        others: list[Sampled] = [SampledHost(interval_s, now_us), source("control groups", CgroupSource)]
        others += [source("network devices", NicSource), source("PCIe", PciSource)]
        if settings.node_exporter_url:
            others.append(source("node exporter", lambda: ExporterSource(settings.node_exporter_url, NODE)))
        return cls([*others, *gpus], gpus)

    def want(self, pids: Iterable[int]) -> None:
        """Keep sampling for the next seconds."""
        wanted = frozenset(pids)
        for one in self._sources:
            one.want(wanted)

    def at_once(self) -> None:
        """A window has just ended: the sample that closes it is due now."""
        for one in self._sources:
            one.at_once()

    def window(self, who: Identity, start_us: int, end_us: int) -> Window:
        """The figures of *who* over a window of its host's clock."""
        wait_for(self._sources, end_us, WAIT_S)
        metrics: list[Metric] = []
        series: list[Series] = []
        notes: list[str] = []
        vendor = False
        for one in self._sources:
            found = one.metrics(start_us, end_us)
            if one in self._gpus and isinstance(one, SampledSource):
                mine, note = _gpus_of(who, one, found)
                if found and note:
                    notes.append(note)
                vendor = vendor or bool(found)
                metrics += [m for m in _of_gpus(found, mine) if m.name != CLOCK_MAX]
                series += _clock(one.moments, mine, start_us, end_us)
            else:
                metrics += _of_host(found)
        notes += [
            f"{one.failures} readings of {one.name} have failed since the agent began" for one in self._sources if one.failures
        ]
        if vendor:  # the vendor's library tells the rank's own link, sysfs those of all accelerators
            metrics = _last_of_each(metrics)
        if len(metrics) > MAX_METRICS:
            notes.append(f"{len(metrics) - MAX_METRICS} hardware figures were left out")
        return Window(tuple(metrics[:MAX_METRICS]), tuple(series), tuple(notes))

    def close(self) -> None:
        """End the threads."""
        for one in self._sources:
            one.close()


def _gpus_of(who: Identity, source: SampledSource, found: Sequence[Metric]) -> tuple[frozenset[str], str]:
    """The GPUs that a rank uses: those its processes are seen on, else the one of its local rank."""
    owned = frozenset(f"gpu{index}" for index, there in source.owners.items() if who.pid in there)
    if owned:
        return owned, ""
    known = {m.device for m in found if m.device}
    if who.local_rank >= 0 and f"gpu{who.local_rank}" in known:
        return frozenset({f"gpu{who.local_rank}"}), f"its GPU is taken to be number {who.local_rank}, its local rank"
    return frozenset(known), "its GPU is not known: figures of all GPUs of the host"


def _of_gpus(found: Sequence[Metric], mine: frozenset[str]) -> list[Metric]:
    """The rank's own; a single GPU goes without its number, so that ranks can be compared."""
    kept = [m for m in found if m.device in mine or not m.device]
    return [msgspec.structs.replace(m, device="") for m in kept] if len(mine) == 1 else kept


def _of_host(found: Sequence[Metric]) -> list[Metric]:
    """One figure for all devices of a kind (of levels the worst, of counters the sum), and the devices that stand out."""
    out: list[Metric] = []
    by_name: dict[str, list[Metric]] = {}
    for metric in found:
        by_name.setdefault(metric.name, []).append(metric)
    for name, several in by_name.items():
        if len(several) == 1:
            out.append(msgspec.structs.replace(several[0], device=""))
            continue
        level = name in WORST_IS_LOW or several[0].unit not in ("1/s", "GB/s", "count")
        means = [m.mean for m in several]
        if level:
            worst = (min if name in WORST_IS_LOW else max)(several, key=lambda m: m.mean)
            out.append(msgspec.structs.replace(worst, device=""))
        else:
            out.append(
                Metric(
                    name=name,
                    unit=several[0].unit,
                    mean=sum(means),
                    min=sum(m.min or 0.0 for m in several),
                    max=sum(m.max or 0.0 for m in several),
                )
            )
        usual = median(means)
        odd = [m for m in several if abs(m.mean - usual) > 0.25 * max(abs(usual), abs(m.mean)) and m.mean != usual]
        out += sorted(odd, key=lambda m: -abs(m.mean - usual))[:MAX_ODD_DEVICES]
    return out


def _clock(moments: Moments, mine: frozenset[str], start_us: int, end_us: int) -> list[Series]:
    """The SM clock of the rank's GPUs over the window, as share of the highest that the GPU can run at."""
    at: list[int] = []
    value: list[float] = []
    for one in moments.around(start_us, end_us):
        shares = [
            one.values[CLOCK, gpu].value / one.values[CLOCK_MAX, gpu].value
            for gpu in mine
            if (CLOCK, gpu) in one.values and (CLOCK_MAX, gpu) in one.values and one.values[CLOCK_MAX, gpu].value > 0
        ]
        if shares:
            at.append(one.at_us)
            value.append(round(min(1.0, sum(shares) / len(shares)), 4))
    return [Series(resource=CLOCK, at_us=at, value=value)] if len(value) > 1 else []


def _last_of_each(metrics: list[Metric]) -> list[Metric]:
    """Where two sources tell one figure, the later one's stands."""
    return list({(m.name, m.device): m for m in metrics}.values())
