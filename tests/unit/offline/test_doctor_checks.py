"""The doctor's rules: each finding with what to do."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from eroica.offline import doctor
from eroica.offline.check import Check
from eroica.offline.doctor import (
    agent_socket,
    clock,
    datagram_queue,
    examine,
    gpu_figures,
    network_figures,
    open_files,
    own_playbook,
    package,
    shared_memory,
    stack_dumps,
)
from eroica.offline.running import SERVICES, say_services
from eroica.schemas.settings import load_settings

pytestmark = pytest.mark.unit

PTRACE = 1 << 19


@pytest.mark.parametrize(
    ("scope", "capabilities", "py_spy", "level"),
    [
        ("0", PTRACE, "/x/py-spy", "ok"),
        ("1", PTRACE, "/x/py-spy", "ok"),
        (None, PTRACE, "/x/py-spy", "ok"),
        ("1", 0, "/x/py-spy", "bad"),
        ("2", 0, "/x/py-spy", "bad"),
        ("3", PTRACE, "/x/py-spy", "bad"),
        ("0", PTRACE, None, "hint"),
    ],
)
def test_stack_dumps(scope: str | None, capabilities: int, py_spy: str | None, level: str) -> None:
    found = stack_dumps(scope, capabilities, py_spy)
    assert found.level == level
    assert bool(found.do) is (level != "ok")


@pytest.mark.parametrize(("value", "level"), [("10", "hint"), ("512", "ok"), (None, "hint"), ("x", "hint")])
def test_datagram_queue(value: str | None, level: str) -> None:
    assert datagram_queue(value).level == level


@pytest.mark.parametrize(("limit", "level"), [(256, "hint"), (4_096, "ok"), (-1, "ok")])
def test_open_files(limit: int, level: str) -> None:
    assert open_files(limit).level == level


def test_a_folder_for_traces(tmp_path: Path) -> None:
    assert shared_memory(str(tmp_path / "absent")).level == "bad"
    assert shared_memory(str(tmp_path)).level in ("ok", "hint")


def test_an_agent_that_listens(tmp_path: Path) -> None:
    assert agent_socket(tmp_path).level == "hint"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "agent.sock"))
        assert agent_socket(tmp_path).level == "ok"
    os.unlink(tmp_path / "agent.sock")  # noqa: PTH108


def test_where_figures_of_hardware_come_from(tmp_path: Path) -> None:
    assert network_figures(tmp_path).level == "hint"
    (tmp_path / "class/net/ens1/device").mkdir(parents=True)
    (tmp_path / "class/net/ens1/speed").write_text("100000\n")
    (tmp_path / "class/net/ens1/operstate").write_text("up\n")
    assert network_figures(tmp_path) == Check("network figures", "ok", "read for 1 device")
    missing = gpu_figures("http://127.0.0.1:1/metrics")
    assert (missing.level, "cannot be read" in missing.found) == ("bad", True)
    here = gpu_figures("")
    assert here.level in ("ok", "hint") and bool(here.do) is (here.level == "hint")


def test_packages() -> None:
    assert package("pytest", "").level == "ok"
    assert package("no-such-package", "install it").do == "install it"


def test_all_is_looked_at_even_without_a_broker() -> None:
    names = [check.name for check in examine(load_settings(["kafka.bootstrap=127.0.0.1:1"]))]
    assert names[0] == "broker"
    assert {"stack dumps", "trace storage", "datagram queue", "open files", "clock", "agent", "torch"} <= set(names)
    assert clock().name == "clock"


def test_ones_own_playbook_is_read_before_the_localizer_reads_it(tmp_path: Path) -> None:
    assert own_playbook("").level == "ok"
    (tmp_path / "mine.yaml").write_text("signatures:\n  - {fault: x}\n")
    found = own_playbook(str(tmp_path))
    assert found.level == "bad"
    assert "mine.yaml:2: signatures[0]" in found.found


@pytest.mark.parametrize(("compiled", "level"), [(True, "ok"), (False, "hint")])
def test_the_trace_scanner_is_told(monkeypatch: pytest.MonkeyPatch, compiled: bool, level: str) -> None:
    monkeypatch.setattr(doctor, "COMPILED", compiled)
    check = doctor.trace_scanner()
    assert check.level == level
    assert compiled or "compiler" in check.do


ALL = frozenset(SERVICES)


@pytest.mark.parametrize(
    ("found", "silent_s", "level", "says"),
    [
        (frozenset(), None, "hint", "the broker sees no detect and no group and no localize under p."),
        (frozenset({"group"}), None, "hint", "no detect and no localize under p.; group runs"),
        (ALL, None, "ok", "detect, group, localize run, as the broker sees them"),
        (ALL, 1.2, "ok", "; detect last spoke 1 s ago"),
        (ALL, -3.0, "ok", "; detect last spoke 0 s ago"),
        (ALL, 74.0, "hint", "; detect last spoke 74 s ago"),
        (ALL, 290.0, "hint", "; detect last spoke 4 min ago"),
    ],
)
def test_what_is_said_of_the_services(found: frozenset[str], silent_s: float | None, level: str, says: str) -> None:
    check = say_services(found, "p.", silent_s)
    assert check.level == level
    assert says in check.found
    assert bool(check.do) == (level == "hint")
