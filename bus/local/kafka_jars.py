"""Apache Kafka on a local JVM: one KRaft node or several, on ports and in a folder of its own, gone when the context ends."""

from __future__ import annotations

import base64
import contextlib
import shutil
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from eroica.bus.local.children import Child, launch_or_stop
from eroica.bus.local.jars import data_file, ensure_jars, find_java
from eroica.bus.local.ports import LOOPBACK, free_ports, require_free
from eroica.bus.probe import check_broker
from eroica.schemas.errors import BrokerError, UsageError
from eroica.schemas.settings import KafkaSettings

START_TIMEOUT_S = 180.0
"""3 s on a quiet machine; one that does much else has taken twenty times as long."""
FORMAT_TIMEOUT_S = 180.0
MAX_NODES = 9

_JVM = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A small heap and a quick start (3 s) matter more here than throughput."""


@dataclass
class _Node:
    number: int
    port: int
    controller_port: int
    folder: Path
    child: Child | None = None


class KafkaCluster:
    """*nodes* brokers, each also a controller. Replication 3 and two in-sync replicas where there are three.

    Kafka 4 semantics throughout: transactions, compaction, retention. Start it from a thread that outlives it: on Linux the nodes
    die with the thread that started them.
    """

    def __init__(self, nodes: int = 1, *, port: int | None = None, data: Path | None = None) -> None:
        """Prepare a cluster.

        :param port: first client port; node *n* takes ``port + 2(n-1)`` and the one after it. Free ones when absent.
        :param data: folder for everything, kept at the end; a temporary one, removed at the end, when absent.
        :raises UsageError: a number of nodes that makes no sense.
        """
        if not 1 <= nodes <= MAX_NODES:
            raise UsageError(f"{nodes} nodes are not between 1 and {MAX_NODES}", where="--nodes")
        if port is not None and not 0 < port <= 65_535 - 2 * nodes:
            raise UsageError(f"{port} is not a port with room for {nodes} nodes", where="--port")
        self._count = nodes
        self._wish = port
        self._keep = data
        self._nodes: list[_Node] = []
        self._folder: Path | None = None
        self._java = ""
        self._classpath = ""

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every node, comma separated."""
        return ",".join(f"{LOOPBACK}:{node.port}" for node in self._nodes)

    @property
    def pids(self) -> list[int]:
        """Process ids of the nodes that run."""
        return [node.child.pid for node in self._nodes if node.child is not None and node.child.alive]

    @property
    def gone(self) -> list[str]:
        """The nodes that do not run any more, each in words."""
        return [end for node in self._nodes if node.child is not None and (end := node.child.end)]

    def start(self) -> KafkaCluster:
        """Start all nodes; returns when each is known to the cluster.

        :raises MissingDependency: no Java 17, or the jars are not cached and there is no Maven.
        :raises UsageError: a wished port is taken.
        :raises BrokerError: a node does not come up; with the end of its log.
        """
        self._java = find_java()
        self._classpath = f"{ensure_jars()}/*"
        launch_or_stop(self._launch, self.stop, again=self._wish is None)
        return self

    def stop(self) -> None:
        """End all nodes and remove the temporary folder; may be called again."""
        for node in self._nodes:
            if node.child is not None:
                # Nothing here is worth a controlled shutdown, which waits for the other controllers.
                node.child.kill()
        self._nodes = []
        if self._folder is not None and self._keep is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def kill_node(self, number: int) -> None:
        """SIGKILL node *number* (from 1): a crash, its data stays."""
        child = self._node(number).child
        if child is not None:
            child.kill()

    def restart_node(self, number: int, *, wait: bool = True) -> None:
        """Start node *number* again with its old data and ports; with *wait*, return when the whole cluster knows it."""
        node = self._node(number)
        if node.child is None or not node.child.alive:
            self._run(node)
        if wait:
            self._await([node])

    def __enter__(self) -> KafkaCluster:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _node(self, number: int) -> _Node:
        return self._nodes[number - 1]

    def _launch(self) -> None:
        self._folder = self._keep or Path(tempfile.mkdtemp(prefix="eroica-kafka-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        for index in range(self._count):
            if self._wish is None:
                first = free_ports(2)
                ports = (first, first + 1)
            else:
                ports = (self._wish + 2 * index, self._wish + 2 * index + 1)
                for port in ports:
                    require_free(port)
            self._nodes.append(_Node(index + 1, *ports, self._folder / f"node-{index + 1}"))
        (self._folder / "log4j2.properties").write_text(data_file("log4j2.properties"), encoding="utf-8")
        self._format()
        for node in self._nodes:
            self._run(node)
        self._await(self._nodes)

    def _format(self) -> None:
        """Write each node's storage, all at once: each is a JVM of two seconds. A folder that was formatted before stays."""
        assert self._folder is not None
        known = self._folder / "cluster-id"
        if not known.exists():
            known.write_text(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="), encoding="utf-8")
        running: list[tuple[_Node, subprocess.Popen[str]]] = []
        for node in self._nodes:
            node.folder.mkdir(exist_ok=True)
            (node.folder / "server.properties").write_text(self._properties(node), encoding="utf-8")
            arguments = [
                "format",
                "-t",
                known.read_text("utf-8"),
                "-c",
                str(node.folder / "server.properties"),
                "--ignore-formatted",
            ]
            command = self._command("kafka.tools.StorageTool", *arguments)
            running.append((node, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)))
        for node, process in running:
            try:
                said, _ = process.communicate(timeout=FORMAT_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                for _, other in running:
                    other.kill()
                raise BrokerError("Kafka's storage was not formatted in time", where=str(node.folder)) from error
            if process.returncode != 0:
                raise BrokerError("Kafka's storage cannot be formatted", where=str(node.folder), do=said.strip()[-500:])

    def _run(self, node: _Node) -> None:
        node.child = Child(
            f"Kafka node {node.number}",
            self._command("kafka.Kafka", str(node.folder / "server.properties")),
            log=node.folder / "server.log",
        )

    def _await(self, nodes: list[_Node]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in nodes:
            assert node.child is not None
            settings = KafkaSettings(bootstrap=f"{LOOPBACK}:{node.port}", connect_timeout_ms=2_000)
            running = {f"{LOOPBACK}:{other.port}" for other in self._nodes if other.child is not None and other.child.alive}
            node.child.wait_listening(node.port, max(1.0, deadline - time.monotonic()), partial(_knows, settings, running))

    def _command(self, main: str, *arguments: str) -> list[str]:
        logs = f"-Dlog4j2.configurationFile={self._folder}/log4j2.properties"
        return [self._java, *_JVM, logs, "-cp", self._classpath, main, *arguments]

    def _properties(self, node: _Node) -> str:
        copies = min(3, self._count)
        in_sync = max(1, copies - 1)
        voters = ",".join(f"{other.number}@{LOOPBACK}:{other.controller_port}" for other in self._nodes)
        values: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": node.number,
            "listeners": f"PLAINTEXT://{LOOPBACK}:{node.port},CONTROLLER://{LOOPBACK}:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{node.port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": voters,
            "log.dirs": node.folder / "data",
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            "share.coordinator.state.topic.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1_000,
            "auto.create.topics.enable": "false",
        }
        return "".join(f"{name}={value}\n" for name, value in values.items())


def _knows(settings: KafkaSettings, brokers: set[str]) -> bool:
    with contextlib.suppress(BrokerError):
        return brokers <= set(check_broker(settings).brokers)
    return False
