"""AMD GPUs through AMD SMI's Python binding, which comes with ROCm: clocks, throttling, temperature, power, PCIe, errors."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from eroica.producers.agent.readings import Absent, Reading

MAX_GPUS = 64
_GTS_GEN = ((2.5, 1), (5.0, 2), (8.0, 3), (16.0, 4), (32.0, 5), (64.0, 6))


def pcie_generation(gt_per_s: float) -> int:
    """Generation of a PCIe link by its rate; 0 for a rate that is none's."""
    return next((generation for rate, generation in _GTS_GEN if abs(rate - gt_per_s) < 0.3), 0)


class AmdSource:
    """All AMD GPUs of the host; ``device`` is ``gpuN`` in the order of the library."""

    def __init__(self, library: Any = None) -> None:
        """Open AMD SMI.

        :param library: what speaks as ``amdsmi`` does.
        :raises Absent: no binding, no driver, no GPU.
        """
        try:
            self._smi = library or importlib.import_module("amdsmi")
        except (ImportError, OSError, KeyError) as error:  # the binding loads its library when it is imported
            raise Absent("amdsmi is not installed (it comes with ROCm)") from error
        try:
            self._smi.amdsmi_init()
            self._handles = list(self._smi.amdsmi_get_processor_handles())[:MAX_GPUS]
        except Exception as error:  # the binding's errors share no base over its versions
            raise Absent(f"AMD SMI cannot be used ({type(error).__name__})") from error
        if not self._handles:
            raise Absent("AMD SMI finds no GPU")
        self.owners: dict[int, frozenset[int]] = {}
        """GPU → the processes on it, as last seen."""

    def read(self, pids: frozenset[int]) -> Iterator[Reading]:
        """See :class:`~eroica.producers.agent.readings.Source`."""
        owners: dict[int, frozenset[int]] = {}
        for index, handle in enumerate(self._handles):
            yield from self._gpu(f"gpu{index}", handle)
            running = self._ask("amdsmi_get_gpu_process_list", handle)
            if isinstance(running, list):
                found = (p.get("pid") if isinstance(p, dict) else None for p in running[:4_096])
                owners[index] = frozenset(pid for pid in found if isinstance(pid, int))
        self.owners = owners
        if any(there & pids for there in owners.values()):
            for index, there in owners.items():
                yield Reading("gpu_foreign_processes", "count", float(len(there - pids)), f"gpu{index}")

    def _gpu(self, device: str, handle: Any) -> Iterator[Reading]:
        told = self._ask("amdsmi_get_gpu_metrics_info", handle)
        table = told if isinstance(told, dict) else {}
        clock = _first(table, "current_gfxclks", "current_gfxclk", "average_gfxclk_frequency")
        power = _first(table, "current_socket_power", "average_socket_power")
        speed = _first(table, "pcie_link_speed")
        figures = (
            ("sm_clock", "MHz", clock),
            ("gpu_temperature", "C", _first(table, "temperature_hotspot", "temperature_edge")),
            ("gpu_power", "W", power),
            ("gpu_busy", "share", _scaled(_first(table, "average_gfx_activity"), 0.01)),
            ("sm_throttle", "share", _flag(_first(table, "throttle_status", "indep_throttle_status"))),
            ("pcie_width", "lanes", _first(table, "pcie_link_width")),
            ("pcie_gen", "generation", float(pcie_generation(speed / 10)) if speed else None),
        )
        yield from (Reading(name, unit, value, device) for name, unit, value in figures if value is not None)
        limit = self._ask("amdsmi_get_power_cap_info", handle)
        if isinstance(limit, dict) and (cap := _number(limit.get("power_cap"))) is not None:
            yield Reading("gpu_power_limit", "W", cap / 1e6 if cap > 1e5 else cap, device)
        errors = self._ask("amdsmi_get_gpu_total_ecc_count", handle)
        if isinstance(errors, dict):
            for name, key in (("ecc_corrected", "correctable_count"), ("ecc_uncorrected", "uncorrectable_count")):
                if (count := _number(errors.get(key))) is not None:
                    yield Reading(name, "count", count, device, "events")

    def _ask(self, function: str, handle: Any) -> Any:
        try:
            return getattr(self._smi, function)(handle)
        except Exception:  # noqa: BLE001 - the binding's errors share no base over its versions; what it lacks is left out
            return None


def _first(table: dict[str, Any], *names: str) -> float | None:
    """The first of these figures that is told; of several engines the slowest that runs."""
    for name in names:
        value = table.get(name)
        if isinstance(value, list):
            known = [v for v in map(_number, value) if v]
            value = min(known) if known else None
        if (number := _number(value)) is not None:
            return number
    return None


def _number(value: object) -> float | None:
    """A figure; the library says what it does not know as ``"N/A"`` or as all bits set."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value in (0xFFFF, 0xFFFFFFFF, 2**64 - 1):
        return None
    return float(value)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _flag(value: float | None) -> float | None:
    return None if value is None else float(value != 0)
