"""Variables that look like ours and are none are told, those that are ours are not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.schemas.environment import MAX_NAMED, NO_SETTINGS
from eroica.schemas.settings import EroicaSettings, environment_warnings

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[3]
ROOMS = ("schemas", "topology", "bus", "producers", "streams", "localizer", "consumers", "simulator", "offline", "cli", "tests")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("EROICA_NOSUCH__X", ""),
        ("EROICA_GROUP__NOSUCH", ""),
        ("EROICA_GROUP__IDLEMS", "EROICA_GROUP__IDLE_MS"),
        ("eroica_group__idlems", "EROICA_GROUP__IDLE_MS"),
        ("EROICA_GROUP_IDLE_MS", "EROICA_GROUP__IDLE_MS"),
        ("EROICA_GROUP__IDLE_MS__X", "EROICA_GROUP__IDLE_MS"),
        ("EROICA_BOOTSTRAP", "EROICA_KAFKA__BOOTSTRAP"),
        ("EROICA_LOGLEVEL", "EROICA_LOG_LEVEL"),
        ("EROICA_", ""),
    ],
)
def test_a_strange_variable_is_named_with_the_nearest(name: str, near: str) -> None:
    (line,) = environment_warnings([name, "PATH", "EROICA_JOB"])
    assert name in line
    assert ("did you mean" in line) == bool(near)
    assert f"did you mean {near}? " in line or not near


@pytest.mark.parametrize(
    "name",
    [
        *sorted(NO_SETTINGS),
        "EROICA_KAFKA",
        "EROICA_KAFKA__EXTRA",
        "EROICA_KAFKA__EXTRA__SASL.USERNAME",
        "eroica_detect__window",
        "EROICA_KAFKA_SERVICE_HOST",
        "EROICA_KAFKA_SERVICE_PORT_CLIENT",
        "EROICA_KAFKA_PORT",
        "EROICA_KAFKA_PORT_9092_TCP_ADDR",
        "EROICALLY",
        "",
    ],
)
def test_what_is_ours_or_kubernetes_is_not(name: str) -> None:
    assert environment_warnings([name]) == []


def test_every_setting_has_a_variable_that_is_ours() -> None:
    names = [
        f"EROICA_{section}__{key}".upper()
        for section, field in EroicaSettings.model_fields.items()
        for key in type(field.default).model_fields
    ]
    assert environment_warnings(names) == []


def test_many_are_counted() -> None:
    told = environment_warnings(f"EROICA_X{number:03}" for number in range(100))
    assert len(told) == MAX_NAMED + 1
    assert told[-1].startswith(f"and {100 - MAX_NAMED} more")


def test_every_variable_that_our_code_names_is_ours() -> None:
    named = {
        name
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
        if file != Path(__file__) and file.name != "test_settings.py"
        for name in re.findall(r"""["'](EROICA_[A-Z]\w*)["'=]""", file.read_text(encoding="utf-8"))
    }
    assert named >= NO_SETTINGS
    assert environment_warnings(named) == []


@pytest.mark.parametrize(("command", "lines"), [("schema settings", 1), ("run --job j -- true", 0)])
def test_a_command_that_reads_settings_says_so_once_on_standard_error(command: str, lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eroica.cli", *command.split()],
        env={"EROICA_GROUP__IDLEMS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.count("EROICA_GROUP__IDLEMS") == lines == len(done.stderr.splitlines())
    assert "IDLEMS" not in done.stdout
