"""What the hook asks of the kernel: nothing, while nothing out of the ordinary happens."""

from __future__ import annotations

import collections
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


def test_telling_of_events_is_no_system_call(tmp_path_factory: pytest.TempPathFactory, helpers: Any) -> None:
    folder = tmp_path_factory.mktemp("c")
    # Without -f only the training thread is followed, not the reader's.
    command = ["strace", "-o", str(folder / "calls"), sys.executable, str(Path(__file__).with_name("quiet_loop.py")), str(folder)]
    ran = subprocess.run(command, env=helpers.environ(), capture_output=True, text=True, timeout=600, check=False)
    if ran.returncode and "PTRACE" in ran.stderr:
        pytest.skip("strace may not trace here")
    assert ran.returncode == 0, ran.stderr
    heard, seconds = ran.stdout.split()
    assert int(heard) > 3_600, "the events were heard"
    _, between, _ = (folder / "calls").read_text().split('"MARK"')
    calls = collections.Counter(line.partition("(")[0] for line in between.splitlines()[1:-1])
    # Once a second the agent is looked after, and the thread's processor time is noted.
    now_and_then = {"poll", "sendto", "sendmsg", "recvfrom", "clock_gettime"}
    assert sum(calls[name] for name in now_and_then) < 60 + 10 * float(seconds), calls
    # What is left is Python's own: memory, and its lock where the reader's thread wants it.
    assert set(calls) <= now_and_then | {"futex", "brk", "mmap", "munmap", "madvise", "getrusage"}, calls
