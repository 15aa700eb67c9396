"""What is installed is what stands here: a package or data file that the list lacks is missed only by users."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def folders() -> dict[str, Path]:
    """Every folder with code below the mapped ones, by the name that it is imported under."""
    found = {}
    for name, folder in SETUP["package-dir"].items():
        for file in (ROOT / folder).rglob("*.py"):
            below = file.parent.relative_to(ROOT / folder).parts
            found[".".join((name, *below))] = file.parent
    return found


def test_every_package_is_installed() -> None:
    assert set(SETUP["packages"]) == set(folders())


def test_the_checkouts_own_folder_hides_nothing(tmp_path: Path) -> None:
    """Whoever starts Python in the checkout finds its `eroica/` first, and the rooms where they are installed."""
    checkout, installed = tmp_path / "checkout" / "eroica", tmp_path / "installed" / "eroica"
    for folder in (checkout, installed / "schemas"):
        folder.mkdir(parents=True)
    for folder in (checkout, installed):
        shutil.copy(ROOT / "eroica" / "__init__.py", folder)
    (installed / "schemas" / "__init__.py").write_text("where = 'installed'\n", encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import eroica.schemas as s; print(s.where)"],
        cwd=checkout.parent,
        env={"PYTHONPATH": str(installed.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == "installed\n", found.stderr


def test_every_data_file_is_installed() -> None:
    patterns = SETUP["package-data"]["*"]
    installed = {path for folder in folders().values() for pattern in patterns for path in folder.glob(pattern)}
    there = {path for folder in SETUP["package-dir"].values() for path in (ROOT / folder).rglob("*.yaml")}
    assert there <= installed
