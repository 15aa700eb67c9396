"""The agent's main loop: one thread decides, the others only bring it what happened."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eroica.bus import BusProducer, Incoming, cloudevent_headers
from eroica.producers.agent.announce import Announcer, Row
from eroica.producers.agent.answers import Answers
from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hello import parse_hello
from eroica.producers.agent.hoststate import HostState
from eroica.producers.agent.liveness import ProcessWatch
from eroica.producers.agent.outbox import Outbox
from eroica.producers.agent.profiles import parse_profiled
from eroica.producers.agent.readers import ControlReader, JobsLookup
from eroica.producers.agent.remembered import Remembered
from eroica.producers.agent.requests import RequestFilter
from eroica.producers.agent.server import DatagramServer, Directory, hook_listens
from eroica.producers.agent.spool import open_spool
from eroica.producers.agent.spoolrecord import Record
from eroica.producers.hook.wire import Event, unpack
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import InvalidInput, MessageTooLarge, SchemaError
from eroica.schemas.outputs import Output
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.wording import say_count

_log = logging.getLogger(__name__)

TICK_S = 0.1
"""Longest wait without anything to do; whatever arrives ends it."""
LIVENESS_NS = 1_000_000_000
COUNTERS_NS = 60_000_000_000
TIDY_NS = 30_000_000_000
DRAIN_S = 5.0
"""At a stop: for what is being summarised, and again for what is to be sent."""
MAX_INBOX = 2_000
"""Batches of datagrams that may wait for the main loop."""
MAX_TOLD = 256
OUR_MISTAKES = (ArithmeticError, LookupError, TypeError, AttributeError, ValueError)
"""What input from outside may still raise where we erred. The agent outlives it: other jobs depend on it, and a request on
``control`` would meet the next agent too."""


class Agent:
    """One host's agent, from :meth:`run` to its return.

    Everything is decided in the thread that runs it; other threads put calls into its inbox.
    """

    def __init__(
        self,
        settings: EroicaSettings,
        host: str,
        directory: Path,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        mono_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Take the runtime directory and open the spool.

        :raises UsageError: another agent serves the directory, or it or the folder for traces cannot be used.
        """
        self._settings = settings
        self._host = host
        self._wall_ns = wall_ns
        self._mono_ns = mono_ns
        self._directory = Directory(directory)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._overflow = 0
        """Datagrams given up by the server's thread, which alone writes it."""
        self._told: set[str] = set()
        self._life = wall_ns() // 1_000
        agent = settings.agent
        self._counters = Counters()
        self._producer = BusProducer(settings.kafka, f"eroica-agent-{host}")
        self._outbox = Outbox(open_spool(directory / "spool", agent.spool_max_bytes), self._producer, self._counters)
        self._state = HostState(host, agent.ranks_per_shard, self._counters)
        self._watch = ProcessWatch(lambda pid: hook_listens(directory, pid))
        self._remembered = Remembered(directory)
        self._taken_over = self._remembered.take_over(self._state, self._watch, mono_ns())
        self._announcer = Announcer(host, agent.announce_interval_ms * 1_000)
        self._filter = RequestFilter(self._counters)
        self._server = DatagramServer(directory, self._on_datagrams)
        self._answers = Answers(
            agent, host, self._state, self._announcer, self._server, self._counters, self._inbox.put, self._send_raw
        )
        self._due = dict.fromkeys(("batch", "liveness", "tidy"), mono_ns())
        self._due["counters"] = mono_ns() + COUNTERS_NS

    def run(self, stop: threading.Event) -> None:
        """Serve until *stop* is set, then send what is left, for a few seconds at most."""
        kafka = self._settings.kafka
        name = f"eroica-agent-{self._host}"
        control = ControlReader(
            kafka, name, self._wall_ns() // 1_000_000, lambda batch: self._inbox.put(lambda: self._on_control(batch))
        )
        lookup = JobsLookup(kafka, name, lambda jobs, rows: self._inbox.put(lambda: self._on_rows(jobs, rows)))
        _log.info(
            "agent of host %s listens in %s; %d messages wait on disk", self._host, self._directory.path, self._outbox.pending
        )
        if self._taken_over:
            _log.info("%s goes on from the agent before", say_count(self._taken_over, "training process", "training processes"))
        try:
            while not stop.is_set():
                self._turn(lookup)
        finally:
            self._finish(control, lookup)

    def _turn(self, lookup: JobsLookup) -> None:
        self._take_in(TICK_S)
        now = self._mono_ns()
        if now >= self._due["liveness"]:
            self._due["liveness"] = now + LIVENESS_NS
            for pid in self._watch.gone(self._state.living_pids()):
                self._part_with(pid)
        if now >= self._due["batch"]:
            self._due["batch"] = now + self._settings.agent.batch_interval_ms * 1_000_000
            self._report(lookup)
        if now >= self._due["tidy"]:
            self._due["tidy"] = now + TIDY_NS
            self._answers.tidy()
            self._tidy_rings()
        if now >= self._due["counters"]:
            self._due["counters"] = now + COUNTERS_NS
            self._log_counters()
        self._answers.tick(self._now_us(), self._mono_ns())
        self._outbox.pump(now)

    def _part_with(self, pid: int) -> None:
        """A process runs no more: first what its ring still holds (perhaps a goodbye), then its end."""
        self._server.farewell(pid, lambda: self._inbox.put(lambda: self._state.gone(pid)))

    def _tidy_rings(self) -> None:
        """Give up the rings of processes that have ended or were never followed."""
        for pid in self._server.ring_pids():
            known = self._state.worker_of(pid)
            if (known is None or not known[1].alive) and not hook_listens(self._directory.path, pid):
                self._server.farewell(pid, lambda: None)

    def _take_in(self, wait_s: float) -> None:
        """Wait for the first call, then do all that are there."""
        try:
            self._inbox.get(timeout=wait_s)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            return

    def _report(self, lookup: JobsLookup) -> None:
        # Together: a reader takes the time without an event from the time of the batch.
        now_us, mono_ns = self._now_us(), self._mono_ns()
        runs = self._state.runs
        self._counters.add("datagrams_over_limit", self._overflow - self._counters["datagrams_over_limit"])
        self._counters.add("rings_refused", self._server.refused - self._counters["rings_refused"])
        outputs = self._announcer.due(runs, now_us)
        for error in self._announcer.errors:
            _log.error("%s", error)
        self._announcer.errors.clear()
        for output in [*outputs, *self._state.batches(now_us, mono_ns)]:
            self._send(output)
        self._remembered.save(runs, self._watch)
        if not lookup.busy:
            wanted = self._announcer.jobs_to_look_up(runs.values(), now_us)
            if wanted:
                lookup.start(wanted)

    def _finish(self, control: ControlReader, lookup: JobsLookup) -> None:
        deadline = self._mono_ns() + int(DRAIN_S * 1e9)
        self._server.close()
        control.close()
        lookup.close()
        while self._answers.summarising and self._mono_ns() < deadline:
            self._take_in(TICK_S)
            self._outbox.pump(self._mono_ns())
        self._take_in(0)
        self._answers.close(self._now_us())
        now_us = self._now_us()
        for output in [*self._announcer.due(self._state.runs, now_us), *self._state.batches(now_us, self._mono_ns())]:
            self._send(output)
        deadline = self._mono_ns() + int(DRAIN_S * 1e9)
        self._outbox.pump(self._mono_ns())
        while self._outbox.pending and self._mono_ns() < deadline:
            self._producer.flush(TICK_S)
            self._outbox.pump(self._mono_ns())
        self._producer.close(0.0)
        lost = self._outbox.close()
        left = self._outbox.pending - lost
        self._log_counters()
        if lost:
            _log.error("%d messages are lost: neither the broker nor the disk took them", lost)
        if left:
            _log.warning("%d messages stay on disk for the next agent in %s", left, self._directory.path)
        self._directory.release()

    def _on_datagrams(self, datagrams: list[bytes]) -> None:
        """Runs in the server's thread."""
        if self._inbox.qsize() >= MAX_INBOX:
            self._overflow += len(datagrams)
            return
        self._inbox.put(lambda: self._take_datagrams(datagrams))

    def _take_datagrams(self, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            message = unpack(datagram)
            try:
                if isinstance(message, Event):
                    self._state.event(message)
                elif message is None or not self._on_message(message):
                    self._counters.add("datagrams_malformed")
            except OUR_MISTAKES as error:
                self._survive(error, "a datagram")

    def _on_message(self, message: dict[str, Any]) -> bool:
        kind = message.get("kind")
        if kind == "hello":
            try:
                hello = parse_hello(message)
            except InvalidInput as error:
                self._counters.add("hellos_refused")
                self._tell(str(error))
                return True
            self._state.hello(hello, self._now_us(), self._mono_ns())
            self._watch.met(hello.pid)
            return True
        if kind == "profiled":
            profiled = parse_profiled(message)
            if profiled is not None:
                self._answers.profiled(profiled, self._now_us())
            return profiled is not None
        if kind == "counters":
            pid, dropped = message.get("pid"), message.get("dropped")
            sound = isinstance(pid, int) and isinstance(dropped, int) and 0 <= dropped < 2**53
            if isinstance(pid, int) and isinstance(dropped, int) and sound:
                self._state.hook_counters(pid, dropped)
            return sound
        return False

    def _on_control(self, batch: list[Incoming]) -> None:
        for record in batch:
            try:
                request = decode_as(ProfileRequest, record.value, record.where)
                if self._filter.accept(request, self._now_us()):
                    self._answers.request(request, self._now_us(), self._mono_ns())
            except SchemaError as error:
                # Detect and group read the topic too and put it into the dead letters: once, not once a host.
                self._counters.add("requests_bad")
                self._tell(str(error))
            except OUR_MISTAKES as error:
                self._survive(error, record.where)

    def _survive(self, error: Exception, what: str) -> None:
        self._counters.add("messages_broke_us")
        text = f"{what} broke the agent and is left out: {error!r}"
        if text not in self._told:
            _log.debug("traceback", exc_info=error)
        self._tell(text)

    def _on_rows(self, jobs: frozenset[str], rows: list[Row] | None) -> None:
        if rows is not None:
            self._announcer.looked_up(jobs, rows, self._state.runs)

    def _send(self, output: Output) -> None:
        try:
            raw = encode(output.message)
        except MessageTooLarge as error:
            self._counters.add("messages_too_large")
            self._tell(str(error))
            return
        kind = str(type(output.message).__struct_config__.tag)
        self._send_raw(output.topic, output.key, raw, kind, output.event_time_us)

    def _send_raw(self, topic: str, key: str, raw: bytes, kind: str, event_time_us: int) -> None:
        self._life += 1
        headers = cloudevent_headers(
            event_type=f"io.eroica.{kind}",
            source=f"/agent/{self._host}",
            event_id=f"{self._host}-{self._life}",
            time_ms=event_time_us // 1_000,
        )
        self._outbox.put(Record(topic, key, raw, list(headers)))

    def _tell(self, text: str) -> None:
        """Log a problem that may come again and again: once."""
        if text not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(text)
            _log.error("%s", text)

    def _log_counters(self) -> None:
        bus = self._producer.counters
        line = {
            **{name: count for name, count in self._counters.snapshot().items() if count},
            "processes": len(self._state.living_pids()),
            "pending": self._outbox.pending,
            "delivered": bus.delivered,
            "client_lost": bus.lost,
            "client_refused": bus.refused,
        }
        _log.info("counters %s", json.dumps(line, separators=(",", ":")))

    def _now_us(self) -> int:
        return self._wall_ns() // 1_000
