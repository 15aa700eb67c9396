"""A network driver's own statistics (what ``ethtool -S`` prints) by the kernel's ``SIOCETHTOOL``: pause frames by priority, ECN
marks, discards. Reading them needs no privilege.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

SIOCETHTOOL = 0x8946
ETHTOOL_GSTRINGS, ETHTOOL_GSTATS, ETHTOOL_GSSET_INFO = 0x1B, 0x1D, 0x37
ETH_SS_STATS = 1
NAME_BYTES, INTERFACE_BYTES = 32, 16
MAX_STATISTICS = 8_192
"""Some drivers tell several thousand; more is nonsense."""


class Statistics:
    """The statistics of one interface. The names are asked for once, the values each time."""

    def __init__(self, interface: str) -> None:
        self._interface = interface.encode()[: INTERFACE_BYTES - 1]
        self._names: list[str] | None = None

    def read(self) -> dict[str, int]:
        """Value by name; empty where the driver tells none."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                if self._names is None:
                    self._names = self._strings(control)
                if not self._names:
                    return {}
                count = len(self._names)
                raw = self._ask(control, struct.pack("=II", ETHTOOL_GSTATS, count) + bytes(8 * count))
                told = struct.unpack_from("=I", raw, 4)[0]
                if told != count:  # the driver was changed: other names belong to the values
                    self._names = None
                    return {}
                return dict(zip(self._names, struct.unpack_from(f"={count}Q", raw, 8), strict=True))
        except (OSError, struct.error):
            return {}

    def _strings(self, control: socket.socket) -> list[str]:
        info = self._ask(control, struct.pack("=IIQI", ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0))
        mask, count = struct.unpack_from("=QI", info, 8)
        if not mask or not 0 < count <= MAX_STATISTICS:
            return []
        raw = self._ask(control, struct.pack("=III", ETHTOOL_GSTRINGS, ETH_SS_STATS, count) + bytes(NAME_BYTES * count))
        names = [raw[12 + NAME_BYTES * i : 12 + NAME_BYTES * (i + 1)] for i in range(count)]
        return [name.split(b"\0")[0].decode("ascii", "replace") for name in names]

    def _ask(self, control: socket.socket, request: bytes) -> bytes:
        """The kernel answers in the place of the request."""
        buffer = array.array("B", request)
        address, _ = buffer.buffer_info()
        fcntl.ioctl(control.fileno(), SIOCETHTOOL, struct.pack(f"={INTERFACE_BYTES}sQ16x", self._interface, address))
        return buffer.tobytes()
