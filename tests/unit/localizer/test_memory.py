"""Freed memory stays in the process: the kernel does not zero the same pages for every column."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

PROGRAM = """
import resource, sys
import numpy as np
from eroica.localizer.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(77)
def zeroed():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(6_000_000)  # by itself the C library keeps pieces of up to 32 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
zeroed()
print(zeroed())
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], stdout=subprocess.PIPE, timeout=300)
    if done.returncode == 77:
        pytest.skip("this C library has no such settings")
    assert done.returncode == 0
    return int(done.stdout)


@pytest.mark.timeout(120)
def test_pages_are_not_asked_for_again() -> None:
    assert faults("keep") < 0.1 * faults("plain")
