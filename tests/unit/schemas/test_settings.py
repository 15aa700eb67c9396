from __future__ import annotations

import re
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
        ("detekt.window=1", "did you mean detect"),
        ("detect.nothing=1", "detect.nothing"),
        ("detect.window=many", "^setting detect.window must be a whole number above 1 up to 100000, not 'many'"),
        ("detect.window=0", "^setting detect.window must be a whole number above 1 up to 100000, not '0'"),
        ("detect.spike_z=x", "must be a number above 0 up to 1000, not 'x'"),
        ("detect.with_stack=maybe", "must be true or false, not 'maybe'"),
        ("localize.rules=astrology", "localize.rules must be one of eroica, paper, guide, not 'astrology'"),
        ("kafka.prefix=a b", "kafka.prefix must be text of at most 100 characters"),
        ("kafka.extra=secret", "kafka.extra must be a table of names and texts. see"),
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[detekt]\nwindow = 3\n", "no section 'detekt'. did you mean detect"),
        ("detect = 3\n", "section detect is not one value: it has keys, e.g. EROICA_DETECT__WINDOW"),
        ("[detect]\nwindo = 3\n", "no setting 'windo' in section detect. did you mean window"),
        ('[detect]\nwindow = "x"\n', "setting detect.window must be a whole number above 1 up to 100000, not 'x'"),
        ("[kafka.extra]\npassword = 17\n", "setting kafka.extra.password must be text. see"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_name(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    monkeypatch.setenv("EROICA_CONFIG", str(file))
    with pytest.raises(UsageError, match=rf"mine\.toml: .*{re.escape(says)}"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("EROICA_GROUP__IDLE_MS", "soon", "EROICA_GROUP__IDLE_MS: setting group.idle_ms must be a whole number"),
        ("eroica_group__idle_ms", "soon", "eroica_group__idle_ms: setting group.idle_ms must be a whole number"),
        ("EROICA_GROUP", '{"idle_ms": -1}', "EROICA_GROUP: setting group.idle_ms must be"),
        ("EROICA_GROUP", '{"idle": 1}', "EROICA_GROUP: there is no setting 'idle'"),
        ("EROICA_GROUP", "7", "EROICA_GROUP: section group is not one value"),
        ("EROICA_GROUP", "{", "EROICA_GROUP: its value must be a JSON object"),
        ("EROICA_KAFKA__EXTRA", "secret", "EROICA_KAFKA__EXTRA: its value must be a JSON object"),
    ],
)
def test_what_is_wrong_in_the_environment_is_said_with_its_variable(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as error:
        load_settings()
    assert str(error.value).startswith(says)
    assert "secret" not in str(error.value)


def test_a_variable_that_is_none_of_ours_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_settings()
    for name in ("EROICA_GROUP__NOSUCH", "EROICA_NOSUCH__X", "EROICA_GROUP__IDLE_MS__X"):
        monkeypatch.setenv(name, "1")
    assert load_settings() == before


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
