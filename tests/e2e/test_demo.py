"""The whole product on a real training job: the verdict is right, it replays to the same bytes, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from demo_kit import EROICA, environment, left_behind, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def run_demo(tmp_path: Path, *options: str) -> dict[str, Any]:
    process = subprocess.Popen(
        [*EROICA, "demo", "--json", "--timeout", "800", *options],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, told = process.communicate(timeout=850)
    assert process.returncode == 0, told + out
    assert "Traceback" not in told
    assert left_behind(tmp_path, process.pid) == []
    result: dict[str, Any] = json.loads(out)
    return result


def assert_named(result: dict[str, Any]) -> None:
    """The slowed rank is the culprit, all others wait."""
    verdict = result["verdict"]
    root = verdict["causes"][0]
    assert result["right"] is True
    assert verdict["status"] == "culprit_found"
    assert (root["class"], root["suspects"]["ranks"]) == ("worker", "2")
    assert verdict["waiters"]["ranks"] == "0-1,3"
    assert root["confidence"] >= 0.5
    assert root["evidence"]


def replayed(directory: Path, *options: str) -> bytes:
    done = subprocess.run([*EROICA, "replay", str(directory), "--json", *options], capture_output=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def recorded_verdicts(directory: Path) -> bytes:
    from eroica.offline.recording import read_file, read_manifest

    manifest = read_manifest(directory)
    records = [r for entry in manifest.files if entry.topic == "verdicts" for r in read_file(directory, entry)]
    return b"".join((record.value or b"") + b"\n" for record in records)


def test_slow_data_is_found(tmp_path: Path) -> None:
    result = run_demo(tmp_path, "--fault", "slow-data")
    assert_named(result)
    assert any("read_sample" in function for function in result["verdict"]["causes"][0]["functions"])


def test_a_healthy_job_accuses_nobody(tmp_path: Path) -> None:
    result = run_demo(tmp_path, "--fault", "none")
    verdict = result["verdict"]
    assert verdict["request"]["reason"] == "manual"
    assert verdict["status"] in ("no_fault_found", "insufficient_data")
    assert not any(cause["suspects"]["ranks"] or cause["suspects"]["hosts"] for cause in verdict["causes"])
    assert verdict["coverage"]["received"] == 4


def test_slow_host_on_kafka_is_found_and_replays_to_the_same_bytes(tmp_path: Path, kafka: Any, prefix: str) -> None:
    directory = tmp_path / "recording"
    where = ["--bootstrap", kafka.bootstrap, "--prefix", prefix]
    result = run_demo(tmp_path, "--fault", "slow-host", *where, "--record", str(directory))
    assert_named(result)
    assert any("checksum" in function for function in result["verdict"]["causes"][0]["functions"])
    on_topic = recorded_verdicts(directory)
    assert on_topic
    assert replayed(directory) == on_topic
    for seed in ("1", "2"):
        assert replayed(directory, "--interleave", seed) == on_topic
    states = [json.loads(line)["state"] for line in replayed(directory, "--verify").splitlines()]
    assert set(states) == {"same"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_whatever_ends_it_nothing_stays(tmp_path: Path, number: signal.Signals, code: int) -> None:
    log = tmp_path / "told.txt"
    with log.open("w") as told:
        demo = subprocess.Popen([*EROICA, "demo", "--json"], env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=told)
    try:
        wait_for(lambda: "detect, group and localize are ready" in log.read_text(), demo)
        below = psutil.Process(demo.pid).children(recursive=True)
        assert len(below) > 6
        demo.send_signal(number)
        assert demo.wait(100) == code
        _, alive = psutil.wait_procs(below, timeout=100)
        assert alive == []
        if number == signal.SIGKILL:
            assert len(list((tmp_path / "scratch").iterdir())) == 2, "its folder and the broker's"
            # That in memory may be gone already: any demo that starts on this machine meanwhile tidies up there.
            another = [*EROICA, "demo", "--bootstrap", "127.0.0.1:1"]  # it gets no further than to tidy up
            assert subprocess.run(another, env={**os.environ, "TMPDIR": str(tmp_path / "scratch")}, check=False).returncode == 4
        assert left_behind(tmp_path, demo.pid) == []
        assert "Traceback" not in log.read_text()
    finally:
        demo.kill()
        for path in Path("/dev/shm").glob(f"eroica-demo-{demo.pid}-*"):
            subprocess.run(["rm", "-rf", str(path)], check=True)
