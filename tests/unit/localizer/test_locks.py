"""The localizer's locks lie under a temporary folder that others can write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eroica.localizer.service import _instance, _own_file
from eroica.schemas.errors import UsageError

pytestmark = pytest.mark.unit


def test_two_processes_of_a_host_take_different_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with _instance("p.") as first, _instance("p.") as second:
        assert first != second
        assert (tmp_path / f"eroica-localize-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    with _instance("p.") as again:
        assert again == first


@pytest.mark.parametrize("trap", ["link to a folder", "file", "open to all", "link to a file"])
def test_a_folder_that_somebody_else_prepared_is_not_used(tmp_path: Path, trap: str) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "locks"
    precious.mkdir()
    (precious / "x0.lock").write_text("mine")
    if trap == "link to a folder":
        folder.symlink_to(precious)
    elif trap == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777 if trap == "open to all" else 0o700)
        (folder / "x0.lock").symlink_to(precious / "x0.lock")
    with pytest.raises(UsageError, match="folder of locks"):
        _own_file(folder, "x0.lock")
    assert (precious / "x0.lock").read_text() == "mine"
