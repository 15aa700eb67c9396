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


def test_a_lock_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "x0.lock").symlink_to(precious)
    with pytest.raises(UsageError, match="lock cannot be used"):
        _own_file(tmp_path / "x0.lock")
    assert precious.read_text() == "mine"
