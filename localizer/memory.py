"""Keep freed memory in the process instead of handing it back to the kernel at once.

A request of 1,000,000 workers makes and frees columns of many megabytes. The C library maps each of them anew, and the kernel
zeroes every page of it again: seen as half of the localizer's time. Memory that is kept is zeroed once.
"""

from __future__ import annotations

import ctypes
import logging
import sys

_log = logging.getLogger(__name__)

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Numbers of the parameters in glibc's ``malloc.h``."""
TOP_PAD = 64 * 2**20
"""The heap grows by this many bytes beyond what is asked for."""


def keep_freed_memory() -> bool:
    """For processes of which a localizer is the whole purpose; their memory stays at its peak.

    :returns: whether the C library has these settings; where it does not, nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl
        return False
    # Each answers 1 where it was taken. Never to trim is -1, which C reads as the largest size.
    taken = [mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, -1), mallopt(_TOP_PAD, TOP_PAD)]
    _log.debug("freed memory is kept: %s", taken)
    return all(taken)
