"""Stacks of a stuck worker and its children, taken from outside with py-spy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from eroica.schemas.errors import extra_missing

MAX_PROCESSES = 32
"""Of a rank: the training process and its children (loader workers first come, first served)."""
MAX_THREADS = 256
MAX_FRAMES = 64
MAX_ENTRY_CHARACTERS = 4_000
MAX_TOTAL_CHARACTERS = 50_000
"""Of all threads of a rank: a class of hundreds must fit the topics."""
MAX_OUTPUT_BYTES = 8 * 2**20
ADVICE = (
    "the agent may not look into the process: run it as the same user and give it the SYS_PTRACE capability "
    "(container: cap_add SYS_PTRACE), or set kernel.yama.ptrace_scope=0"
)


@dataclass(frozen=True, slots=True)
class Stacks:
    """Stacks of one worker: entries as in ``StackEvidence.threads``, and why some or all are missing."""

    threads: list[str]
    error: str = ""


def find_py_spy() -> str | None:
    """Path of py-spy: beside the running interpreter, else on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def dump_stacks(pid: int, timeout_ms: int, *, program: str | None = None, clock: Callable[[], float] = time.monotonic) -> Stacks:
    """Stacks of process *pid* and its descendants. Takes at most about *timeout_ms*; pauses no process unless it must."""
    program = program or find_py_spy()
    if program is None:
        return Stacks([], f"py-spy is not installed for the agent: {extra_missing('agent')}")
    deadline = clock() + timeout_ms / 1_000
    threads: list[str] = []
    errors: list[str] = []
    for one in _family(pid):
        left_s = deadline - clock()
        if left_s <= 0:
            errors.append(f"time was up before process {one}")
            break
        # Without a pause first; a process whose stack moves meanwhile cannot be read so, and is paused for milliseconds.
        raw, error = _run(program, one, left_s, "--nonblocking")
        if error and "ermission" not in error and deadline - clock() > 0:
            raw, error = _run(program, one, deadline - clock())
        if error:
            # A child that is no Python process (a compiler, a shell) is no loss.
            if one == pid or "ermission" in error:
                errors.append(error)
            if "ermission" in error:
                break
            continue
        threads += format_dump(raw)
    return Stacks(_bounded(threads), "; ".join(errors)[:500])


def format_dump(raw: bytes) -> list[str]:
    """Entries from the output of ``py-spy dump --json``: ``pid/thread name/state: frames``, outermost first; [] if it is none."""
    try:
        dump = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    entries: list[str] = []
    for thread in dump if isinstance(dump, list) else []:
        if not isinstance(thread, dict):
            continue
        frames = thread.get("frames")
        names = [_frame(f) for f in reversed(frames if isinstance(frames, list) else []) if isinstance(f, dict)]
        if len(names) > MAX_FRAMES:
            # What a thread waits in stands at the end, where it came from at the beginning.
            names = [*names[: MAX_FRAMES // 2], "…", *names[-MAX_FRAMES // 2 + 1 :]]
        state = ("active" if thread.get("active") else "idle") + ("+gil" if thread.get("owns_gil") else "")
        name = str(thread.get("thread_name") or thread.get("thread_id") or "?")[:80].replace("/", "_")
        entries.append(f"{thread.get('pid')}/{name}/{state}: {';'.join(names)}"[:MAX_ENTRY_CHARACTERS])
    return entries


def _frame(frame: dict[str, Any]) -> str:
    file = str(frame.get("short_filename") or frame.get("filename") or "?").replace(";", ",")[-80:]
    return f"{str(frame.get('name') or '?').replace(';', ',')[:120]} ({file}:{frame.get('line') or 0})"


def _bounded(threads: list[str]) -> list[str]:
    kept: list[str] = []
    total = 0
    for entry in threads[:MAX_THREADS]:
        total += len(entry)
        if total > MAX_TOTAL_CHARACTERS:
            break
        kept.append(entry)
    if len(kept) < len(threads):
        kept.append(f"and {len(threads) - len(kept)} more threads")
    return kept


def _family(pid: int) -> list[int]:
    try:
        children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        children = []
    return [pid, *children[: MAX_PROCESSES - 1]]


def _run(program: str, pid: int, timeout_s: float, *options: str) -> tuple[bytes, str]:
    """Output, or what went wrong in one sentence."""
    command = [program, "dump", "--json", *options, "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return b"", f"py-spy did not end in time for process {pid}"
    except OSError as error:
        return b"", f"py-spy did not start: {error}"
    if done.returncode == 0:
        return done.stdout[:MAX_OUTPUT_BYTES], ""
    text = done.stderr.decode("utf-8", "replace")
    if "ermission denied" in text or "not permitted" in text.lower():
        return b"", f"no permission for process {pid}: {ADVICE}"
    if not psutil.pid_exists(pid):
        return b"", f"process {pid} is gone"
    first = next((line for line in text.splitlines() if line.strip()), "no message")
    return b"", f"py-spy on process {pid}: {first.strip()[:200]}"
