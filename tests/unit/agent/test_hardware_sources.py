"""Sources of hardware figures, each through the same reader as on a host that has the hardware."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pynvml
import pytest
from hardware_kit import DCGM_PAGE, NODE_PAGE, Gpu, RecordedAmd, RecordedNvml, rdma, write_sysfs

from eroica.producers.agent import exporters
from eroica.producers.agent.amd import AmdSource, pcie_generation
from eroica.producers.agent.cgroups import CgroupSource
from eroica.producers.agent.ethtool import Statistics
from eroica.producers.agent.exporters import DCGM, NODE, ExporterSource, fetch_page, parse
from eroica.producers.agent.nics import NicSource
from eroica.producers.agent.nvml import NvmlSource
from eroica.producers.agent.pci import PciSource
from eroica.producers.agent.readings import Absent, Reading

pytestmark = pytest.mark.unit
NOBODY: frozenset[int] = frozenset()


def table(readings: Iterator[Reading] | list[Reading]) -> dict[tuple[str, str], float]:
    return {(r.name, r.device): r.value for r in readings}


def test_nvml_tells_of_each_gpu() -> None:
    nvml = RecordedNvml(
        [Gpu(pids=(10,), tx_kib=2**20), Gpu(clock=900, reasons=0x48 | 0x4, temperature=91, width=4, links_up=9, pids=(11, 99))]
    )
    told = table(NvmlSource(nvml).read(frozenset({10, 11})))
    assert (told["sm_clock", "gpu0"], told["sm_clock", "gpu1"]) == (1980, 900)
    assert [told[name, "gpu1"] for name in ("sm_throttle", "throttle_thermal", "throttle_power")] == [1, 1, 1]
    assert [told[name, "gpu0"] for name in ("sm_throttle", "throttle_thermal", "throttle_power")] == [0, 0, 0]
    assert told["gpu_power", "gpu0"] == 350 and told["gpu_temperature", "gpu1"] == 91
    assert (told["pcie_width", "gpu1"], told["pcie_gen", "gpu1"], told["nvlink_active", "gpu1"]) == (4, 5, 0.5)
    assert (told["gpu_foreign_processes", "gpu0"], told["gpu_foreign_processes", "gpu1"]) == (0, 1)
    assert told["nvlink_tx", "gpu0"] == pytest.approx(1.0737, abs=1e-3)


def test_where_no_process_of_the_job_is_seen_none_is_called_a_stranger() -> None:
    source = NvmlSource(RecordedNvml([Gpu(pids=(4_000_001,))]))
    assert not [r for r in source.read(frozenset({7})) if r.name == "gpu_foreign_processes"]


def test_what_a_gpu_does_not_support_is_asked_for_once_and_the_rest_goes_on() -> None:
    nvml = RecordedNvml([Gpu(temperature=None, ecc=None, links=0), Gpu()])
    source = NvmlSource(nvml)
    for _ in range(5):
        told = table(source.read(NOBODY))
    assert ("gpu_temperature", "gpu0") not in told and told["gpu_temperature", "gpu1"] == 55
    assert nvml.asked["temperature", 0] == 1 and nvml.asked["temperature", 1] == 5
    assert ("nvlink_active", "gpu0") not in told


def test_a_lost_gpu_tells_nothing_and_may_come_back() -> None:
    nvml = RecordedNvml([Gpu(lost=True), Gpu()])
    source = NvmlSource(nvml)
    assert {device for _, device in table(source.read(NOBODY))} == {"gpu0", "gpu1"}  # gpu0's only figure are its Xids
    assert ("sm_clock", "gpu0") not in table(source.read(NOBODY))
    nvml.gpus[0].lost = False
    assert table(source.read(NOBODY))["sm_clock", "gpu0"] == 1980


def test_xids_are_counted_by_gpu() -> None:
    nvml = RecordedNvml([Gpu(), Gpu()])
    source = NvmlSource(nvml)
    nvml.xids = [1, 1]
    told = table(source.read(NOBODY))
    assert (told["gpu_xid_errors", "gpu0"], told["gpu_xid_errors", "gpu1"]) == (0, 2)


def test_the_slow_questions_go_round() -> None:
    nvml = RecordedNvml([Gpu(), Gpu()])
    source = NvmlSource(nvml)
    for _ in range(4):
        list(source.read(NOBODY))
    assert nvml.asked["throughput", 0] == nvml.asked["throughput", 1] == 4  # two directions, every other time


def test_the_recorded_library_asks_what_the_real_one_answers() -> None:
    for name, method in inspect.getmembers(RecordedNvml, inspect.isfunction):
        if name.startswith("nvml"):
            real = inspect.signature(getattr(pynvml, name))
            assert len(inspect.signature(method).parameters) - 1 <= len(real.parameters), name


def test_the_real_binding_without_a_driver_is_an_absent_source() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(Absent, match="NVML cannot be used"):
            NvmlSource()
    else:
        assert table(NvmlSource().read(NOBODY))


def test_without_the_binding_the_source_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Absent, match="extra 'gpu'"):
        NvmlSource()


def test_amd_tells_what_it_knows() -> None:
    told = table(AmdSource(RecordedAmd()).read(frozenset({100, 101})))
    assert (told["sm_clock", "gpu0"], told["sm_clock", "gpu1"]) == (2100, 1200)
    assert (told["sm_throttle", "gpu0"], told["sm_throttle", "gpu1"]) == (0, 1)
    assert (told["gpu_power", "gpu0"], told["gpu_power_limit", "gpu0"], told["pcie_gen", "gpu0"]) == (600, 750, 5)
    assert ("ecc_corrected", "gpu0") not in told and told["ecc_corrected", "gpu1"] == 4
    assert told["gpu_foreign_processes", "gpu1"] == 1


def test_amd_without_rocm_is_absent() -> None:
    with pytest.raises(Absent):
        AmdSource()


@pytest.mark.parametrize(("rate", "generation"), [(2.5, 1), (8.0, 3), (16.0, 4), (32.0, 5), (64.0, 6), (10.0, 0)])
def test_pcie_generations(rate: float, generation: int) -> None:
    assert pcie_generation(rate) == generation


def test_rdma_ports(tmp_path: Path) -> None:
    files = rdma("mlx5_0", port_xmit_data=500_000_000, roce_adp_retrans=3, local_ack_timeout_err=4, symbol_error=9, pcie=8)
    files |= (
        rdma("mlx5_1", rate="10 Gb/sec (1X SDR)", state="1: DOWN")
        | rdma("mlx5_2", 1)
        | rdma("mlx5_2", 2, rate="200 Gb/sec (4X HDR)")
    )
    told = table(NicSource(write_sysfs(tmp_path, files)).read(NOBODY))
    assert (told["nic_link", "mlx5_0"], told["nic_width", "mlx5_0"], told["nic_link", "mlx5_2/2"]) == (400, 4, 200)
    assert told["nic_tx", "mlx5_0"] == 2.0  # words of four bytes
    assert (told["nic_retransmits", "mlx5_0"], told["nic_symbol_errors", "mlx5_0"]) == (7, 9)
    assert (told["nic_pcie_width", "mlx5_0"], told["nic_pcie_speed", "mlx5_0"]) == (8, 32)
    assert ("nic_link", "mlx5_1") not in told and told["nic_active", ""] == 0.75


def test_a_port_that_goes_down_while_the_agent_runs_has_no_rate_left(tmp_path: Path) -> None:
    source = NicSource(write_sysfs(tmp_path, rdma("mlx5_0")))
    assert table(source.read(NOBODY))["nic_link", "mlx5_0"] == 400
    write_sysfs(tmp_path, rdma("mlx5_0", state="1: DOWN"))
    assert table(source.read(NOBODY))["nic_link", "mlx5_0"] == 0


def test_ethernet_interfaces_with_the_drivers_own_statistics(tmp_path: Path) -> None:
    place = "class/net/ens1"
    files: dict[str, object] = {f"{place}/speed": 100_000, f"{place}/operstate": "up", f"{place}/device/vendor": "0x15b3"}
    files |= {f"{place}/statistics/{n}": v for n, v in (("tx_bytes", 3_000_000_000), ("rx_bytes", 1), ("rx_crc_errors", 5))}
    files |= {"class/net/docker0/speed": 10, "class/net/lo/operstate": "unknown"}
    driver = {
        "rx_prio3_pause": 10,
        "rx_prio4_pause": 5,
        "tx_prio3_pause": 2,
        "rx_discards_phy": 8,
        "rx_packets": 9_999,
        "rx_crc_errors_phy": 1,
    }
    told = table(NicSource(write_sysfs(tmp_path, files), lambda _name: lambda: driver).read(NOBODY))
    assert (told["nic_link", "ens1"], told["nic_tx", "ens1"]) == (100, 3.0)
    assert (told["nic_rx_pfc_pause", "ens1"], told["nic_tx_pfc_pause", "ens1"], told["nic_rx_discards", "ens1"]) == (15, 2, 8)
    assert told["nic_crc_errors", "ens1"] == 6
    assert {device for _, device in told} == {"ens1"}


def test_files_that_cannot_be_read_or_hold_something_else_are_left_out(tmp_path: Path) -> None:
    files = rdma("mlx5_0")
    files |= {
        "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "N/A (no PMA)",
        "class/infiniband/mlx5_0/ports/1/rate": "",
    }
    root = write_sysfs(tmp_path, files)
    (root / "class/infiniband/mlx5_0/ports/1/counters/symbol_error").unlink()
    (root / "class/infiniband/mlx5_0/ports/1/counters/symbol_error").mkdir()
    told = table(NicSource(root).read(NOBODY))
    assert not {("nic_tx", "mlx5_0"), ("nic_link", "mlx5_0"), ("nic_symbol_errors", "mlx5_0")} & set(told)
    assert told["nic_rx", "mlx5_0"] == 0


def test_hosts_without_devices(tmp_path: Path) -> None:
    for source in (NicSource, PciSource):
        with pytest.raises(Absent):
            source(tmp_path)


def test_links_of_accelerators_from_sysfs(tmp_path: Path) -> None:
    files: dict[str, object] = {}
    for address, kind, width in (
        ("0000:18:00.0", "0x030200", 16),
        ("0000:2a:00.0", "0x030200", 8),
        ("0000:01:00.0", "0x020700", 16),
    ):
        place = f"bus/pci/devices/{address}"
        files |= {f"{place}/class": kind, f"{place}/current_link_width": width, f"{place}/current_link_speed": "32.0 GT/s PCIe"}
    told = table(PciSource(write_sysfs(tmp_path, files)).read(NOBODY))
    assert told == {
        ("pcie_width", "0000:18:00.0"): 16, ("pcie_gen", "0000:18:00.0"): 5,
        ("pcie_width", "0000:2a:00.0"): 8, ("pcie_gen", "0000:2a:00.0"): 5,
    }  # fmt: skip


def test_the_kernel_answers_for_an_interface_that_is_there_and_not_for_others() -> None:
    assert Statistics("no-such-interface-at-all").read() == {}
    for net in Path("/sys/class/net").iterdir():
        assert all(isinstance(value, int) for value in Statistics(net.name).read().values())


VERSION_2 = {
    "proc/7/cgroup": "0::/kubepods/pod1/main", "proc/8/cgroup": "0::/kubepods/pod1/main", "proc/9/cgroup": "0::/../outside",
    "cg/kubepods/pod1/main/cgroup.procs": "7",
    "cg/kubepods/pod1/main/cpu.stat": "usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000",
    "cg/kubepods/pod1/main/memory.current": 750, "cg/kubepods/pod1/main/memory.max": 1000,
    "cg/kubepods/pod1/main/cpu.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=4000000\nfull avg10=0.00 total=1",
    "cg/kubepods/pod1/main/memory.pressure": "not supported",
}  # fmt: skip
VERSION_1 = {
    "proc/7/cgroup": "9:name=systemd:/x\n4:memory:/job\n3:cpu,cpuacct:/job\n0::/", "cg/cpu,cpuacct/job/cgroup.procs": "7",
    "cg/cpu,cpuacct/job/cpu.stat": "nr_periods 1\nnr_throttled 1\nthrottled_time 1500000000", "cg/memory/job/cgroup.procs": "7",
    "cg/memory/job/memory.usage_in_bytes": 10, "cg/memory/job/memory.limit_in_bytes": 9223372036854771712,
}  # fmt: skip
IN_A_CONTAINER = {
    "proc/7/cgroup": "0::/docker/0123/main", "cg/cgroup.procs": "7", "cg/cpu.stat": "throttled_usec 1000000",
    "cg/memory.max": "max",
}  # fmt: skip


@pytest.mark.parametrize(
    ("files", "told"),
    [
        pytest.param(
            VERSION_2, {("cpu_throttled", "main"): 2.5, ("job_mem_used", "main"): 0.75, ("job_cpu_pressure", "main"): 4.0}, id="2"
        ),
        pytest.param(VERSION_1, {("cpu_throttled", "job"): 1.5}, id="1, without a limit of memory"),
        pytest.param(IN_A_CONTAINER, {("cpu_throttled", "main"): 1.0}, id="2, the container's own group mounted as the root"),
        pytest.param({"cg/x": 1, "proc/7/cgroup": "nonsense"}, {}, id="nonsense"),
    ],
)
def test_control_groups_of_the_job(tmp_path: Path, files: dict[str, object], told: dict[tuple[str, str], float]) -> None:
    write_sysfs(tmp_path, files)
    assert table(CgroupSource(tmp_path / "proc", tmp_path / "cg").read(frozenset({7, 8, 9, 10}))) == told


def test_control_groups_of_this_process_are_read_without_an_error() -> None:
    try:
        source = CgroupSource()
    except Absent:
        pytest.skip("this host shows no control groups")
    assert all(r.value >= 0 for r in source.read(frozenset({os.getpid(), 2**22 + 1})))


def test_a_dcgm_page() -> None:
    told = table(ExporterSource("http://x", DCGM, lambda _url: DCGM_PAGE).read(NOBODY))
    assert (told["sm_clock", "gpu0"], told["sm_clock", "gpu1"], told["throttle_power", "gpu1"]) == (1980, 1200, 5.0)
    assert (round(told["nvlink_tx", "gpu0"]), told["gpu_temperature", "gpu1"], told["gpu_xid_errors", "gpu1"]) == (60, 88, 0)


def test_another_xid_than_before_is_an_event() -> None:
    pages = iter([DCGM_PAGE, DCGM_PAGE.replace('"79"} 0', '"79"} 79'), DCGM_PAGE.replace('"79"} 0', '"79"} 79')])
    source = ExporterSource("http://x", DCGM, lambda _url: next(pages))
    assert [table(source.read(NOBODY))["gpu_xid_errors", "gpu1"] for _ in range(2)] == [1, 1]


def test_a_node_exporters_page() -> None:
    told = table(ExporterSource("http://x", NODE, lambda _url: NODE_PAGE).read(NOBODY))
    assert told == {
        ("cpu_steal_cores", ""): 13.0, ("mem_pressure", ""): 3.25, ("nic_link", "mlx5_0"): 400.0, ("nic_rx_errors", "eth0"): 7.0,
    }  # fmt: skip


def test_a_page_of_somebody_else_is_an_absent_source() -> None:
    with pytest.raises(Absent, match="none of the figures"):
        ExporterSource("http://x", DCGM, lambda _url: "<html>welcome</html>")


@pytest.mark.parametrize(
    "page",
    ["", "\x00" * 1_000, "a" * 5_000_000, "m{" + 'a="b",' * 100_000 + "} 1", 'm{a="' + "\\" * 4_000 + '"} 1',
     "m 1e999\nm -Inf\n", "m{} x\n" * 1_000],
    ids=["empty", "zeros", "one word", "labels", "backslashes", "infinite", "no numbers"],
)  # fmt: skip
def test_hostile_pages_cost_little(page: str) -> None:
    assert all(isinstance(value, float) for _, _, value in parse(page))


class Page(BaseHTTPRequestHandler):
    """What the path asks for."""

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()
            return
        if self.path == "/broken":
            self.wfile.write(b"no http at all\r\n\r\n")
            return
        self.send_response(200 if self.path == "/metrics" else 500)
        self.end_headers()
        self.wfile.write(DCGM_PAGE.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # A page that is there is waited for, however busy the machine is.
    monkeypatch.setattr(exporters, "TIMEOUT_S", 100.0)
    monkeypatch.setattr(exporters, "WHOLE_S", 100.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def test_a_page_over_http(server: str) -> None:
    assert table(ExporterSource(f"{server}/metrics", DCGM).read(NOBODY))["sm_clock", "gpu1"] == 1200


@pytest.mark.parametrize("place", ["/moved", "/broken", "/failing"])
def test_what_is_no_page_is_said(server: str, place: str) -> None:
    with pytest.raises(Absent, match="cannot be read"):
        ExporterSource(server + place, DCGM)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://h/x", "gopher://h", "http://", "nonsense"])
def test_only_http_is_asked(url: str) -> None:
    with pytest.raises(ValueError, match="not an http address"):
        fetch_page(url)


def test_a_page_without_end_is_given_up(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "MAX_BYTES", 100)
    with pytest.raises(Absent, match="larger than 100 bytes"):
        ExporterSource(f"{server}/metrics", DCGM)
