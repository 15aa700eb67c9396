"""Ports of the servers that we start: chosen where nobody else's connections land."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import psutil

from eroica.schemas.errors import UsageError

LOOPBACK = "127.0.0.1"
_LOWEST = 10_240
_FEW = 2_000
_TRIES = 200
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A loopback port that nobody listens on now; whoever starts a server there must still check that it got it."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of *count* neighbouring loopback ports that are free now.

    They lie below those that the system gives to outgoing connections: a server that is stopped and started again would else find
    its port taken by any client's connection, or by a client that reached itself there. Where that leaves no room, or cannot be
    read, they are what the system offers.

    :raises UsageError: there are none.
    """
    ceiling = _first_ephemeral()
    roomy = ceiling - _LOWEST >= _FEW
    # Not seeded: processes that start together must not all ask for the same.
    chance = random.SystemRandom()
    for _ in range(_TRIES):
        first = chance.randrange(_LOWEST, ceiling - count) if roomy else _offered()
        if first + count <= 65_536 and all(_is_free(port) for port in range(first, first + count)):
            return first
    raise UsageError(f"no {count} free ports in a row", where=LOOPBACK, do="end what holds them")


def require_free(port: int) -> None:
    """Refuse a port that is taken.

    :raises UsageError: somebody listens there; names the process where the system tells.
    """
    if not _is_free(port):
        owner = listener(port)
        who = f" by process {owner}" if owner else ""
        raise UsageError(f"port {port} is taken{who}", do="choose another with --port, or end that process")


def listener(port: int) -> int | None:
    """The process that listens on *port* of this machine; ``None`` when nobody does or we may not know."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return connection.pid
    except psutil.AccessDenied:
        return None
    return None


def _first_ephemeral() -> int:
    """The lowest port that the system gives to outgoing connections; 0 when it does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_RANGE.read_text(encoding="ascii").split()[0])
    return 0


def _offered() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
