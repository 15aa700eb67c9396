from __future__ import annotations

from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from eroica.schemas.errors import UsageError
from eroica.schemas.settings import EroicaSettings, Section, load_settings

pytestmark = pytest.mark.unit


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "e.toml"
    file.write_text("[detect]\nwindow = 11\nrecent = 12\nwarmup = 13\n")
    monkeypatch.setenv("EROICA_CONFIG", str(file))
    monkeypatch.setenv("EROICA_DETECT__RECENT", "22")
    monkeypatch.setenv("EROICA_DETECT__WARMUP", "23")
    detect = load_settings(["detect.warmup=33"]).detect
    assert (detect.window, detect.recent, detect.warmup, detect.spike_window) == (11, 22, 33, 50)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("detect.window", "section.key=value"),
        ("window=3", "section.key=value"),
        ("nowhere.key=1", "no section 'nowhere'"),
        ("detect.nothing=1", "detect.nothing"),
        ("detect.window=many", "detect.window"),
        ("detect.window=0", "detect.window"),
        ("localize.rules=astrology", "localize.rules"),
        ("kafka.prefix=a b", "kafka.prefix"),
    ],
)
def test_a_wrong_setting_is_named(assignment: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_settings([assignment])


def test_a_wrong_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(UsageError, match=r"gone\.toml"):
        load_settings()
    broken = tmp_path / "broken.toml"
    broken.write_text("[detect\n")
    monkeypatch.setenv("EROICA_CONFIG", str(broken))
    with pytest.raises(UsageError, match="not TOML"):
        load_settings()


def test_the_digest_changes_with_any_value() -> None:
    one, other = load_settings().detect, load_settings(["detect.window=51"]).detect
    assert one.digest() == load_settings().detect.digest()
    assert one.digest() != other.digest()


NUMBERS = [
    (f"{section}.{name}", field)
    for section, of in EroicaSettings.model_fields.items()
    for name, field in of.annotation.model_fields.items()  # type: ignore[union-attr]
    if field.annotation in (int, float)
]


@pytest.mark.parametrize(("path", "field"), NUMBERS, ids=[path for path, _ in NUMBERS])
def test_every_number_is_finite_and_has_bounds(path: str, field: FieldInfo) -> None:
    section, _, key = path.partition(".")
    bounds = {name: getattr(rule, name) for rule in field.metadata for name in ("ge", "gt", "le") if hasattr(rule, name)}
    assert "le" in bounds and {"ge", "gt"} & set(bounds)
    load_settings([f"{path}={bounds['le']}"])
    for wrong in ("inf", "-inf", "nan", "1e300", "99999999999999999999", "-1", str(bounds["le"] + 1)):
        with pytest.raises(UsageError, match=f"setting {section}.{key}"):
            load_settings([f"{path}={wrong}"])


def test_a_settings_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(2**31)
    for name, says in ((str(large), "over 1000000 bytes"), ("/dev/zero", "not there")):
        monkeypatch.setenv("EROICA_CONFIG", name)
        with pytest.raises(UsageError, match=says):
            load_settings()


def test_every_setting_says_what_it_is() -> None:
    for name, section in EroicaSettings.model_fields.items():
        kind = section.annotation
        assert isinstance(kind, type) and issubclass(kind, Section)
        for key, field in kind.model_fields.items():
            assert field.description, f"{name}.{key} has no description"
