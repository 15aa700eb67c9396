"""PCIe links of accelerators from sysfs: what remains where no vendor's library is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eroica.producers.agent.amd import pcie_generation
from eroica.producers.agent.readings import Absent, Reading
from eroica.producers.agent.sysfs import entries_of, number_of, text_of

CLASSES = ("0x0302", "0x0380", "0x1200")
"""3D controllers, other display controllers, processing accelerators (PCI class codes)."""
MAX_DEVICES = 64


class PciSource:
    """PCIe generation and width of each accelerator; ``device`` is its bus address."""

    def __init__(self, sys: Path = Path("/sys")) -> None:
        """Look for accelerators.

        :raises Absent: there is none.
        """
        devices = entries_of(sys / "bus/pci/devices")
        self._devices = [d for d in devices if text_of(d / "class").startswith(CLASSES)][:MAX_DEVICES]
        if not self._devices:
            raise Absent("there is no accelerator on the PCI bus")

    def read(self, pids: frozenset[int]) -> Iterator[Reading]:
        """See :class:`~eroica.producers.agent.readings.Source`."""
        del pids
        for device in self._devices:
            width, speed = number_of(device / "current_link_width"), number_of(device / "current_link_speed")
            if width:
                yield Reading("pcie_width", "lanes", width, device.name)
            if speed and pcie_generation(speed):
                yield Reading("pcie_gen", "generation", float(pcie_generation(speed)), device.name)
