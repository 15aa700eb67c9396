"""What hook and agent say to each other on one host. Standard library only: both ends import it.

Sockets (``SOCK_DGRAM``) live in the *runtime directory* (``EROICA_RUNTIME_DIR``): the agent binds ``agent.sock``, each hooked
process binds ``hook-<pid>.sock``. Every send is non-blocking; a full or absent peer means the datagram is dropped and
counted. Only iterations and answers to a profile command are kept, up to a bound, for a later event to take along. The hook's
socket is connected to ``agent.sock``, so the kernel refuses commands that come from any other socket.

Everything rare (hello, profile command, profile done) is one JSON object with a ``kind``. An *event* is a fixed binary record
(``EVENT``). Events go through a *ring*: memory of the hook's (a memfd) whose descriptor travels with hello, so that telling
of an event is no system call. Where there is no ring, events are datagrams, told from JSON by their first byte.

The ring: a header, then ``RING_SLOTS`` slots of ``SLOT``. Record number n (from 0) lies in slot n modulo the slots and ends with
n + 1, written last. One writes, the hook, and only where the agent has taken the former content of a slot; one reads, the agent,
and only records that were complete when it looked the time before, so that neither end needs a lock or a fence. A seal
keeps the memory's size, so no access of either end can fail.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

WIRE_VERSION = 1
MAX_DATAGRAM_BYTES = 60_000
"""Above this a JSON datagram is not sent (Linux allows about 200 KiB by default; other systems less)."""

EVENT = struct.Struct("<BBHIQQQQ")
"""magic, code, rank is in hello so here: 0, pid, step, monotonic_ns, wall_ns, duration_ns."""
EVENT_MAGIC = 0xE1

RING_MAGIC = 0xE701CA5E
RING_HEAD = struct.Struct("<IHHII")
"""Written once by the hook: magic, wire version, 0, pid, slots."""
RING_STATE = struct.Struct("<QQ")
"""Written by the agent at ``RING_STATE_AT`` at each look: records taken, and the number of the look (the *pulse*)."""
RING_STATE_AT = 16
RING_BELL = struct.Struct("<Q")
"""Written by the agent at ``RING_BELL_AT``: commands sent so far, so that the hook need not ask its socket."""
RING_BELL_AT = 32
RING_HEADER_BYTES = 64
SLOT = struct.Struct(EVENT.format + "Q")
"""An event record, then its number + 1."""
RING_SLOTS = 4_096
RING_BYTES = RING_HEADER_BYTES + RING_SLOTS * SLOT.size

LOADER_ENTER = 1  # the data loader was asked for a batch
LOADER_EXIT = 2  # it returned one
OPTIMIZER_EXIT = 3  # an optimizer step returned, and no iteration was complete with it; otherwise ITERATION says both
ITERATION = 4  # an iteration was completed: step = its number, duration_ns = its length
GOODBYE = 5  # the process ends in an orderly way
PROBE = 6  # nothing happened: is anybody there? A datagram, where the agent has not looked into the ring for a second
EVENT_NAMES = {1: "loader_enter", 2: "loader_exit", 3: "optimizer_exit", 4: "iteration", 5: "goodbye"}

ENV_JOB = "EROICA_JOB"  # the job's name; without it the launcher's run id is used
ENV_HOST = "EROICA_HOST"  # the host's name where the real one will not do
ENV_RUNTIME_DIR = "EROICA_RUNTIME_DIR"
ENV_ENABLED = "EROICA_HOOK"  # "0" switches the hook off


class Event(NamedTuple):
    """One decoded event record. Times in nanoseconds; ``mono_ns`` is the sender's monotonic clock, ``wall_ns`` its wall clock."""

    code: int
    pid: int
    step: int
    mono_ns: int
    wall_ns: int
    duration_ns: int


def runtime_dir(environ: dict[str, str] | None = None) -> Path:
    """The directory of the sockets: ``EROICA_RUNTIME_DIR``, else a per-user folder under the system's temporary directory."""
    env = os.environ if environ is None else environ
    given = env.get(ENV_RUNTIME_DIR)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"eroica-{os.getuid()}"


def pack_event(code: int, pid: int, step: int, mono_ns: int, wall_ns: int, duration_ns: int) -> bytes:
    """Pack one event record (40 bytes)."""
    return EVENT.pack(EVENT_MAGIC, code, 0, pid, step, mono_ns, wall_ns, duration_ns)


def unpack(datagram: bytes) -> Event | dict[str, Any] | None:
    """Decode either form; ``None`` for anything that is neither (the caller counts it)."""
    if len(datagram) == EVENT.size and datagram[0] == EVENT_MAGIC:
        _, code, _, pid, step, mono_ns, wall_ns, duration_ns = EVENT.unpack(datagram)
        return Event(code, pid, step, mono_ns, wall_ns, duration_ns)
    if datagram[:1] != b"{" or len(datagram) > MAX_DATAGRAM_BYTES:
        return None
    try:
        message = json.loads(datagram)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


# JSON messages, by ``kind``. All carry "v" (WIRE_VERSION) and "pid".
#
# hello (hook → agent; sent when the iteration signature is fixed or process groups become known, and again on change):
#   {"kind":"hello","v":1,"pid":1,"rank":0,"world_size":4,"local_rank":0,"host":"a","job":"j","run_id":"r","device":"cpu",
#    "framework":"ddp","coords":{"pp":0},"backend":"gloo","launcher":"torchrun",
#    "groups":[{"name":"0","desc":"default_pg","backend":"gloo","ranks":[0,1,2,3]}],"python":"3.11","torch":"2.15",
#    "hook":"dataloader+optimizer" | "mark_step", "socket":"/…/hook-1.sock"}
#   Above 2,048 members "ranks" is a string of ranges, "0-4095", since a datagram is small. The ring's descriptor comes with it.
#
# profile (agent → hook):
#   {"kind":"profile","v":1,"request":"req-…","start_step":120,"steps":5,"duration_ms":0,"with_stack":true,
#    "directory":"/dev/shm/…","max_duration_ms":60000,"expires_ms":90000,"max_trace_bytes":4294967296,"attempt":1}
#   Exactly one of steps and duration_ms is positive. A start_step in the past means: start at the next step and say so.
#   Where stacks turn out too dear or the trace too large, the hook profiles once more without and says so in "notes".
#
# profiled (hook → agent):
#   {"kind":"profiled","v":1,"pid":1,"rank":0,"request":"req-…","path":"/dev/shm/…/rank0.json","first_step":120,"last_step":124,
#    "late_by":0,"blocked_ms":41.0,"started_wall_ns":…,"ended_wall_ns":…,"notes":[],"attempt":1,"error":""}
#   Asked once more for a request and attempt that was answered, the hook repeats its answer.
#   On failure path is "" and error says what happened. Beside a trace rank0.json lies rank0.side.json:
#   {"pauses":[{"kind":"gc","count":2,"total_us":..,"max_us":..}],"steps":[{"step":120,"duration_ns":..}],
#    "receive_waits":[{"group":"ep dispatch","ranks":[0,1],"count":5,"total_us":[..],"max_us":[..]}],
#    "start_stop_ms":..,"export_ms":..}
#
# counters (hook → agent, with every goodbye and at most once a minute):
#   {"kind":"counters","v":1,"pid":1,"rank":0,"dropped":0,"failures":0,"relearned":0}
