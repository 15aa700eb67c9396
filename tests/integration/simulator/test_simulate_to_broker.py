"""``eroica simulate --bootstrap``: the same messages as in a recording, on real topics."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path

import pytest

from eroica.bus import read_partitions
from eroica.bus.local import EmbeddedBroker, KafkaCluster
from eroica.cli.main import main
from eroica.offline.recording import read_file, read_manifest
from eroica.schemas.settings import KafkaSettings

pytestmark = pytest.mark.integration

TEXT = "name: small\njob: {world: 4}\nfaults: [{fault: slow_gpu_clock, dose: 2}]\nhistory: {before: 4, after: 9}\n"
DEADLINE_S = 100.0


def test_the_topics_hold_what_the_recording_holds(
    broker: EmbeddedBroker | KafkaCluster, prefix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Dated now: a broker deletes by the messages' own time.
    now = f"start: '{datetime.now(timezone.utc).isoformat(timespec='seconds')}'\n"
    scenario = tmp_path / "small.yaml"
    scenario.write_text(TEXT + now)
    assert main(["simulate", str(scenario), "--out", str(tmp_path / "rec")]) == 0
    capfd.readouterr()
    assert main(["simulate", str(scenario), "--bootstrap", broker.bootstrap, "--prefix", prefix, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["messages"]
    wanted: dict[str, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
    manifest = read_manifest(tmp_path / "rec")
    for entry in manifest.files:
        wanted[entry.topic] += [(r.key, r.value) for r in read_file(tmp_path / "rec", entry)]
    assert told == {topic: len(rows) for topic, rows in wanted.items()}
    settings = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    for topic, rows in wanted.items():
        assert sorted(_read(settings, topic, len(rows)), key=repr) == sorted(rows, key=repr)


def _read(settings: KafkaSettings, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """The first *count* records of *topic*, or what came by the deadline."""
    seen: list[tuple[bytes | None, bytes | None]] = []
    until = time.monotonic() + DEADLINE_S
    for batch in read_partitions(settings, topic, stop=lambda: len(seen) >= count or time.monotonic() > until):
        seen.extend((record.key, record.value) for record in batch)
    return seen
