"""Figures that others read already: NVIDIA's DCGM exporter and the node exporter, in Prometheus' text format."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import IO, NamedTuple
from urllib.parse import urlsplit

from eroica.producers.agent.readings import Absent, Kind, Reading

TIMEOUT_S = 2.0
WHOLE_S = 5.0
"""For a page as a whole."""
MAX_BYTES = 8 * 2**20
MAX_LINES = 100_000
_LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+([^\s]+)(?:\s+-?\d+)?\s*$')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Rule(NamedTuple):
    """What a metric of an exporter is called here."""

    name: str
    unit: str
    kind: Kind = "gauge"
    scale: float = 1.0
    where: tuple[str, str] = ("", "")
    """Only lines with this label and value."""


DCGM: Mapping[str, tuple[Rule, ...]] = {
    "DCGM_FI_DEV_SM_CLOCK": (Rule("sm_clock", "MHz"),),
    "DCGM_FI_DEV_MAX_SM_CLOCK": (Rule("sm_clock_max", "MHz"),),
    "DCGM_FI_DEV_GPU_TEMP": (Rule("gpu_temperature", "C"),),
    "DCGM_FI_DEV_POWER_USAGE": (Rule("gpu_power", "W"),),
    "DCGM_FI_DEV_GPU_UTIL": (Rule("gpu_busy", "share", scale=0.01),),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (Rule("pcie_replays", "1/s", "counter"),),
    "DCGM_FI_DEV_PCIE_LINK_GEN": (Rule("pcie_gen", "generation"),),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": (Rule("pcie_width", "lanes"),),
    "DCGM_FI_DEV_POWER_VIOLATION": (Rule("throttle_power", "share", "counter", 1e-6),),
    "DCGM_FI_DEV_THERMAL_VIOLATION": (Rule("throttle_thermal", "share", "counter", 1e-6),),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (Rule("ecc_corrected", "count", "events"),),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (Rule("ecc_uncorrected", "count", "events"),),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": (Rule("remapped_rows", "count"),),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": (Rule("remapped_pending", "count"),),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (Rule("nvlink_tx", "GB/s", scale=1e-9),),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (Rule("nvlink_rx", "GB/s", scale=1e-9),),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (Rule("pcie_tx", "GB/s", scale=1e-9),),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (Rule("pcie_rx", "GB/s", scale=1e-9),),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (Rule("nvlink_crc_errors", "count", "events"),),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": (Rule("nvlink_replay_errors", "count", "events"),),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (Rule("nvlink_recovery_errors", "count", "events"),),
}
"""By DCGM's field names. The violations are running totals in µs, the profiling fields are rates in bytes/s."""
XID = "DCGM_FI_DEV_XID_ERRORS"
"""Holds the last Xid: another value than before is an event."""
NODE: Mapping[str, tuple[Rule, ...]] = {
    "node_pressure_cpu_waiting_seconds_total": (Rule("cpu_pressure", "share", "counter"),),
    "node_pressure_memory_waiting_seconds_total": (Rule("mem_pressure", "share", "counter"),),
    "node_pressure_io_waiting_seconds_total": (Rule("io_pressure", "share", "counter"),),
    "node_cpu_seconds_total": (Rule("cpu_steal_cores", "cores", "counter", where=("mode", "steal")),),
    "node_infiniband_port_data_transmitted_bytes_total": (Rule("nic_tx", "GB/s", "counter", 1e-9),),
    "node_infiniband_port_data_received_bytes_total": (Rule("nic_rx", "GB/s", "counter", 1e-9),),
    "node_infiniband_rate_bytes_per_second": (Rule("nic_link", "Gb/s", scale=8e-9),),
    "node_infiniband_link_downed_total": (Rule("nic_link_downed", "1/s", "counter"),),
    "node_infiniband_link_error_recovery_total": (Rule("nic_link_recovery", "1/s", "counter"),),
    "node_infiniband_symbol_error_total": (Rule("nic_symbol_errors", "1/s", "counter"),),
    "node_infiniband_port_transmit_wait_total": (Rule("nic_tx_wait", "1/s", "counter"),),
    "node_infiniband_port_discards_transmitted_total": (Rule("nic_tx_discards", "1/s", "counter"),),
    "node_network_receive_errs_total": (Rule("nic_rx_errors", "1/s", "counter"),),
    "node_network_transmit_errs_total": (Rule("nic_tx_errors", "1/s", "counter"),),
    "node_network_receive_drop_total": (Rule("nic_rx_drops", "1/s", "counter"),),
    "node_netstat_Tcp_RetransSegs": (Rule("nic_retransmits_tcp", "1/s", "counter"),),
}


