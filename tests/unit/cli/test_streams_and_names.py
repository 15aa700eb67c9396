"""Whatever becomes of the standard streams, and whatever stands in files, a command ends with one sentence and its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.cli.main import main
from eroica.cli.output import escape_controls
from eroica.consumers.text import CONTROL

pytestmark = pytest.mark.unit

LAYOUT = "topology --framework megatron --world 64 --tp 2"


def shell(command: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """*command* of eroica's, with redirections."""
    return subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m eroica.cli.main {command}"],
        env={**os.environ, **env},
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (f"{LAYOUT} >/dev/full", 74, "standard output cannot be written (No space left on device)"),
        (f"{LAYOUT} --json >/dev/full", 74, "standard output cannot be written"),
        ("--help >/dev/full", 74, "standard output cannot be written"),
        ("schema verdict >/dev/full", 74, "standard output cannot be written"),
        (f"{LAYOUT} >&-", 0, ""),
        (f"{LAYOUT} --json >&- 2>&- <&-", 0, ""),
        ("schema verdict >&-", 0, ""),
        ("replay /nowhere/at/all 2>&-", 3, ""),
        ("replay /nowhere/at/all 2>/dev/full", 3, ""),
    ],
)
def test_a_stream_that_cannot_be_written(command: str, code: int, says: str) -> None:
    done = shell(command)
    told = done.stderr.decode()
    assert done.returncode == code, told
    assert says in told if says else told == ""
    assert "Traceback" not in told and "internal error" not in told


@pytest.mark.parametrize("encoding", ["ascii:strict", "ascii:surrogateescape", "latin-1", "utf-8"])
@pytest.mark.parametrize(
    "command", [LAYOUT, "topology --framework ü --world 2", "doctor --bootstrap 127.0.0.1:1", "schema settings"]
)
def test_any_encoding_will_do(encoding: str, command: str) -> None:
    done = shell(command, PYTHONIOENCODING=encoding)
    assert done.returncode in (0, 2, 4)
    assert b"internal error" not in done.stderr and b"Traceback" not in done.stderr
    assert done.stdout or done.stderr


NAMES = ["a\x1b]0;title\x07", "b\x9b31m", "[bold red]c[/]", "d\u202e\u2028", "e\nf\tg", "[/]"]


@pytest.mark.parametrize("options", [[], ["--rank", "0"], ["--json"], ["--rank", "0", "--json"]], ids=str)
def test_names_from_a_file_reach_the_terminal_harmless(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({name: [0, 1] for name in NAMES}))
    assert main(["topology", "--framework", "custom", "--coordinates", str(file), *options]) == 0
    shown = capsys.readouterr().out
    assert CONTROL.search(shown) is None
    if "--json" not in options:
        assert "[bold red]c[/]" in shown, "markup is text"
        assert "e f g" in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"pp": []}', "place no rank"),
        ('{"pp": [], "dp": []}', "place no rank"),
        ("{}", "no coordinates"),
        ('{"pp": [0], "dp": []}', "different numbers"),
        ('{"\\u001b[31m": [-1]}', "negative"),
        ("[]", "not a table"),
    ],
)
def test_coordinates_that_place_nobody(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    assert main(["topology", "--framework", "custom", "--coordinates", str(file)]) in (2, 3)
    told = capsys.readouterr().err
    assert says in told and "internal error" not in told and CONTROL.search(told) is None


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["/dev/zero", "/dev/null", "fifo", "folder", "sparse"])
@pytest.mark.parametrize(
    "argv",
    [
        ["topology", "--framework", "custom", "--coordinates", "FILE"],
        ["summarize", "FILE"],
        ["diagnose", ".", "--topology", "FILE"],
        ["simulate", "FILE", "--out", "new"],
        ["--config", "FILE", "topology", "--framework", "ddp", "--world", "2"],
    ],
    ids=lambda argv: argv[0],
)
def test_what_is_no_ordinary_file_holds_nobody_up(
    argv: list[str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EROICA_CONFIG", "")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "f.yaml"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "sparse":
        with file.open("wb") as made:
            made.truncate(2**31)
    else:
        file.symlink_to(kind)
    code = main([str(file) if word == "FILE" else word for word in argv])
    told = capsys.readouterr().err
    if argv[0] == "--config":  # a command that reads no setting does not look
        assert code == 0
    else:
        assert code in (2, 3), told
        assert str(file) in told
    assert "internal error" not in told and "Traceback" not in told


@pytest.mark.parametrize(("world", "says"), [("-1", "a job cannot have -1 ranks"), ("0", "the world size is missing")])
def test_a_world_that_cannot_be(world: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--framework", "ddp", "--world", world]) == 2
    assert says in capsys.readouterr().err


def test_escaped_json_has_the_same_value() -> None:
    value = {"".join(NAMES): "ä\x7f\x85\u200b\ufeff€😀"}
    text = escape_controls(json.dumps(value, ensure_ascii=False))
    assert CONTROL.search(text) is None
    assert json.loads(text) == value
