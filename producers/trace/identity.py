"""Whose trace is it? Rank and world from the trace, else from the file's name; never guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eroica.producers.trace.columns import Trace
from eroica.producers.trace.filenames import rank_of_file
from eroica.schemas.ranks import MAX_RANK

_HANDLER_NAME = re.compile(r"^(.+?)_\d+\.\d+\.pt\.trace\.json")
_NAMES_A_RANK = re.compile(r"(worker|rank)[_-]?\d+(_|$)")


@dataclass(frozen=True, slots=True)
class TraceIdentity:
    """What a trace tells about its worker; -1, 0 or empty where it does not."""

    rank: int = -1
    rank_source: str = ""
    """``distributed_info``, ``file_name`` or empty: then it must be asked for."""
    world_size: int = 0
    backend: str = ""
    host: str = ""
    device: str = ""


def identify(trace: Trace, path: str | Path) -> TraceIdentity:
    """Read rank, world size, backend, host and device model."""
    info = trace.meta.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank, source = _natural(info.get("rank")), "distributed_info"
    if rank < 0:
        rank, source = rank_of_file(path), "file_name"
    world = _natural(info.get("world_size"))
    return TraceIdentity(
        rank=rank,
        rank_source=source if rank >= 0 else "",
        world_size=max(world, 0),
        backend=str(info.get("backend") or "")[:64],
        host=_host(trace, path),
        device=_device(trace),
    )


def process_groups(trace: Trace) -> dict[str, dict[str, Any]]:
    """Process groups by name: ``{"desc", "backend", "size", "ranks"}``; ranks are empty where Kineto cut the list at 30
    entries.
    """
    info = trace.meta.get("distributedInfo")
    config = info.get("pg_config") if isinstance(info, dict) else None
    groups: dict[str, dict[str, Any]] = {}
    for entry in config if isinstance(config, list) else []:
        if not isinstance(entry, dict) or "pg_name" not in entry:
            continue
        told = entry.get("ranks")
        told = _listed(told) if isinstance(told, str) else told  # a profile on demand writes the list as text
        ranks = [r for r in told if _natural(r) >= 0] if isinstance(told, list) else []
        size = max(_natural(entry.get("pg_size")), 0)
        groups[str(entry["pg_name"])[:200]] = {
            "desc": str(entry.get("pg_desc") or "")[:200],
            "backend": str(entry.get("backend_config") or "")[:64],
            "size": size or len(ranks),
            "ranks": ranks if not size or len(ranks) == size else [],
        }
    for args in trace.comm.values():
        ranks = _listed(args.group_ranks)
        if args.group_name and args.group_name not in groups:
            whole = len(ranks) == args.group_size
            groups[args.group_name] = {
                "desc": args.group_description, "backend": "", "size": args.group_size, "ranks": ranks if whole else [],
            }  # fmt: skip
    return groups


def _listed(text: str) -> list[int]:
    """``"[0, 1, 2]"`` as numbers; a list that was cut (``...``) is none."""
    return [] if "..." in text else [int(n) for n in re.findall(r"\d{1,8}", text)]


def _natural(value: object) -> int:
    if isinstance(value, str) and value.isdigit() and len(value) <= 8:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_RANK else -1


def _host(trace: Trace, path: str | Path) -> str:
    if isinstance(name := trace.meta.get("host_name"), str) and name:
        return name[:200]
    for text in (str(trace.meta.get("traceName") or ""), str(path)):
        match = _HANDLER_NAME.match(Path(text).name)
        # "worker3_step" and the like name a rank, not its host.
        if match is not None and not _NAMES_A_RANK.match(match.group(1)):
            return match.group(1)[:200]
    return ""


def _device(trace: Trace) -> str:
    devices = trace.meta.get("deviceProperties")
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            return str(device["name"])[:200]
    return ""
