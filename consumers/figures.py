"""Figures and names of measurements as people read them: units that fit, three digits, words in place of identifiers. Pure."""

from __future__ import annotations

import re

from eroica.consumers.text import one_line
from eroica.schemas.wording import fitting_time, say_number, say_share, say_time

__all__ = ["say_metric", "say_score", "say_times", "say_value"]

_NAMES = {
    "sm_clock": "SM clock",
    "sm_throttle": "share of time throttled",
    "throttle_thermal": "share of time throttled for heat",
    "throttle_power": "share of time throttled for power",
    "gpu_temperature": "device temperature",
    "gpu_power_limit": "device power limit",
    "gpu_foreign_processes": "other jobs' processes on the device",
    "gpu_xid_errors": "driver errors (Xid)",
    "ecc_corrected": "memory errors, corrected",
    "ecc_uncorrected": "memory errors, uncorrected",
    "remapped_pending": "memory rows to be remapped",
    "nvlink_active": "active NVLinks",
    "pcie_gen": "PCIe generation",
    "pcie_width": "PCIe lanes",
    "pcie_replays": "PCIe replays",
    "nic_link": "rate of the network link",
    "nic_retransmits": "network packets sent again",
    "cpu_busy": "CPUs busy",
    "cpu_foreign": "CPUs busy with other processes",
    "cpu_pressure": "time tasks wait for a CPU",
    "cpu_steal": "CPU time taken by the hypervisor",
    "io_pressure": "time tasks wait for a disk",
    "mem_pressure": "time tasks wait for memory",
    "mem_available": "memory available",
}
"""Readings that signatures ask for."""
_WORDS = {
    "gpu": "device",
    "nic": "network",
    "cpu": "CPU",
    "pcie": "PCIe",
    "ecc": "ECC",
    "sm": "SM",
    "hbm": "HBM",
    "mem": "memory",
}
_WORDS |= {"tx": "sent", "rx": "received", "us": "(µs)", "ms": "(ms)", "xid": "Xid", "nvlink": "NVLink"}
_IDENTIFIER = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_MILLISECONDS = re.compile(r"(?<![\w.,])(\d+(?:,\d{3})*(?:\.\d+)?) ms\b")
_UNITS = {"C": "°C", "count": ""}
MAX_UNIT = 12


def say_metric(name: str) -> str:
    """The name of a measurement in words; one that is no identifier is left as it is.

    >>> say_metric("sm_clock"), say_metric("dev0:nic_tx_wait"), say_metric("own time per step")
    ('SM clock', 'dev0: network sent wait', 'own time per step')
    """
    device, colon, own = name.rpartition(":")
    known = _NAMES.get(own)
    if known is None and not _IDENTIFIER.fullmatch(own):
        return name
    words = known or " ".join(_WORDS.get(word, word) for word in own.split("_"))
    return f"{device}{colon}{' ' if colon else ''}{words}"


def say_value(value: float, expected: float, unit: str) -> tuple[str, str]:
    """A measured value with its unit, and the expected one in the same unit.

    >>> say_value(0.0123, 0.004, "ms"), say_value(1762.4, 1982.1, "MHz"), say_value(0.97, 0.4, "share")
    (('12.3 µs', '4'), ('1,762 MHz', '1,982'), ('97%', '40%'))
    """
    if unit == "share":
        return say_share(value), say_share(expected)
    if unit == "ms":
        factor, unit = fitting_time(max(abs(value), abs(expected)))
        value, expected = value * factor, expected * factor
    shown = _UNITS.get(unit, "" if unit == "1" else one_line(unit, MAX_UNIT))
    return f"{say_number(value)} {shown}".rstrip(), say_number(expected)


def say_score(score: float, kind: str) -> str:
    """How far out, and in what; nothing where it is the value once more.

    >>> say_score(5.234, "z"), say_score(2.571, "ratio"), say_score(0.823, "share"), say_score(0.9, "correlation")
    ('z 5.23', '2.57×', '82%', 'r 0.9')
    >>> say_score(7.0, "value"), say_score(7.0, "")
    ('', '7')
    """
    if kind == "value":
        return ""
    if kind == "share":
        return say_share(score)
    return {"z": "z {}", "ratio": "{}×", "correlation": "r {}"}.get(kind, "{}").format(say_number(score))


def say_times(text: str) -> str:
    """*text* with its times in ms written in the unit that fits, three digits.

    >>> say_times("rank 3 takes 0.0123 ms, the others 2345.678 ms")
    'rank 3 takes 12.3 µs, the others 2.35 s'
    """
    return _MILLISECONDS.sub(lambda found: say_time(float(found[1].replace(",", ""))), text)