class ExporterSource:
    """One exporter, read over HTTP from a fixed address; no redirect is followed, no proxy used."""

    def __init__(self, url: str, rules: Mapping[str, tuple[Rule, ...]], fetch: Callable[[str], str] | None = None) -> None:
        """Ask once, so that a wrong address is said.

        :param fetch: gives the page; over HTTP by default.
        :raises Absent: nobody answers there, or with something else.
        """
        self._url, self._rules, self._fetch = url, rules, fetch or fetch_page
        self._xids: dict[str, tuple[float, int]] = {}
        try:
            page = self._fetch(url)
        except (OSError, ValueError) as error:
            raise Absent(f"{url} cannot be read ({error})") from error
        if not any(True for _ in self._figures(page)):
            raise Absent(f"{url} tells none of the figures that are known here")

    def read(self, pids: frozenset[int]) -> Iterator[Reading]:
        """See :class:`~eroica.producers.agent.readings.Source`; one that does not answer now may again.

        :raises OSError, ValueError: no page could be read.
        """
        del pids
        yield from self._figures(self._fetch(self._url))

    def _figures(self, page: str) -> Iterator[Reading]:
        added: dict[tuple[str, str], Reading] = {}
        for name, labels, value in parse(page):
            device = device_of(labels)
            if name == XID and self._rules is DCGM:
                yield Reading("gpu_xid_errors", "count", self._xid(device, value), device, "events")
            for rule in self._rules.get(name, ()):
                label, wanted = rule.where
                if label and labels.get(label) != wanted:
                    continue
                key = (rule.name, "" if label else device)
                before = added.get(key)
                total = value * rule.scale + (before.value if before is not None and label else 0.0)
                added[key] = Reading(rule.name, rule.unit, total, key[1], rule.kind)
        yield from added.values()

    def _xid(self, device: str, value: float) -> float:
        last, count = self._xids.get(device, (value, 0))
        count += int(value != last and value > 0)
        self._xids[device] = (value, count)
        return float(count)


def parse(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample; what is no sample is passed by."""
    for line in page.split("\n", MAX_LINES)[:MAX_LINES]:
        if not line or line[0] == "#" or len(line) > 4_096:
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match.group(3))
        except ValueError:
            continue
        yield match.group(1), dict(_LABEL.findall(match.group(2) or "")), value


def device_of(labels: Mapping[str, str]) -> str:
    """The device that a sample is of, as the other sources name it."""
    if labels.get("gpu", "").isdigit():
        return f"gpu{int(labels['gpu'][:6])}"
    device = labels.get("device", "")
    port = labels.get("port", "")
    return f"{device}/{port}" if device and port not in ("", "1") else device


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def fetch_page(url: str) -> str:
    """The page at *url*.

    :raises OSError: nobody answers in time, or answers with an error.
    :raises ValueError: no HTTP address, or a page beyond :data:`MAX_BYTES`.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http address")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})
    answer: IO[bytes]
    raw = bytearray()
    deadline = time.monotonic() + WHOLE_S
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            while chunk := answer.read1(2**16):  # type: ignore[attr-defined]  # an HTTPResponse has it
                raw += chunk
                if len(raw) > MAX_BYTES:
                    raise ValueError(f"the page is larger than {MAX_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the page takes longer than {WHOLE_S:.0f} s")
    except HTTPException as error:
        raise OSError(f"the answer is no HTTP ({type(error).__name__})") from error
    return raw.decode("utf-8", "replace")
