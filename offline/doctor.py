"""Looking at an installation: each check says that all is well, or what to do."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from eroica.bus import check_broker, ensure_topics
from eroica.localizer.playbook import load_playbook
from eroica.offline.check import Check
from eroica.offline.running import services
from eroica.producers.agent.amd import AmdSource
from eroica.producers.agent.exporters import DCGM, ExporterSource
from eroica.producers.agent.nics import NicSource
from eroica.producers.agent.nvml import NvmlSource
from eroica.producers.agent.readings import Absent
from eroica.producers.hook.wire import runtime_dir
from eroica.producers.trace.compiled import COMPILED
from eroica.schemas.errors import EroicaError, extra_missing, install_extra
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.wording import say_count

MIN_SHM_BYTES = 1 << 30
"""A trace of one GPU rank can take 100 MB and more; eight of them wait to be read at once."""
MIN_DATAGRAM_QUEUE = 64
"""Events that may wait for an agent that is busy; some kernels allow only ten."""
MIN_FILES = 1_024
_CAP_SYS_PTRACE = 19
_TIME_ERROR = 5
_PROC = Path("/proc/sys")


def examine(settings: EroicaSettings) -> Iterator[Check]:
    """All checks, as they are done; none raises."""
    yield from broker_and_topics(settings)
    probes: tuple[Callable[[], Check], ...] = (
        lambda: stack_dumps(_read(_PROC / "kernel/yama/ptrace_scope"), _capabilities(), find_py_spy()),
        lambda: shared_memory(settings.agent.trace_directory),
        lambda: datagram_queue(_read(_PROC / "net/unix/max_dgram_qlen")),
        lambda: open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        clock,
        lambda: gpu_figures(settings.agent.dcgm_url),
        lambda: network_figures(Path("/sys")),
        lambda: agent_socket(runtime_dir()),
        lambda: own_playbook(settings.localize.playbook_dir),
        trace_scanner,
        lambda: package("torch", f"training hosts need it: {extra_missing('torch')}"),
        lambda: package("faust-streaming", f"detect and group need it: {extra_missing('streams')}"),
    )
    for probe in probes:
        yield probe()


def own_playbook(folder: str) -> Check:
    """Are the files of one's own playbook right?"""
    book = load_playbook(folder)
    if book.problems:
        return Check("playbook", "bad", "; ".join(book.problems[:5]), "mend the files; until then they are left out")
    return Check("playbook", "ok", f"{len(book.signatures)} signatures, digest {book.digest}")


def gpu_figures(dcgm_url: str) -> Check:
    """Can the agent read clocks, throttling and errors of the GPUs?"""
    if dcgm_url:
        try:
            ExporterSource(dcgm_url, DCGM)
        except Absent as absent:
            return Check("GPU figures", "bad", str(absent), "mend agent.dcgm_url, or leave it out to ask the driver")
        return Check("GPU figures", "ok", f"from {dcgm_url}")
    reasons = []
    for vendor, source in (("NVIDIA", NvmlSource), ("AMD", AmdSource)):
        try:
            source()
        except Absent as absent:
            reasons.append(f"{vendor}: {absent}")
        else:
            return Check("GPU figures", "ok", f"from the {vendor} driver")
    return Check(
        "GPU figures",
        "hint",
        "; ".join(reasons),
        f"hosts with GPUs need it: the driver, and for NVIDIA {install_extra('gpu')}",
    )


def network_figures(sys: Path) -> Check:
    """Can the agent read links and counters of the network devices?"""
    try:
        found = len({reading.device for reading in NicSource(sys).read(frozenset()) if reading.device})
    except Absent as absent:
        return Check("network figures", "hint", str(absent), "in a container: mount /sys, and run in the host's network")
    return Check("network figures", "ok", f"read for {say_count(found, 'device')}")


def broker_and_topics(settings: EroicaSettings) -> Iterator[Check]:
    """Is the broker there, and are its topics as the table wants them?"""
    try:
        info = check_broker(settings.kafka)
    except EroicaError as error:
        yield Check("broker", "bad", f"{error.where}: {error.what}", error.do)
        return
    yield Check("broker", "ok", f"{len(info.brokers)} at {', '.join(info.brokers[:3])}")
    try:
        changes = [change for change in ensure_topics(settings.kafka, dry_run=True) if change.action != "keep"]
    except EroicaError as error:
        yield Check("topics", "bad", f"{error.where}: {error.what}", error.do)
        return
    if changes:
        missing = f"{say_count(len(changes), 'topic is', 'topics are')} missing or not as wanted, first: {changes[0]}"
        yield Check("topics", "bad", missing, f"eroica topics ensure --prefix {settings.kafka.prefix}")
    else:
        yield Check("topics", "ok", f"all there under {settings.kafka.prefix}")
    yield services(settings)


