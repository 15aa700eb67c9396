"""Ctrl-C while a command still imports what it needs ends it without a word."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.unit, pytest.mark.timeout(120)]

INTERRUPTED_AT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            sys.stderr.write("")  # where Python next looks for signals

signal.signal(signal.SIGINT, {handler})
sys.meta_path.insert(0, Finder())
sys.argv = ["eroica", *{command!r}.split()]
from eroica.cli.__main__ import main
sys.exit(main())
"""


def start(command: str, module: str, handler: str = "signal.default_int_handler") -> subprocess.CompletedProcess[str]:
    """Run *command*, and send it what Ctrl-C sends when it first looks for *module*."""
    code = INTERRUPTED_AT.format(module=module, handler=handler, command=command)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("demo", "eroica.cli.main"),
        ("demo", "typer"),
        ("demo", "eroica.cli.options"),
        ("demo", "eroica.cli.demo"),
        ("demo", "eroica.offline.demo.runner"),
        ("demo", "numpy"),
        ("localize", "eroica.schemas.settings"),
        ("localize", "eroica.localizer.service"),
        ("detect", "faust"),
        ("agent", "confluent_kafka"),
        ("diagnose /nowhere", "eroica.offline.diagnose"),
        ("--help", "typer"),
    ],
)
def test_the_end_is_quiet(command: str, module: str) -> None:
    done = start(command, module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_who_was_started_with_ctrl_c_ignored_goes_on() -> None:
    done = start("--version", "typer", handler="signal.SIG_IGN")
    assert done.returncode == 0 and done.stdout.startswith("eroica ")
