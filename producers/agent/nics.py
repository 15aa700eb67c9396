"""Network devices from sysfs: RDMA ports and Ethernet interfaces, their links, traffic, errors, pauses (PFC) and congestion marks
(ECN). ``device`` is the device's name, with the port where a device has several.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from eroica.producers.agent.ethtool import Statistics
from eroica.producers.agent.readings import Absent, Reading
from eroica.producers.agent.sysfs import entries_of, number_of, text_of

MAX_DEVICES = 64
WORD_GB = 4 / 1e9
"""``port_xmit_data`` and ``port_rcv_data`` count words of four bytes (InfiniBand's PortCounters)."""
RDMA_TRAFFIC = {"port_xmit_data": "nic_tx", "port_rcv_data": "nic_rx"}
RDMA_COUNTERS: Mapping[str, str] = {
    "symbol_error": "nic_symbol_errors", "link_downed": "nic_link_downed", "link_error_recovery": "nic_link_recovery",
    "port_rcv_errors": "nic_rx_errors", "port_xmit_discards": "nic_tx_discards", "port_xmit_wait": "nic_tx_wait",
    "local_link_integrity_errors": "nic_integrity_errors", "out_of_sequence": "nic_out_of_sequence",
    "packet_seq_err": "nic_packet_seq_err", "local_ack_timeout_err": "nic_retransmits", "roce_adp_retrans": "nic_retransmits",
    "to_retransmits": "nic_retransmits", "rnr_nak_retry_err": "nic_rnr_nak", "np_cnp_sent": "nic_cnp_tx",
    "rp_cnp_handled": "nic_cnp_rx", "np_ecn_marked_roce_packets": "nic_ecn_marked", "tx_cnp": "nic_cnp_tx",
    "rx_cnp": "nic_cnp_rx", "rx_ecn_marked": "nic_ecn_marked", "rx_roce_discards": "nic_rx_discards",
    "tx_roce_discards": "nic_tx_discards",
}  # fmt: skip
"""Counters of the InfiniBand standard, and hardware counters of mlx5 and bnxt_re, by the names they get here."""
NET_COUNTERS: Mapping[str, str] = {
    "rx_errors": "nic_rx_errors", "tx_errors": "nic_tx_errors", "rx_crc_errors": "nic_crc_errors", "rx_dropped": "nic_rx_drops",
    "tx_dropped": "nic_tx_drops", "rx_missed_errors": "nic_rx_discards", "rx_fifo_errors": "nic_rx_discards",
}  # fmt: skip
DRIVER_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^(?:rx_prio\d_pause|pfc_pri\d_rx_.*|rx_pfc_ena_frames_pri\d|rx_priority_\d_xoff.*)$", "nic_rx_pfc_pause"),
        (r"^(?:tx_prio\d_pause|pfc_pri\d_tx_.*|tx_pfc_ena_frames_pri\d|tx_priority_\d_xoff.*)$", "nic_tx_pfc_pause"),
        (r"^(?:rx_pause_ctrl_phy|rx_global_pause|rx_pause_frames|rx_flow_control_xoff)$", "nic_rx_pause"),
        (r"^(?:tx_pause_ctrl_phy|tx_global_pause|tx_pause_frames|tx_flow_control_xoff)$", "nic_tx_pause"),
        (r"^(?:rx_out_of_buffer|rx_discards_phy|rx_total_discard_pkts|rx_discards)$", "nic_rx_discards"),
        (r"^(?:rx_crc_errors_phy|rx_symbol_err_phy)$", "nic_crc_errors"),
        (r"^(?:rx_ecn_mark\w*)$", "nic_ecn_marked"),
    )
)
"""Statistics of drivers (mlx5, bnxt_en, ice, ixgbe, i40e) by the names they get here; several of one name are added."""