def stack_dumps(ptrace_scope: str | None, capabilities: int, py_spy: str | None) -> Check:
    """May an agent here look at the stacks of a stuck training process?"""
    name = "stack dumps"
    if py_spy is None:
        return Check(name, "hint", "py-spy is not installed", f"hosts with an agent need it: {extra_missing('agent')}")
    scope = int(ptrace_scope) if ptrace_scope and ptrace_scope.isdigit() else 0
    may = bool(capabilities >> _CAP_SYS_PTRACE & 1)
    if scope >= 3:
        return Check(
            name, "bad", "the kernel forbids ptrace to everybody (ptrace_scope 3)", "boot with kernel.yama.ptrace_scope=1"
        )
    if scope >= 1 and not may:
        advice = "give the agent the capability SYS_PTRACE, or: sysctl -w kernel.yama.ptrace_scope=0"
        return Check(name, "bad", f"ptrace_scope is {scope} and this process lacks SYS_PTRACE", advice)
    if not may and os.geteuid() != 0:
        return Check(
            name, "hint", "only processes of this user can be looked at", "run the agent as the job's user, or with SYS_PTRACE"
        )
    return Check(name, "ok", "py-spy is there and may look at processes")


def shared_memory(directory: str) -> Check:
    """Is there memory-backed storage for traces?"""
    name = "trace storage"
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        return Check(name, "bad", f"{directory}: {error.strerror}", "name another folder with agent.trace_directory")
    if not os.access(directory, os.W_OK):
        return Check(name, "bad", f"{directory} cannot be written", "name another folder with agent.trace_directory")
    gib = f"{usage.free / 2**30:.1f} GiB free in {directory}"
    if usage.free < MIN_SHM_BYTES:
        return Check(name, "hint", gib, "in a container give more with --shm-size=2g")
    return Check(name, "ok", gib)


def datagram_queue(value: str | None) -> Check:
    """How many events may wait between a training process and the agent?"""
    name = "datagram queue"
    if value is None or not value.isdigit():
        return Check(name, "hint", "net.unix.max_dgram_qlen cannot be read here")
    if int(value) < MIN_DATAGRAM_QUEUE:
        advice = "events may be dropped while the agent is busy: sysctl -w net.unix.max_dgram_qlen=512"
        return Check(name, "hint", f"net.unix.max_dgram_qlen is {value}", advice)
    return Check(name, "ok", f"net.unix.max_dgram_qlen is {value}")


def open_files(limit: int) -> Check:
    """May a service open as many connections as it needs?"""
    if 0 <= limit < MIN_FILES:
        return Check("open files", "hint", f"limit {limit}", f"ulimit -n {MIN_FILES}")
    return Check("open files", "ok", f"limit {limit if limit >= 0 else 'none'}")


def clock() -> Check:
    """Is this host's clock kept right? Times of different hosts are compared within seconds only, never within a step."""
    name = "clock"
    if sys.platform != "linux":
        return Check(name, "hint", "cannot tell on this system", "keep the hosts' clocks within a second (NTP)")
    timex = (ctypes.c_long * 64)()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        return Check(name, "hint", "the kernel does not tell", "keep the hosts' clocks within a second (NTP)")
    if state == _TIME_ERROR:
        return Check(name, "hint", "nobody keeps this clock right, says the kernel", "run chrony or ntpd on the host")
    return Check(name, "ok", f"kept right, at most {timex[3] / 1e3:.0f} ms off")


def agent_socket(directory: Path) -> Check:
    """Does an agent listen on this host?"""
    path = directory / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return Check("agent", "hint", f"none listens at {path}", "training hosts need one: eroica agent")
    return Check("agent", "ok", f"listens at {path}")


def trace_scanner() -> Check:
    """Are traces read by the compiled scanner?"""
    if COMPILED:
        return Check("trace scanner", "ok", "compiled, as it should be")
    return Check(
        "trace scanner",
        "hint",
        "not compiled: traces are read by Python, several times slower",
        "install with a C compiler at hand",
    )


def package(name: str, do: str) -> Check:
    """Is an optional package installed?"""
    try:
        return Check(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "hint", "not installed", do)


def find_py_spy() -> str | None:
    """The py-spy program: on the path, or beside this Python."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def _capabilities() -> int:
    text = _read(Path("/proc/self/status")) or ""
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
