"""A reader that has seen enough ends the command quietly."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

LAYOUT = ["topology", "--framework", "megatron", "--world", "64", "--tp", "2"]


@pytest.mark.parametrize(
    "argv", [LAYOUT, [*LAYOUT, "--json"], ["schema", "verdict"], ["schema", "settings"], ["--help"]], ids=" ".join
)
def test_the_end_is_quiet_and_has_its_code(argv: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "eroica.cli.main", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(100) == 141
    assert said == ""
