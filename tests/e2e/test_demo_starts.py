"""The demo is ended, or loses a part, while its parts are still being started."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from demo_kit import EROICA, environment, left_behind, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("children", [1, 3, 6])
def test_a_signal_while_the_parts_are_started_is_never_lost(tmp_path: Path, number: signal.Signals, children: int) -> None:
    log = tmp_path / "told.txt"
    with log.open("w") as told:
        demo = subprocess.Popen([*EROICA, "demo", "--json"], env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=told)
    try:
        wait_for(lambda: len(psutil.Process(demo.pid).children()) >= children, demo, pause_s=0.001)
        demo.send_signal(number)
        assert demo.wait(100) == 128 + number
        assert left_behind(tmp_path, demo.pid) == []
        assert "Traceback" not in log.read_text()
    finally:
        demo.kill()


def groups_of(pid: int) -> list[psutil.Process]:
    """The demo's process of ``eroica group``; a child that is just being started still looks like the demo itself."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if "group" in child.cmdline():
                found.append(child)
    return found


def test_a_part_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "told.txt"
    with log.open("w") as told:
        demo = subprocess.Popen([*EROICA, "demo"], env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=told)
    try:
        found: list[psutil.Process] = []

        def started() -> bool:
            found[:] = groups_of(demo.pid)
            return bool(found) and len(psutil.Process(demo.pid).children()) >= 6

        wait_for(started, demo)
        found[0].kill()
        assert demo.wait(100) == 1
        assert "group ended too early" in log.read_text()
        assert "the logs are in" in log.read_text()
        (folder,) = (tmp_path / "scratch").iterdir()
        assert [path.name for path in folder.iterdir()] == ["logs"]
    finally:
        demo.kill()