class NicSource:
    """All physical network devices of the host."""

    def __init__(self, sys: Path = Path("/sys"), statistics: Callable[[str], Callable[[], dict[str, int]]] | None = None) -> None:
        """Look for devices.

        :param sys: where sysfs is mounted.
        :param statistics: a driver's statistics by interface; the kernel's by default.
        :raises Absent: there is no physical network device.
        """
        self._ports = [
            (_port_name(device, port), port)
            for device in entries_of(sys / "class/infiniband")
            for port in entries_of(device / "ports")
        ][:MAX_DEVICES]
        # Virtual interfaces (bridges, tunnels, containers' pairs) have no device behind them, and carry what others carry.
        self._nets = [net for net in entries_of(sys / "class/net") if (net / "device").exists()][:MAX_DEVICES]
        if not self._ports and not self._nets:
            raise Absent("there is no physical network device in sysfs")
        ask = statistics or (lambda name: Statistics(name).read)
        self._drivers = {net.name: ask(net.name) for net in self._nets}
        self._seen_up: set[str] = set()

    def read(self, pids: frozenset[int]) -> Iterator[Reading]:
        """See :class:`~eroica.producers.agent.readings.Source`."""
        del pids
        for name, port in self._ports:
            yield from self._rdma(name, port)
        if self._ports:
            active = sum(text_of(port / "state").endswith("ACTIVE") for _, port in self._ports)
            yield Reading("nic_active", "share", active / len(self._ports))
        for net in self._nets:
            yield from self._ethernet(net)

    def _rdma(self, name: str, port: Path) -> Iterator[Reading]:
        rate = number_of(port / "rate")
        if rate is not None:
            yield from self._link(name, rate if text_of(port / "state").endswith("ACTIVE") else 0.0)
        width = re.search(r"\((\d+)X", text_of(port / "rate"))
        if width is not None:
            yield Reading("nic_width", "lanes", float(width.group(1)), name)
        for file, told in RDMA_TRAFFIC.items():
            value = number_of(port / "counters" / file)
            if value is not None:
                yield Reading(told, "GB/s", value * WORD_GB, name, "counter")
        added: dict[str, float] = defaultdict(float)
        for folder in (port / "counters", port / "hw_counters"):
            for file, told in RDMA_COUNTERS.items():
                value = number_of(folder / file)
                if value is not None:
                    added[told] += value
        yield from (Reading(told, "1/s", value, name, "counter") for told, value in added.items())
        yield from _pcie(name, port.parent.parent / "device")

    def _ethernet(self, net: Path) -> Iterator[Reading]:
        speed = number_of(net / "speed")
        up = text_of(net / "operstate") == "up"
        if speed is not None and (speed > 0 or not up):  # -1: not told
            yield from self._link(net.name, speed / 1e3 if up else 0.0)
        for file, told in (("tx_bytes", "nic_tx"), ("rx_bytes", "nic_rx")):
            value = number_of(net / "statistics" / file)
            if value is not None:
                yield Reading(told, "GB/s", value / 1e9, net.name, "counter")
        added: dict[str, float] = defaultdict(float)
        for file, told in NET_COUNTERS.items():
            value = number_of(net / "statistics" / file)
            if value is not None:
                added[told] += value
        for statistic, count in self._drivers[net.name]().items():
            told = next((given for rule, given in DRIVER_RULES if rule.match(statistic)), "")
            if told:
                added[told] += count
        yield from (Reading(told, "1/s", value, net.name, "counter") for told, value in added.items())

    def _link(self, name: str, gbps: float) -> Iterator[Reading]:
        """A port that was never up since the agent began is unplugged, not broken: only the share of active ports tells of it."""
        if gbps > 0:
            self._seen_up.add(name)
        if name in self._seen_up:
            yield Reading("nic_link", "Gb/s", gbps, name)


def _port_name(device: Path, port: Path) -> str:
    return device.name if len(entries_of(device / "ports")) == 1 else f"{device.name}/{port.name}"


def _pcie(name: str, device: Path) -> Iterator[Reading]:
    width, speed = number_of(device / "current_link_width"), number_of(device / "current_link_speed")
    if width:
        yield Reading("nic_pcie_width", "lanes", width, name)
    if speed:
        yield Reading("nic_pcie_speed", "GT/s", speed, name)
