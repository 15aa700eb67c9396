"""Working folders lie under a temporary folder that others can write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eroica.bus.folders import own_folder
from eroica.schemas.errors import UsageError

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_is_made_for_this_user_alone_and_found_again(temporary: Path) -> None:
    folder = own_folder("eroica-detect")
    assert folder == temporary / f"eroica-detect-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert own_folder("eroica-detect") == folder


@pytest.mark.parametrize("trap", ["link", "file", "open to all", "somebody else's"])
def test_what_somebody_else_prepared_is_not_used(temporary: Path, trap: str) -> None:
    folder = temporary / f"x-{os.getuid()}"
    if trap == "link":
        (temporary / "precious").mkdir()
        folder.symlink_to(temporary / "precious")
    elif trap == "file":
        folder.write_text("")
    elif trap == "open to all":
        folder.mkdir()
        folder.chmod(0o777)
    elif os.getuid() == 0:
        folder.mkdir()
        os.chown(folder, 12_345, 12_345)
    else:
        pytest.skip("only root can give a folder to somebody else")
    with pytest.raises(UsageError, match="working folder cannot be used"):
        own_folder("x")
