"""The command line as others build on it: a change here is a change of the public interface."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from eroica.cli.main import COMMANDS, load, main

pytestmark = pytest.mark.unit

COMMON = ["--bootstrap", "--prefix", "--config", "--set"]
SURFACE: dict[str, list[str]] = {
    "demo": ["--fault", "--fault-rank", "--ranks", "--record", "--timeout", "--json"],
    "run": ["WORDS", "--job", "--host", "--runtime-dir"],
    "agent": ["--host", "--runtime-dir"],
    "detect": ["--workdir"],
    "group": ["--workdir"],
    "localize": [],
    "topics ensure": ["--dry-run", "--json"],
    "topics list": ["--json"],
    "topics delete": ["--yes", "--json"],
    "profile": ["JOB", "--steps", "--seconds", "--wait", "--timeout", "--json"],
    "verdicts": ["--follow", "--json", "--short", "--last", "--job", "--fail-on-finding"],
    "verdicts feedback": ["VERDICT_ID", "--helped", "--remedy", "--note", "--author", "--json"],
    "record": ["--job", "--out", "--until-verdict", "--follow", "--json"],
    "replay": ["DIRECTORY", "--json", "--verify", "--interleave", "--explain", "--to-kafka", "--speed"],
    "summarize": ["FILE", "--rank", "--json"],
    "diagnose": ["SOURCE", "--rank", "--rank-from", "--topology", "--job", "--json", "--fail-on-finding"],
    "simulate": ["SCENARIO", "--seed", "--out", "--list", "--json"],
    "tune": ["RECORDINGS", "--labels", "--out", "--points", "--folds", "--seed", "--max-false", "--range", "--json"],
    "topology": [
        "--framework",
        "--world",
        "--tp",
        "--pp",
        "--cp",
        "--ep",
        "--etp",
        "--dp",
        "--edp",
        "--dp-replicate",
        "--dp-shard",
        "--vpp",
        "--order",
        "--use-tp-pp-dp-mapping",
        "--placement",
        "--use-data-before-expert",
        "--coordinates",
        "--ranks-per-host",
        "--rank",
        "--json",
    ],
    "schema": ["NAME", "--out", "--json"],
    "doctor": ["--json"],
}


def leaves(name: str) -> dict[str, Any]:
    """The commands at and below *name*; a group is one itself where it does something by itself."""
    loaded = load(name)
    below: dict[str, Any] = getattr(loaded, "commands", {})
    own = {name: loaded} if not below or loaded.invoke_without_command else {}
    return own | {f"{name} {sub}": one for sub, one in below.items()}


def words(one: Any) -> list[str]:
    """Its options, the first long form of each, and its arguments in capitals."""
    found = [next((o for o in p.opts if o.startswith("--")), p.opts[0].upper()) for p in one.params]
    return [word for word in found if word != "--help"]


def test_the_commands_are_these() -> None:
    assert set(COMMANDS) == {name.split()[0] for name in SURFACE}


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in SURFACE}))
def test_the_options_are_these(name: str) -> None:
    found = {full: words(one) for full, one in leaves(name).items()}
    wanted = {full: options + COMMON for full, options in SURFACE.items() if full.split()[0] == name}
    assert found == wanted


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for full in leaves(name):
        assert main([*full.split(), "--help"]) == 0
        assert f"Example: eroica {full}" in capsys.readouterr().out


def test_help_and_version_load_nothing_heavy() -> None:
    code = (
        "import sys; from eroica.cli.main import main; main(['--help']); main(['--version']);"
        "heavy = {'torch', 'faust', 'numpy', 'pydantic', 'confluent_kafka', 'msgspec', 'rich'} & set(sys.modules);"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_the_list_of_commands_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert all(f"\n  {name} " in page for name in COMMANDS)


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_no_line_of_a_list_is_cut(width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for above in ([], ["topics"], ["verdicts"]):
        assert main([*above, "--help"]) == 0
        assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


UNUSED = {
    "run": COMMON,
    "summarize": COMMON,
    "topology": COMMON,
    "diagnose": ["--bootstrap", "--prefix"],
    "tune": ["--bootstrap", "--prefix"],
    "schema": ["--bootstrap", "--prefix"],
}


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in SURFACE}))
def test_help_is_silent_of_common_options_that_mean_nothing_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for full in leaves(name):
        assert main([*full.split(), "--help"]) == 0
        shown = {
            line.split()[0] for line in capsys.readouterr().out.partition("Options:")[2].splitlines() if line.startswith("  --")
        }
        assert {option for option in COMMON if option not in shown} == set(UNUSED.get(name, []))


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in SURFACE}))
def test_an_example_stands_on_one_line_and_an_option_says_in_a_word_what_it_takes(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for full, one in leaves(name).items():
        assert main([*full.split(), "--help"]) == 0
        page = capsys.readouterr().out
        examples = [line.strip() for line in (one.help or "").splitlines() if line.startswith("Example: ")]
        assert examples and all(f"  {example}\n" in page for example in examples)
        assert not {"<int", "<float", "<str>", "<path>", "INTEGER", "FLOAT"} & set(page.replace(" range>", ">").split())


USAGE = {
    "run": "run [OPTIONS] -- COMMAND …",
    "simulate": "simulate [OPTIONS] [SCENARIO]",
    "replay": "replay [OPTIONS] DIR",
    "tune": "tune [OPTIONS] RECORDING …",
    "schema": "schema [OPTIONS] [NAME]",
    "verdicts": "verdicts [OPTIONS] [feedback …]",
    "verdicts feedback": "verdicts feedback [OPTIONS] VERDICT_ID",
    "topics": "topics [OPTIONS] ensure|list|delete …",
}


@pytest.mark.parametrize(("name", "usage"), USAGE.items())
def test_a_usage_line_is_what_one_types(name: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    assert f"Usage: eroica {usage}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "meant"), [("verdict", "'verdicts'"), ("diagnos", "'diagnose'"), ("topics lst", "'list'"), ("xyzzy", None)]
)
def test_a_slip_is_met_with_the_command_that_was_meant(typed: str, meant: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed.split()) == 2
    told = capsys.readouterr().err
    assert (f"Did you mean {meant}?" in told) if meant else ("Did you mean" not in told)
