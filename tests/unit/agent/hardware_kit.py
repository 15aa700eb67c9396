"""Hardware that is not here: answers in the form in which NVML, AMD SMI, sysfs and exporters give them, written by hand.

The figures are invented, the shapes are the libraries': pynvml's own error classes, AMD SMI's dictionaries with ``"N/A"``, the
kernel's files, an exporter's page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass
class Gpu:
    """One GPU as NVML tells of it; ``None`` is what it does not support."""

    clock: int | None = 1980
    reasons: int | None = 0
    temperature: int | None = 55
    power_mw: int | None = 350_000
    width: int | None = 16
    ecc: tuple[int, int] | None = (0, 0)
    links: int = 18
    links_up: int = 18
    link_errors: int = 0
    tx_kib: int = 0
    pids: tuple[int, ...] = ()
    lost: bool = False


@dataclass
class RecordedNvml:
    """Speaks as ``pynvml`` does. ``asked`` counts the calls by function and GPU."""

    gpus: list[Gpu]
    xids: list[int] = field(default_factory=list)
    """GPUs that an Xid waits for."""
    asked: dict[tuple[str, int], int] = field(default_factory=dict)
    NVMLError: Any = pynvml.NVMLError

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def _told(self, what: str, handle: int, value: Any) -> Any:
        self.asked[what, handle] = self.asked.get((what, handle), 0) + 1
        if self.gpus[handle].lost:
            raise pynvml.NVMLError_GpuIsLost()
        if value is None:
            raise pynvml.NVMLError_NotSupported()
        return value

    def nvmlDeviceGetClockInfo(self, handle: int, _kind: int) -> Any:
        return self._told("clock", handle, self.gpus[handle].clock)

    def nvmlDeviceGetMaxClockInfo(self, handle: int, _kind: int) -> Any:
        return self._told("max", handle, 1980)

    def nvmlDeviceGetTemperature(self, handle: int, _sensor: int) -> Any:
        return self._told("temperature", handle, self.gpus[handle].temperature)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._told("power", handle, self.gpus[handle].power_mw)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> Any:
        return self._told("limit", handle, 700_000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._told("busy", handle, SimpleNamespace(gpu=97, memory=50))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> Any:
        return self._told("reasons", handle, self.gpus[handle].reasons)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> Any:
        return self._told("generation", handle, 5)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> Any:
        return self._told("width", handle, self.gpus[handle].width)

    def nvmlDeviceGetPcieThroughput(self, handle: int, _direction: int) -> Any:
        return self._told("throughput", handle, 2_000_000)

    def nvmlDeviceGetPcieReplayCounter(self, handle: int) -> Any:
        return self._told("replays", handle, 3)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, _counter: int) -> Any:
        ecc = self.gpus[handle].ecc
        return self._told("ecc", handle, None if ecc is None else ecc[kind])

    def nvmlDeviceGetRemappedRows(self, handle: int) -> Any:
        return self._told("rows", handle, (2, 0, False, False))

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> Any:
        value = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=self.gpus[handle].tx_kib))
        return self._told(f"field {fields[0]}", handle, [value])

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> Any:
        gpu = self.gpus[handle]
        return self._told("link", handle, int(link < gpu.links_up) if link < gpu.links else None)

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, _link: int, _counter: int) -> Any:
        return self._told("errors", handle, self.gpus[handle].link_errors)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return self._told("processes", handle, [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in self.gpus[handle].pids])

    def nvmlEventSetCreate(self) -> Any:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, _kinds: int, _events: Any) -> Any:
        return self._told("register", handle, 0)

    def nvmlEventSetWait_v2(self, _events: Any, _timeout_ms: int) -> Any:
        if not self.xids:
            raise pynvml.NVMLError_Timeout()
        return SimpleNamespace(device=self.xids.pop(0), eventType=8, eventData=79)


class RecordedAmd:
    """Speaks as ``amdsmi`` does on a host with two GPUs, the second of which is held down."""

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_gpu_metrics_info(self, handle: int) -> dict[str, Any]:
        return {
            "current_gfxclk": "N/A", "current_gfxclks": [2100 - 900 * handle, 2100, "N/A"],
            "temperature_hotspot": 60 + 30 * handle,
            "current_socket_power": 0xFFFF, "average_socket_power": 600, "average_gfx_activity": 98,
            "throttle_status": "N/A", "indep_throttle_status": 64 * handle, "pcie_link_width": 16, "pcie_link_speed": 320,
        }  # fmt: skip

    def amdsmi_get_gpu_process_list(self, handle: int) -> list[dict[str, Any]]:
        return [{"pid": 100 + handle, "name": "python"}, {"pid": 900, "name": "left over"}]

    def amdsmi_get_power_cap_info(self, _handle: int) -> dict[str, Any]:
        return {"power_cap": 750_000_000}

    def amdsmi_get_gpu_total_ecc_count(self, handle: int) -> dict[str, Any]:
        if handle == 0:
            raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")
        return {"correctable_count": 4, "uncorrectable_count": 0}


def write_sysfs(root: Path, files: dict[str, object]) -> Path:
    """A tree of small files as the kernel shows them."""
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


def rdma(
    device: str, port: int = 1, rate: str = "400 Gb/sec (4X NDR)", state: str = "4: ACTIVE", **counters: int
) -> dict[str, object]:
    """The files of an RDMA port (mlx5's names)."""
    place = f"class/infiniband/{device}/ports/{port}"
    hardware = ("roce_adp_retrans", "local_ack_timeout_err", "np_ecn_marked_roce_packets", "rp_cnp_handled", "out_of_sequence")
    files: dict[str, object] = {f"{place}/rate": rate, f"{place}/state": state}
    for name in ("port_xmit_data", "port_rcv_data", "symbol_error", "link_downed", "port_xmit_wait"):
        files[f"{place}/counters/{name}"] = counters.get(name, 0)
    for name in hardware:
        files[f"{place}/hw_counters/{name}"] = counters.get(name, 0)
    files[f"class/infiniband/{device}/device/current_link_width"] = counters.get("pcie", 16)
    files[f"class/infiniband/{device}/device/current_link_speed"] = "32.0 GT/s PCIe"
    return files


DCGM_PAGE = """# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="n1"} 1980
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="a \\"quoted\\" name, with }",Hostname="n1"} 1200
DCGM_FI_DEV_POWER_VIOLATION{gpu="1"} 5e+06
DCGM_FI_DEV_XID_ERRORS{gpu="1",err_code="79"} 0
DCGM_FI_PROF_NVLINK_TX_BYTES{gpu="0"} 6.0e+10 1700000000000
DCGM_FI_DEV_GPU_TEMP{gpu="0"} NaN
DCGM_FI_DEV_GPU_TEMP{gpu="1"} 88
something_else{a="b"} 1
not a sample at all
DCGM_FI_DEV_GPU_TEMP{gpu="1"
"""
NODE_PAGE = """node_cpu_seconds_total{cpu="0",mode="steal"} 10.5
node_cpu_seconds_total{cpu="1",mode="steal"} 2.5
node_cpu_seconds_total{cpu="0",mode="idle"} 99999
node_pressure_memory_waiting_seconds_total 3.25
node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 5e+10
node_network_receive_errs_total{device="eth0"} 7
"""
