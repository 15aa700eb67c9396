"""``python -m eroica.bus.local``: Apache Kafka in the foreground until Ctrl-C, its address on standard output."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from eroica.bus.local.embedded import EmbeddedBroker
from eroica.bus.local.kafka_jars import KafkaCluster
from eroica.schemas.errors import EroicaError


def main(arguments: list[str] | None = None) -> int:
    """Run a broker until SIGINT or SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eroica.bus.local", description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=1, help="brokers of the cluster (1 or 3)")
    parser.add_argument("--port", type=int, help="first client port; free ones when absent")
    parser.add_argument("--data", type=Path, help="folder to keep; a temporary one when absent")
    parser.add_argument("--embedded", action="store_true", help="the embedded broker (no Java, all in memory) instead")
    options = parser.parse_args(arguments)
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
            while not end.wait(1.0):
                pass
    except EroicaError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
