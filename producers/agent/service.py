"""``eroica agent``: from settings to a running agent, and from a signal to its end."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

from eroica.bus import check_broker
from eroica.bus.probe import parse_address
from eroica.producers.agent.agent import Agent
from eroica.producers.hook.identity import host_name
from eroica.producers.hook.wire import runtime_dir as default_runtime_dir
from eroica.schemas.errors import BrokerError
from eroica.schemas.settings import EroicaSettings, KafkaSettings

_log = logging.getLogger(__name__)


def run_agent(settings: EroicaSettings, *, host: str | None, runtime_dir: Path | None) -> int:
    """Run one host's agent until SIGTERM or SIGINT; returns 0.

    A broker that cannot be reached is said once, with what to do, and waited for: messages are kept on disk meanwhile. Must be
    called in the main thread for the signals to be heard.

    :param host: this host's name; default ``EROICA_HOST``, else the machine's own.
    :param runtime_dir: folder of the sockets; default ``EROICA_RUNTIME_DIR``, else a folder of this user under the system's
        temporary one.
    :raises UsageError: another agent serves the directory, a directory cannot be used, or the bootstrap address is none.
    """
    stop = threading.Event()
    # The client reports every attempt to reconnect; an outage is said once, by the outbox and the readers.
    logging.getLogger("eroica.bus.librdkafka").setLevel(logging.CRITICAL)
    name = host or host_name(os.environ, socket.gethostname())
    for address in settings.kafka.bootstrap.split(","):
        parse_address(address)
    _allow_descriptors()
    agent = Agent(settings, name, runtime_dir or default_runtime_dir())
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=_say_if_unreachable, args=(settings.kafka,), name="eroica-check", daemon=True).start()
    with suppress(KeyboardInterrupt):
        agent.run(stop)
    return 0


def _allow_descriptors() -> None:
    """Each training process's ring takes one; the usual soft limit of 1,024 is far below the hard one."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def _say_if_unreachable(settings: KafkaSettings) -> None:
    try:
        check_broker(settings)
    except BrokerError as error:
        _log.error("%s. Messages are kept on disk until it is there", error)
