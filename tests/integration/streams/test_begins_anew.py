"""A Faust worker that loses its broker for good: the process runs its command again, and goes on when the broker is there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from eroica.bus import ensure_topics
from eroica.bus.local import KafkaCluster
from eroica.bus.local.ports import LOOPBACK
from eroica.schemas.settings import KafkaSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
FAUST = b"eroica-group"
"""The client id of the worker's own connections; what looks at the broker before has others."""
RUN = (
    "import logging, sys; logging.basicConfig(level=logging.INFO); from eroica.schemas.settings import load_settings; "
    "from eroica.streams import service; sys.exit(service.run_group(load_settings()))"
)


class Gate:
    """Passes connections on to a broker, but those of the worker only once it is open."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server((LOOPBACK, 0))
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self.open = False
        self.turned_away = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            first = client.recv(65_536)
            if FAUST in first and not self.open:
                self.turned_away += 1
                return
            with socket.create_connection(self._target) as broker:
                broker.sendall(first)
                threading.Thread(target=_pump, args=(broker, client), daemon=True).start()
                _pump(client, broker)

    def close(self) -> None:
        self._listener.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def gate(kafka: KafkaCluster) -> Iterator[Gate]:
    made = Gate(kafka.bootstrap)
    yield made
    made.close()


def test_a_worker_without_its_broker_begins_anew_until_it_is_there(
    kafka: KafkaCluster, gate: Gate, prefix: str, tmp_path: Path
) -> None:
    ensure_topics(KafkaSettings(bootstrap=kafka.bootstrap, connect_timeout_ms=30_000, prefix=prefix))
    log = tmp_path / "group.log"
    environment = os.environ | {
        "EROICA_KAFKA__BOOTSTRAP": gate.address,
        "EROICA_KAFKA__PREFIX": prefix,
        "EROICA_KAFKA__EXTRA": json.dumps({"session.timeout.ms": "6000"}),
    }
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=file, stderr=file, cwd=tmp_path)
    try:
        until(lambda: log.read_text().count("begins anew") >= 2 or process.poll() is not None, log.read_text)
        assert process.poll() is None, log.read_text()
        assert gate.turned_away >= 2
        assert " ready " not in log.read_text()
        gate.open = True
        until(lambda: "eroica group ready (partitions control: 4, summaries: 16)" in log.read_text(), log.read_text)
        process.terminate()
        assert process.wait(100) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(100)
