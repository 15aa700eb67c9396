"""Folders of dead owners are swept; a living one's, a given-away one and anybody else's stay."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.bus.local.folders import OwnFolder, sweep

pytestmark = pytest.mark.unit

OWNER = """
import sys, time
from pathlib import Path
from eroica.bus.local.folders import OwnFolder
own = OwnFolder("mine-", Path(sys.argv[1]))
(own.path / "file").write_text("x")
print(own.path.name, flush=True)
time.sleep(600)
"""


def test_only_what_a_dead_owner_left_is_swept(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        left = tmp_path / owner.stdout.readline().strip()
        kept = OwnFolder("mine-", tmp_path)
        (kept.path / "logs").mkdir()
        kept.give_away()
        living = OwnFolder("mine-", tmp_path)
        (tmp_path / "mine-file").write_text("a file of that name")
        (tmp_path / "mine-link").symlink_to(tmp_path / "elsewhere")
        assert sweep("mine-", tmp_path) == 0, "its owner lives"
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(100)
        assert left.is_dir()
        assert sweep("mine-", tmp_path) == 1
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted([kept.path.name, living.path.name, "mine-file", "mine-link"])
        living.remove()
        living.remove()
        assert not living.path.exists()
    finally:
        owner.kill()
        owner.wait(100)


def test_a_folder_that_is_given_away_while_it_is_looked_at_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, lock = OwnFolder("mine-", tmp_path), fcntl.flock

    def late(descriptor: int, how: int) -> None:
        own.give_away()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert sweep("mine-", tmp_path) == 0
    assert own.path.is_dir()


def test_no_folder_to_sweep_in_is_no_error(tmp_path: Path) -> None:
    assert sweep("mine-", tmp_path / "gone") == 0
