"""The socket and the directory around it: one owner, whatever the former one left behind."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.producers.agent.liveness import ProcessWatch
from eroica.producers.agent.server import DatagramServer, Directory, hook_listens
from eroica.producers.hook.sender import Sender
from eroica.schemas.errors import UsageError

pytestmark = pytest.mark.unit


def test_every_datagram_comes_in_order_and_commands_go_back(tmp_path: Path) -> None:
    inbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
    server = DatagramServer(tmp_path, inbox.put)
    sender = Sender(4242, tmp_path, use_ring=False)
    sent = 0
    while sent < 200:
        sent += sender.message({"n": sent}, sent * 10**10)
    got: list[bytes] = []
    while len(got) < 200:
        got += inbox.get(timeout=100)
    assert got == [b'{"n":%d}' % n for n in range(200)]
    assert server.command(4242, {"kind": "profile"}) is True
    assert sender.receive() == {"kind": "profile"}
    assert hook_listens(tmp_path, 4242)
    outcomes = [server.command(4242, {"n": n}) for n in range(10_000)]
    assert outcomes[-1] is False, "a full socket must be told from an absent one"
    sender.close()
    assert server.command(4242, {"kind": "profile"}) is None
    assert not hook_listens(tmp_path, 4242)
    server.close()
    assert not (tmp_path / "agent.sock").exists()


def test_the_socket_of_a_dead_agent_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(tmp_path / "agent.sock"))
    dead.close()
    inbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
    server = DatagramServer(tmp_path, inbox.put)
    Sender(1, tmp_path).message({"a": 1}, 10**10)
    assert inbox.get(timeout=100) == [b'{"a":1}']
    server.close()


def test_a_second_agent_on_one_directory_is_one_clear_error(tmp_path: Path) -> None:
    first = Directory(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    code = (
        "import sys; from pathlib import Path; from eroica.producers.agent.server import Directory\n"
        "from eroica.schemas.errors import UsageError\n"
        "try: Directory(Path(sys.argv[1]))\n"
        "except UsageError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True)
    assert f"pid {os.getpid()}" in said.stdout
    assert str(tmp_path / "run") in said.stdout and "--runtime-dir" in said.stdout
    first.release()
    Directory(tmp_path / "run").release()


def test_a_full_disk_does_not_keep_the_agent_from_starting(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys; from pathlib import Path; from eroica.producers.agent.server import Directory\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "Directory(Path(sys.argv[1])); print('taken')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=False)
    assert done.stdout == "taken\n", done.stderr


@pytest.mark.parametrize("kind", ["too long", "a file", "open to all"])
def test_a_directory_that_will_not_do_is_one_clear_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x" * 90 if kind == "too long" else "run")
    if kind == "a file":
        path.touch()
    if kind == "open to all":
        path.mkdir()
        path.chmod(0o777)
    with pytest.raises(UsageError, match=path.name[:10]):
        Directory(path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link to somebody else")
def test_a_link_that_somebody_else_laid_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir(mode=0o700)
    link = tmp_path / "run"
    link.symlink_to(tmp_path / "precious")
    Directory(link).release()
    os.chown(link, 12_345, 12_345, follow_symlinks=False)
    with pytest.raises(UsageError, match="the link to it, belongs to somebody else"):
        Directory(link)


def test_a_process_is_known_by_its_start_time_and_an_unseen_one_by_its_socket() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    listening = {2**22 + 7}
    watch = ProcessWatch(lambda pid: pid in listening)
    for pid in (child.pid, 2**22 + 7):
        watch.met(pid)
    assert watch.gone([child.pid, 2**22 + 7]) == []
    child.communicate(b"\n")
    listening.clear()
    assert watch.gone([child.pid, 2**22 + 7]) == [child.pid, 2**22 + 7]


def test_a_pid_that_is_used_again_is_not_the_old_process(tmp_path: Path) -> None:
    stat = tmp_path / "77" / "stat"
    stat.parent.mkdir()
    line = "77 (a) b) R 1 1 1 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 {} 1 1\n"
    stat.write_text(line.format(5_000))
    watch = ProcessWatch(lambda _: True, proc=tmp_path)
    watch.met(77)
    assert watch.gone([77]) == []
    stat.write_text(line.format(6_000))
    assert watch.gone([77]) == [77]


def test_sockets_of_dead_processes_are_swept_and_no_others(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(100)
    elsewhere = 4_194_303  # no process here has this id: as one in another container
    held = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for sock, pid in zip(held, (dead.pid, elsewhere), strict=True):
        sock.bind(str(tmp_path / f"hook-{pid}.sock"))
    held[0].close()
    left = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.bind(str(tmp_path / f"hook-{os.getpid()}.sock"))
    left.close()
    (tmp_path / "hook-x.sock").write_text("no number")
    (tmp_path / f"hook-{dead.pid}0000.sock").write_text("too long a number, and no socket")
    directory = Directory(tmp_path)
    assert directory.swept == 1
    assert not (tmp_path / f"hook-{dead.pid}.sock").exists()
    assert (tmp_path / f"hook-{elsewhere}.sock").exists(), "somebody listens there"
    assert (tmp_path / f"hook-{os.getpid()}.sock").exists(), "this process lives"
    assert len(list(tmp_path.glob("hook-*.sock"))) == 4
    directory.release()
    held[1].close()
