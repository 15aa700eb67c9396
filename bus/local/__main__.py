"""``python -m eroica.bus.local``: Apache Kafka or the embedded broker until Ctrl-C, its address on standard output."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from eroica.bus.local.embedded import EmbeddedBroker
from eroica.bus.local.kafka_jars import KafkaCluster
from eroica.schemas.errors import EroicaError

HELP = """Run a Kafka broker on this machine, for trying things, until Ctrl-C. Its address, bootstrap=HOST:PORT, goes to standard
output. Apache Kafka needs Java 17 and Maven, and fetches its jars the first time."""
EXAMPLE = "Example: python -m eroica.bus.local --embedded --port 9092"

LOOK_S = 0.5
"""Between two looks at the broker's processes."""


def _port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"a port is 1 to 65535, not {text[:40]}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """Run a broker until SIGINT or SIGTERM; returns the exit code: 1 where the broker itself ended."""
    parser = argparse.ArgumentParser(prog="python -m eroica.bus.local", description=HELP, epilog=EXAMPLE)
    parser.add_argument(
        "--embedded", action="store_true", help="a small broker without Java, all in memory (needs the extra broker), not Kafka"
    )
    parser.add_argument("--port", type=_port, metavar="PORT", help="where clients connect, of the first broker; by default free")
    parser.add_argument("--nodes", type=int, metavar="N", default=1, help="brokers of the Kafka cluster, 1 to 9; default 1")
    parser.add_argument("--data", type=Path, metavar="DIR", help="Kafka's data, kept there; by default they go at the end")
    options = parser.parse_args(arguments)
    if options.embedded and (options.nodes != 1 or options.data is not None):
        parser.error("--embedded is one broker in memory: leave --nodes and --data out")
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    try:
        broker: EmbeddedBroker | KafkaCluster
        if options.embedded:
            broker = EmbeddedBroker(port=options.port)
        else:
            print("starting Apache Kafka (the first time its jars are fetched) ...", file=sys.stderr, flush=True)
            broker = KafkaCluster(options.nodes, port=options.port, data=options.data)
        with broker:
            print(f"bootstrap={broker.bootstrap}", flush=True)
            print("Ctrl-C ends it", file=sys.stderr, flush=True)
            return _serve(broker, options.nodes, end)
    except EroicaError as error:
        print(f"eroica: {error}", file=sys.stderr)
        return error.exit_code


def _serve(broker: EmbeddedBroker | KafkaCluster, nodes: int, end: threading.Event) -> int:
    """Until *end*, or until no majority of the *nodes* is left, without which Kafka does nothing. Returns the exit code."""
    told: set[str] = set()
    while not end.wait(LOOK_S):
        gone = broker.gone
        for what in gone:
            if what not in told:
                print(f"eroica: {what}", file=sys.stderr, flush=True)
        told.update(gone)
        if 2 * (nodes - len(gone)) <= nodes:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
