"""The training processes of this host: hellos, events and goodbyes in; batches of iterations out. Pure.

Times are passed in: ``now_us`` by the wall clock (µs since the epoch), ``mono_ns`` by the monotonic clock, which the hooks read
too.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hello import Hello
from eroica.producers.agent.launches import PROCESS_GONE, SETTLE_NS, SILENT_NS, SILENT_STEPS, Place, Run, Worker
from eroica.producers.hook.wire import EVENT_NAMES, GOODBYE, ITERATION, PROBE, Event
from eroica.schemas.iterations import IterationBatch, RankIterations
from eroica.schemas.outputs import Output
from eroica.schemas.topics import message_key

MAX_WORKERS = 4_096
"""Processes on one host that are followed."""
MAX_PENDING = 20_000
"""Iterations of one rank that may wait for the next batch."""
MAX_EARLY = 256
"""Processes that have sent events but no hello yet (the agent was restarted; their hello follows) …"""
MAX_EARLY_EVENTS = 1_024
"""… and the newest events kept of each."""
ENDED_LINGER_US = 5_000_000
"""A launch whose processes all said goodbye is reported as ended for so long."""
MAX_BATCH_VALUES = 50_000
"""Iterations in one message, below its limit of 1 MB."""


class HostState:
    """Follows the processes of all jobs on one host.

    Invariants: a rank of a launch has one process, the newest; iterations of a rank go out once, in ascending order of steps;
    memory is bounded whatever the datagrams say.
    """

    def __init__(self, host: str, ranks_per_shard: int, counters: Counters) -> None:
        self._host = host
        self._ranks_per_shard = ranks_per_shard
        self._counters = counters
        self._by_pid: dict[int, tuple[Run, Worker]] = {}
        self._early: OrderedDict[int, deque[Event]] = OrderedDict()
        self._seq = 0
        self._last_sent_us = 0
        self.runs: dict[tuple[str, str], Run] = {}

    def hello(self, hello: Hello, now_us: int, mono_ns: int) -> None:
        """A process introduces itself, or says anew who it is."""
        known = self._by_pid.get(hello.pid)
        if known is not None:
            run, worker = known
            same = (run.job, run.run_id, worker.hello.rank) == (hello.job, hello.run_id, hello.rank)
            if same and not worker.ended:
                worker.hello = hello
                worker.settles_ns = min(worker.settles_ns, mono_ns + SETTLE_NS)
                run.world_size = hello.world_size
                return
            self._forget_pid(hello.pid)
        if len(self._by_pid) >= MAX_WORKERS:
            self._counters.add("hellos_over_limit")
            return
        run = self.runs.setdefault(
            (hello.job, hello.run_id), Run(hello.job, hello.run_id, hello.world_size, started_at_us=now_us)
        )
        former = run.workers.get(hello.rank)
        if former is not None:
            self._by_pid.pop(former.hello.pid, None)
        worker = Worker(hello, event_mono_ns=mono_ns, settles_ns=mono_ns + SETTLE_NS)
        run.workers[hello.rank] = worker
        run.over_since_us = 0
        self._by_pid[hello.pid] = (run, worker)
        for event in self._early.pop(hello.pid, ()):
            self.event(event)

    def take_over(self, hello: Hello, started_at_us: int, refused: bool, place: Place, mono_ns: int) -> None:
        """Follow a process that a former agent followed, from *place* on; it may stand still and never say hello again.

        :param started_at_us: of its launch.
        """
        self.hello(hello, started_at_us, place.event_mono_ns)
        known = self._by_pid.get(hello.pid)
        if known is not None:
            run, worker = known
            run.refused = refused
            worker.last_step, worker.last_event = place.last_step, place.last_event
            worker.ended, worker.gone = place.ended, place.gone
            worker.recent_us.extend([int(place.mean_us)] if place.mean_us else [])
            worker.settles_ns = mono_ns + max(SILENT_NS, int(SILENT_STEPS * place.mean_us * 1_000))

    def event(self, event: Event) -> None:
        """One event record."""
        if event.code == PROBE:
            return
        known = self._by_pid.get(event.pid)
        name = EVENT_NAMES.get(event.code)
        if name is None:
            self._counters.add("datagrams_malformed")
            return
        if known is None:
            self._remember_early(event)
            return
        worker = known[1]
        if worker.gone:
            # A process that was thought dead speaks: its pid is out of our sight, or was used again without a hello.
            worker.gone = False
            known[0].over_since_us = 0
        worker.last_event = name
        worker.event_mono_ns = max(worker.event_mono_ns, event.mono_ns)
        if event.code == ITERATION:
            self._iteration(worker, event)
        elif event.code == GOODBYE:
            worker.ended = True

    def hook_counters(self, pid: int, dropped: int) -> None:
        """How many datagrams a hook could not send so far."""
        known = self._by_pid.get(pid)
        if known is not None:
            known[1].dropped = max(known[1].dropped, dropped)

    def gone(self, pid: int) -> None:
        """The process has ended, and no goodbye was heard."""
        known = self._by_pid.get(pid)
        if known is not None and known[1].alive:
            known[1].gone = True
            known[1].last_event = PROCESS_GONE
            self._counters.add("processes_gone_without_goodbye")

    def worker_of(self, pid: int) -> tuple[Run, Worker] | None:
        """The launch and worker of a process."""
        return self._by_pid.get(pid)

    def living_pids(self) -> list[int]:
        """Processes that are thought to run, ascending."""
        return sorted(pid for pid, (_, worker) in self._by_pid.items() if worker.alive)

    def batches(self, now_us: int, mono_ns: int) -> list[Output]:
        """The batches that are due now: one for each launch and shard, also where nothing happened (a sign of life)."""
        outputs: list[Output] = []
        self._end_former()
        for key in sorted(self.runs):
            run = self.runs[key]
            if run.over and not run.over_since_us:
                run.over_since_us = now_us
            if run.refused:
                for worker in run.workers.values():
                    worker.runs, worker.pending = [], 0
            else:
                for shard, ranks in self._shards(run, mono_ns):
                    outputs.append(self._batch(run, shard, ranks, now_us))
            if run.given_up(now_us) or (run.ended and run.over_since_us and now_us - run.over_since_us >= ENDED_LINGER_US):
                self._forget_run(run)
        return outputs

    def _shards(self, run: Run, mono_ns: int) -> Iterator[tuple[int, list[RankIterations]]]:
        """Records of each shard, cut where they would not fit a message; takes the workers' pending iterations."""
        shard, values = -1, 0
        records: list[RankIterations] = []
        for rank in sorted(run.workers):
            worker = run.workers[rank]
            if records and (rank // self._ranks_per_shard != shard or values + worker.pending > MAX_BATCH_VALUES):
                yield shard, records
                records, values = [], 0
            shard = rank // self._ranks_per_shard
            values += worker.pending + 8
            records += _take(rank, worker, mono_ns)
        if records:
            yield shard, records

    def _batch(self, run: Run, shard: int, ranks: list[RankIterations], now_us: int) -> Output:
        # Readers take a batch that is not newer than the host's last one for a repetition.
        sent_at_us = self._last_sent_us = max(now_us, self._last_sent_us + 1)
        self._seq += 1
        batch = IterationBatch(
            job=run.job,
            run_id=run.run_id,
            host=self._host,
            shard=shard,
            ranks_per_shard=self._ranks_per_shard,
            world_size=run.world_size,
            seq=self._seq,
            sent_at_us=sent_at_us,
            ranks=ranks,
            dropped=self._counters.lost + sum(worker.dropped for _, worker in self._by_pid.values()),
        )
        return Output(message_key(run.job, shard), batch, sent_at_us)

    def _iteration(self, worker: Worker, event: Event) -> None:
        if event.step <= worker.last_step:
            self._counters.add("iterations_repeated")
            return
        if worker.pending >= MAX_PENDING:
            self._counters.add("iterations_over_limit")
            return
        duration_us, ended_us = event.duration_ns // 1_000, event.wall_ns // 1_000
        if worker.runs and event.step == worker.last_step + 1:
            first, durations, _ = worker.runs[-1]
            durations.append(duration_us)
            worker.runs[-1] = (first, durations, ended_us)
        else:
            worker.runs.append((event.step, [duration_us], ended_us))
        worker.last_step = event.step
        worker.settles_ns = 0
        worker.pending += 1
        worker.recent_us.append(duration_us)

    def _remember_early(self, event: Event) -> None:
        early = self._early.get(event.pid)
        if early is None:
            if len(self._early) >= MAX_EARLY:
                self._early.popitem(last=False)
                self._counters.add("events_before_hello_dropped")
            early = self._early[event.pid] = deque(maxlen=MAX_EARLY_EVENTS)
        early.append(event)

    def _end_former(self) -> None:
        """A launch that died and was begun anew (as another launch) is over: it does not stand still."""
        newest: dict[str, int] = {}
        for run in self.runs.values():
            if not run.refused:
                newest[run.job] = max(run.started_at_us, newest.get(run.job, 0))
        for run in self.runs.values():
            if run.over and run.started_at_us < newest.get(run.job, 0):
                for worker in run.workers.values():
                    worker.ended = True

    def _forget_pid(self, pid: int) -> None:
        run, worker = self._by_pid.pop(pid)
        if run.workers.get(worker.hello.rank) is worker:
            del run.workers[worker.hello.rank]
        if not run.workers:
            self.runs.pop(run.key, None)

    def _forget_run(self, run: Run) -> None:
        for worker in run.workers.values():
            self._by_pid.pop(worker.hello.pid, None)
        self.runs.pop(run.key, None)


def _take(rank: int, worker: Worker, mono_ns: int) -> list[RankIterations]:
    idle_us = max(0, (mono_ns - worker.event_mono_ns) // 1_000)
    runs = worker.runs or [(0, [], 0)]
    worker.runs, worker.pending = [], 0
    return [
        RankIterations(
            rank=rank,
            first_step=first,
            duration_us=durations,
            ended_at_us=ended_us,
            idle_us=idle_us,
            last_event=worker.last_event,
            ended=worker.ended,
        )
        for first, durations, ended_us in runs
    ]
