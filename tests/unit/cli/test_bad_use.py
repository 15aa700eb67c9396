"""Whatever is given wrongly ends with one sentence and the documented exit code, never with a traceback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from eroica.cli import services
from eroica.cli.main import main

pytestmark = pytest.mark.unit


@pytest.fixture
def no_kafka() -> Iterator[str]:
    """A port where something listens that is no broker: it closes every connection."""
    import threading

    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

    threading.Thread(target=answer, daemon=True).start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.fixture(autouse=True)
def settings_file_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """--config names the file to child processes through the environment: put it back as it was."""
    monkeypatch.setenv("EROICA_CONFIG", "")
    monkeypatch.delenv("EROICA_CONFIG")


NOBODY = "127.0.0.1:1"
CASES: list[tuple[list[str], int, str]] = [
    (["nonsense"], 2, "eroica: no such command 'nonsense'; see: eroica --help"),
    (["verdict"], 2, "eroica: no such command 'verdict'. Did you mean 'verdicts'? see: eroica --help"),
    (["verdicts", "--nonsense"], 2, "eroica: verdicts: no such option: --nonsense"),
    (["record", "--job"], 2, "eroica: record: option '--job' requires an argument; see: eroica record --help"),
    (
        ["profile", "j", "--steps", "x"],
        2,
        "eroica: profile: --steps takes a whole number from 1 to 1000, not 'x'; see: eroica profile",
    ),
    (["profile", "j", "--steps", "0"], 2, "eroica: profile: --steps takes a whole number from 1 to 1000, not '0'; see:"),
    (["profile", "j", "--seconds", "x"], 2, "eroica: profile: --seconds takes a number from 0.001 to 120, not 'x'; see:"),
    (["demo", "--timeout", "5"], 2, "eroica: demo: --timeout takes a number from 10, not '5'; see: eroica demo --help"),
    (["simulate", "slow-gpu", "--seed", "1.5"], 2, "eroica: simulate: --seed takes a whole number, not '1.5'; see:"),
    (
        ["verdicts", "feedback"],
        2,
        "eroica: verdicts feedback: missing argument 'VERDICT_ID'; see: eroica verdicts feedback --help",
    ),
    (["demo", "--ranks", "few"], 2, "eroica: demo: --ranks takes a whole number, not 'few'; see: eroica demo --help"),
    (["detect", "--set", "detect.window"], 2, "section.key=value"),
    (["detect", "--set", "nope.window=3"], 2, "no section"),
    (["detect", "--set", "detect.nope=3"], 2, "detect.nope"),
    (["localize", "--set", "localize.ruels=paper"], 2, "there is no setting 'ruels' in section localize. did you mean rules?"),
    (["localize", "--set", "localise.rules=paper"], 2, "did you mean localize?"),
    (
        ["simulate", "slow-gpu", "--out", "x", "--set", "job.wrld=64"],
        2,
        "--set job.wrld=64: there is no field 'wrld'. did you mean world?",
    ),
    (["simulate", "slow-gpu", "--out", "x", "--set", "faults.0.dos=2"], 2, "did you mean dose?"),
    (["simulate", "slow-gpu", "--out", "x", "--set", "job.model.layer=2"], 2, "layers_per_stage"),
    (
        ["simulate", "slow-gpu", "--out", "x", "--set", "job.model=2"],
        2,
        "--set job.model=2: this has to be a table of fields, and is a whole number",
    ),
    (["simulate", "slow-gpu", "--out", "x", "--set", "nois=quiet"], 2, "did you mean noise?"),
    (["simulate", "slow-gpu", "--out", "x", "--set", "localise.rules=paper"], 2, "did you mean localize?"),
    (["simulate", "slow-gup", "--out", "x"], 2, "did you mean slow-gpu?"),
    (["detect", "--set", "detect.window=three"], 2, "detect.window"),
    (["detect", "--config", "/nowhere/at/all.toml"], 2, "not there"),
    (["--config", "/nowhere/at/all.toml", "detect"], 2, "not there"),
    (["--set", "detect.window=x", "detect"], 2, "detect.window"),
    (["verdicts", "--bootstrap", "localhost"], 2, "host:port"),
    (["verdicts", "--bootstrap", NOBODY], 4, "nothing listens"),
    (["topics", "list", "--bootstrap", NOBODY], 4, "nothing listens"),
    (["topics", "ensure", "--bootstrap", NOBODY], 4, "nothing listens"),
    (["topics", "delete", "--bootstrap", NOBODY], 2, "--yes"),
    (["topics", "delete", "--yes", "--bootstrap", NOBODY], 4, "nothing listens"),
    (["topics", "list", "--prefix", "with space"], 2, "kafka.prefix"),
    (["profile", "job", "--bootstrap", NOBODY], 4, "nothing listens"),
    (["profile", "job", "--steps", "3", "--seconds", "1"], 2, "one of --steps and --seconds"),
    (["profile", "job", "--steps", "0"], 2, "--steps"),
    (["profile", "job", "--seconds", "120.5"], 2, "--seconds takes a number from 0.001 to 120, not '120.5'"),
    (["demo", "--bootstrap", NOBODY], 4, "nothing listens"),
    (["demo", "--fault", "gremlins"], 2, "slow-data, slow-host, none"),
    (["demo", "--fault-rank", "4"], 2, "outside of 0..3"),
    (["demo", "--ranks", "1"], 2, "--ranks"),
    (["run", "--", "no-such-program-here"], 2, "no such command"),
    (["run"], 2, "COMMAND"),
    (["schema", "nope"], 2, "verdict"),
    (["schema", "--out", "/proc/nowhere"], 2, "cannot be written"),
    (["replay", "/nowhere/at/all"], 3, "no manifest.json"),
    (["record", "--job", "j", "--out", "x", "--follow", "--until-verdict"], 2, "one of"),
    (["record", "--job", "j", "--out", "x", "--bootstrap", NOBODY], 4, "nothing listens"),
    (["topology", "--framework", "megatron", "--world", "10", "--tp", "3"], 2, "cannot be divided"),
    (["topology", "--framework", "ddp", "--world", "8", "--ranks-per-host", "0"], 2, "--ranks-per-host"),
    (["topology", "--framework", "foo", "--world", "8"], 2, "or custom"),
    (["topology", "--framework", "ddp", "--world", "8", "--dp", "8"], 2, "none but the world size"),
    (["doctor", "--bootstrap", NOBODY], 4, "nothing listens"),
]


@pytest.mark.parametrize(("argv", "code", "says"), CASES, ids=[" ".join(argv)[:60] for argv, _, _ in CASES])
def test_one_sentence_and_the_exit_code(
    argv: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115, PTH123  # for the length of the test
    assert main(argv) == code
    shown = capsys.readouterr()
    assert says in shown.err + shown.out
    assert "Traceback" not in shown.err + shown.out
    said = [line for line in shown.err.splitlines() if line.startswith("eroica: ")]
    assert len(said) <= 1 and not shown.err.startswith("Usage"), "one line, and what was being done before"
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_no_broker_is_told_apart(no_kafka: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", "--bootstrap", no_kafka]) == 4
    assert "not a Kafka broker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "module", "says"),
    [(["demo"], "torch", "torch is not installed"), (["demo"], "faust", "faust is not installed")],
)
def test_an_absent_package_is_one_sentence(
    argv: list[str], module: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else real(name, *rest))
    assert main(argv) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert "pip install" in shown


def test_a_bug_is_one_sentence_unless_debugging(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("boom \x1b[31m")

    monkeypatch.setattr(services, "set_up_logging", broken)
    assert main(["detect"]) == 70
    shown = capsys.readouterr().err
    assert "internal error" in shown
    assert "Traceback" not in shown
    assert "\x1b" not in shown
    monkeypatch.setenv("EROICA_DEBUG", "1")
    assert main(["detect"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_an_ordinary_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(services, "set_up_logging", interrupted)
    assert main(["detect"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [["--set", "detect.window=7", "schema", "settings"], ["schema", "settings", "--set", "detect.window=7"]],
)
def test_common_options_stand_before_or_after(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("detect.window "))
    assert line.split()[1] == "7"


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_KAFKA__EXTRA", '{"sasl.password": "hunter2"}')
    assert main(["schema", "settings"]) == 0
    page = capsys.readouterr().out
    assert "sasl.password" in page
    assert "hunter2" not in page
