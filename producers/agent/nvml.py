"""NVIDIA GPUs through NVML: clocks and why they are held down, temperature, power, PCIe, NVLink, memory errors, who runs there.

The library comes with the driver, its binding (``nvidia-ml-py``) as an extra; without either the host has no such source. What a
GPU does not support is asked for once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from eroica.producers.agent.readings import Absent, Reading

MAX_GPUS = 64
MAX_EVENTS = 64
"""Xids taken at one moment."""
SLOW_EVERY = 4
"""Moments between two readings of what takes long or changes rarely."""
HELD_DOWN = 0x08 | 0x20 | 0x40 | 0x80
"""Clock event reasons that mean trouble: hardware slowdown, software and hardware thermal slowdown, power brake."""
THERMAL, POWER_CAP = 0x20 | 0x40, 0x04
NVLINK_TX, NVLINK_RX = 138, 139
"""``NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX`` and ``_RX``, KiB over all links."""
LINK_ERRORS = {"nvlink_replay_errors": 0, "nvlink_recovery_errors": 1, "nvlink_crc_errors": 2}
"""Name → ``NVML_NVLINK_ERROR_DL_*``."""
_SM, _GPU_TEMPERATURE, _TX, _RX, _XID = 1, 0, 0, 1, 8
_KIB_GB, _MAX_LINKS = 1_024 / 1e9, 36


class NvmlSource:
    """All NVIDIA GPUs of the host; ``device`` is ``gpuN`` by NVML's index."""

    def __init__(self, library: Any = None) -> None:
        """Open NVML.

        :param library: what speaks as ``pynvml`` does.
        :raises Absent: no binding, no driver, no GPU.
        """
        try:
            self._nvml = library or importlib.import_module("pynvml")
        except ImportError as error:
            raise Absent("nvidia-ml-py is not installed (install eroica with the extra 'gpu')") from error
        self._error: type[Exception] = self._nvml.NVMLError
        try:
            self._nvml.nvmlInit()
            count = min(int(self._nvml.nvmlDeviceGetCount()), MAX_GPUS)
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except (self._error, OSError) as error:
            raise Absent(f"NVML cannot be used ({error})") from error
        if not self._handles:
            raise Absent("NVML finds no GPU")
        self._unsupported: set[tuple[int, str]] = set()
        self._round = -1
        self._xids = [0] * len(self._handles)
        self._events = self._watch_xids()
        self.owners: dict[int, frozenset[int]] = {}
        """GPU → the processes on it, as last seen."""

    def read(self, pids: frozenset[int]) -> Iterator[Reading]:
        """See :class:`~eroica.producers.agent.readings.Source`."""
        self._round += 1
        self._take_xids()
        for index, handle in enumerate(self._handles):
            yield from self._gpu(index, handle)
        yield from self._strangers(pids)

    def _gpu(self, index: int, handle: Any) -> Iterator[Reading]:
        n, device = self._nvml, f"gpu{index}"

        def asked(name: str, unit: str, ask: Callable[[], float], scale: float = 1.0, kind: Any = "gauge") -> Iterator[Reading]:
            value = self._ask(index, name, ask)
            if value is not None:
                yield Reading(name, unit, float(value) * scale, device, kind)

        yield from asked("sm_clock", "MHz", lambda: n.nvmlDeviceGetClockInfo(handle, _SM))
        yield from asked("sm_clock_max", "MHz", lambda: n.nvmlDeviceGetMaxClockInfo(handle, _SM))
        yield from asked("gpu_temperature", "C", lambda: n.nvmlDeviceGetTemperature(handle, _GPU_TEMPERATURE))
        yield from asked("gpu_power", "W", lambda: n.nvmlDeviceGetPowerUsage(handle), 1e-3)
        yield from asked("gpu_power_limit", "W", lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle), 1e-3)
        yield from asked("gpu_busy", "share", lambda: n.nvmlDeviceGetUtilizationRates(handle).gpu, 1e-2)
        reasons = self._ask(index, "reasons", lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        if reasons is not None:
            for name, mask in (("sm_throttle", HELD_DOWN), ("throttle_thermal", THERMAL), ("throttle_power", POWER_CAP)):
                yield Reading(name, "share", float(bool(int(reasons) & mask)), device)
        yield from asked("pcie_gen", "generation", lambda: n.nvmlDeviceGetCurrPcieLinkGeneration(handle))
        yield from asked("pcie_width", "lanes", lambda: n.nvmlDeviceGetCurrPcieLinkWidth(handle))
        yield from asked("pcie_replays", "1/s", lambda: n.nvmlDeviceGetPcieReplayCounter(handle), kind="counter")
        yield Reading("gpu_xid_errors", "count", float(self._xids[index]), device, "events")
        for name, kind in (("ecc_corrected", 0), ("ecc_uncorrected", 1)):
            yield from asked(name, "count", lambda k=kind: n.nvmlDeviceGetTotalEccErrors(handle, k, 0), kind="events")  # type: ignore[misc]
        yield from self._nvlink(index, handle, device)
        if self._round % len(self._handles) == index:  # each takes 20 ms
            yield from asked("pcie_tx", "GB/s", lambda: n.nvmlDeviceGetPcieThroughput(handle, _TX), _KIB_GB)
            yield from asked("pcie_rx", "GB/s", lambda: n.nvmlDeviceGetPcieThroughput(handle, _RX), _KIB_GB)
        if self._round % SLOW_EVERY == 0:
            rows = self._ask(index, "remapped", lambda: n.nvmlDeviceGetRemappedRows(handle))
            if rows is not None:
                corrected, uncorrected, pending, failed = rows
                yield Reading("remapped_rows", "count", float(corrected) + float(uncorrected), device)
                yield Reading("remapped_pending", "count", float(bool(pending)) + float(bool(failed)), device)

    def _nvlink(self, index: int, handle: Any, device: str) -> Iterator[Reading]:
        n = self._nvml
        for name, field in (("nvlink_tx", NVLINK_TX), ("nvlink_rx", NVLINK_RX)):
            told = self._ask(index, name, lambda f=field: n.nvmlDeviceGetFieldValues(handle, [f])[0])  # type: ignore[misc]
            if told is not None and int(told.nvmlReturn) == 0:
                yield Reading(name, "GB/s", float(told.value.ullVal) * _KIB_GB, device, "counter")
        if self._round % SLOW_EVERY:
            return
        links = active = 0
        errors = dict.fromkeys(LINK_ERRORS, 0.0)
        for link in range(_MAX_LINKS):
            state = self._ask(index, f"link {link}", lambda i=link: n.nvmlDeviceGetNvLinkState(handle, i))  # type: ignore[misc]
            if state is None:
                continue
            links, active = links + 1, active + int(bool(state))
            for name, counter in LINK_ERRORS.items():
                what = f"{name} {link}"
                value = self._ask(index, what, lambda i=link, c=counter: n.nvmlDeviceGetNvLinkErrorCounter(handle, i, c))  # type: ignore[misc]
                errors[name] += float(value or 0)
        if links:
            yield Reading("nvlink_active", "share", active / links, device)
            yield from (Reading(name, "count", value, device, "events") for name, value in errors.items())

    def _strangers(self, pids: frozenset[int]) -> Iterator[Reading]:
        """Processes on each GPU that are not the job's. Where none of the job's is seen (another pid namespace) nothing is told:
        all would look foreign.
        """
        owners: dict[int, frozenset[int]] = {}
        for index, handle in enumerate(self._handles):
            running = self._ask(index, "processes", lambda h=handle: self._nvml.nvmlDeviceGetComputeRunningProcesses(h))  # type: ignore[misc]
            if running is not None:
                owners[index] = frozenset(int(p.pid) for p in list(running)[:4_096])
        self.owners = owners
        if any(there & pids for there in owners.values()):
            for index, there in owners.items():
                yield Reading("gpu_foreign_processes", "count", float(len(there - pids)), f"gpu{index}")

    def _ask(self, index: int, what: str, ask: Callable[[], Any]) -> Any:
        """The answer; ``None`` where the GPU has none, which ends the asking if it never will."""
        if (index, what) in self._unsupported:
            return None
        try:
            return ask()
        except self._error as error:
            if type(error).__name__ in ("NVMLError_NotSupported", "NVMLError_FunctionNotFound", "NVMLError_InvalidArgument"):
                self._unsupported.add((index, what))
        except (AttributeError, TypeError, ValueError, OverflowError):  # a binding or driver that lacks it or tells nonsense
            self._unsupported.add((index, what))
        return None

    def _watch_xids(self) -> Any:
        try:
            events = self._nvml.nvmlEventSetCreate()
        except (self._error, AttributeError):
            return None
        for index, handle in enumerate(self._handles):
            self._ask(index, "xid", lambda h=handle: self._nvml.nvmlDeviceRegisterEvents(h, _XID, events))  # type: ignore[misc]
        return events

    def _take_xids(self) -> None:
        for _ in range(MAX_EVENTS if self._events is not None else 0):
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                index = int(self._nvml.nvmlDeviceGetIndex(data.device))
            except (self._error, AttributeError):
                return
            if 0 <= index < len(self._xids):
                self._xids[index] += 1
