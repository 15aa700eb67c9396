"""Runs a script in a process that the kernel ends with its parent. Usage: tether.py SCRIPT [ARGUMENTS].

torchrun killed outright would leave its workers behind. The tie must be made before the script's imports, which take many
seconds with torch: a parent that dies in the meantime would never be noticed.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1
ORPHAN_PARENT = 1


def tether() -> None:
    """Tie this process to its parent (Linux; elsewhere nothing); an orphan ends at once."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == ORPHAN_PARENT:
            raise SystemExit(0)


if __name__ == "__main__":
    tether()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
