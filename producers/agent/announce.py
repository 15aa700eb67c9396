"""When a launch is announced on ``jobs``, and when it must not be: two jobs of one name, a shape that contradicts itself. Pure.

Of two launches of one name that are alive at once, the one that began later is refused; the earlier one is not disturbed. A
launch that was just killed looks alive for a moment, so the later one waits until the other speaks again (then it is refused)
or has been silent for two announcement intervals (then it is announced). On one host it waits for the end of the other's
processes, and is refused if they outlive it by :data:`OVERLAP_US`. The launches of a name share a key on each host, so a
launch that lives has the last word: it speaks again after the end of another.

A launch has ended when all of its processes here said goodbye, and also when they were killed and have been gone for a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from eroica.producers.agent.launches import Run
from eroica.schemas.errors import EroicaError
from eroica.schemas.jobs import JobAnnouncement, ProcessGroup, RankInfo
from eroica.schemas.outputs import Output
from eroica.schemas.topics import message_key
from eroica.topology import merge_announcements

OVERLAP_US = 5_000_000
"""A launch that speaks this long after another began is alive beside it; less is clocks that differ, or processes just ending."""
FIRST_LOOK_US = 5_000_000
"""The first announcement waits at most this long for a look at the topic: the broker may be away."""
LOOKS_US = (0, 10_000_000)
"""The topic is looked at when a launch appears, and once more, for two may appear at the same time …"""
LOOK_AGAIN = 3
"""… and so often an announcement interval while another launch holds the name."""

Standing = Literal["unknown", "free", "wait", "refused"]


class Row(NamedTuple):
    """What matters of an announcement on ``jobs``."""

    job: str
    run_id: str
    host: str
    started_at_us: int
    announced_at_us: int
    ended: bool


def row_of(announcement: JobAnnouncement) -> Row:
    """The row of *announcement*."""
    a = announcement
    return Row(a.job, a.run_id, a.host, a.started_at_us, a.announced_at_us, a.ended)


@dataclass
class _Known:
    """What is known of a launch of ours."""

    first_seen_us: int
    looks: int = 0
    looked_at_us: int = 0
    rivals: list[Row] = field(default_factory=list)
    standing: Standing = "unknown"
    announced_at_us: int = 0
    content: JobAnnouncement | None = None
    checked: JobAnnouncement | None = None
    problem: str = ""
    told: str = ""


class Announcer:
    """Decides for each launch on this host. Problems are said once each, in :attr:`errors`."""

    def __init__(self, host: str, interval_us: int) -> None:
        self._host = host
        self._interval_us = interval_us
        self._known: dict[tuple[str, str], _Known] = {}
        self.errors: list[str] = []
        """New problems since the last call of :meth:`due`, one sentence each."""

    def jobs_to_look_up(self, runs: Iterable[Run], now_us: int) -> set[str]:
        """Names whose rows on ``jobs`` should be read now; counts as asked."""
        wanted: set[str] = set()
        for run in runs:
            known = self._known.setdefault(run.key, _Known(now_us))
            if known.standing in ("wait", "refused"):
                due = now_us - known.looked_at_us >= self._interval_us // LOOK_AGAIN
            else:
                due = known.looks < len(LOOKS_US) and now_us - known.first_seen_us >= LOOKS_US[known.looks]
            if due:
                known.looks += 1
                known.looked_at_us = now_us
                wanted.add(run.job)
        return wanted

    def looked_up(self, jobs: Iterable[str], rows: Iterable[Row], runs: Mapping[tuple[str, str], Run]) -> None:
        """The rows of *jobs* as they stand on the topic now."""
        found = list(rows)
        for key, known in self._known.items():
            if key[0] in set(jobs):
                known.rivals = [row for row in found if row.job == key[0] and row.run_id != key[1]]
                if known.standing == "unknown":
                    known.standing = "free"
                # An agent that was restarted must not make its launch younger than it is.
                ours = [row.started_at_us for row in found if (row.job, row.run_id) == key and row.host == self._host]
                run = runs.get(key)
                if run is not None and ours:
                    run.started_at_us = min(run.started_at_us, *ours)

    def due(self, runs: Mapping[tuple[str, str], Run], now_us: int) -> list[Output]:
        """The announcements to send now. Sets ``refused`` of each run."""
        self._known = {key: known for key, known in self._known.items() if key in runs}
        ends: list[Output] = []
        news: list[Output] = []
        for key in sorted(runs):
            run = runs[key]
            if run.refused and run.over:
                continue  # It came and went beside the other: nothing of it is to be told any more.
            known = self._known.setdefault(key, _Known(now_us))
            if known.standing == "unknown" and now_us - known.first_seen_us < FIRST_LOOK_US:
                continue
            known.standing, reason = self._judge(run, known, runs, now_us)
            run.refused = known.standing == "refused"
            given_up = run.given_up(now_us)
            if known.standing == "free" or (known.standing == "wait" and given_up):
                (ends if run.ended or given_up else news).extend(self._announce(run, known, now_us))
            elif known.standing == "refused":
                self._say(known, reason)
                if known.content is not None and not known.content.ended:
                    # It was announced before the other was seen: take it back.
                    ends.append(self._output(msgspec.structs.replace(known.content, ended=True), now_us))
                known.content = None
        return ends + news + self._again({output.key for output in ends}, runs, now_us)

    def problem_of(self, run: Run) -> str:
        """What contradicts itself in the launch's shape; empty if nothing does."""
        known = self._known.get(run.key)
        return known.problem if known is not None else ""

    def _again(self, keys: set[str], runs: Mapping[tuple[str, str], Run], now_us: int) -> list[Output]:
        """Living launches whose word was overwritten: the end of another was just said under one of *keys*."""
        outputs: list[Output] = []
        for key, known in sorted(self._known.items()):
            content = known.content
            if content is None or content.ended or runs[key].over or known.announced_at_us == now_us:
                continue
            if message_key(content.job, self._host) in keys:
                known.announced_at_us = now_us
                outputs.append(self._output(content, now_us))
        return outputs

    def _judge(self, run: Run, known: _Known, runs: Mapping[tuple[str, str], Run], now_us: int) -> tuple[Standing, str]:
        began = (run.started_at_us, run.run_id)
        wait = False
        for other in runs.values():
            earlier = other.job == run.job and other is not run and (other.started_at_us, other.run_id) < began
            if earlier and not other.over:
                if now_us - run.started_at_us > OVERLAP_US:
                    return "refused", _two_jobs(run, self._host, other.run_id, self._host)
                wait = True
        starts: dict[str, int] = {}
        for row in known.rivals:
            starts[row.run_id] = min(row.started_at_us, starts.get(row.run_id, row.started_at_us))
        for row in known.rivals:
            stale = row.ended or now_us - row.announced_at_us >= 2 * self._interval_us
            # Other launches of this very host are known at first hand.
            if stale or (starts[row.run_id], row.run_id) >= began or (row.job, row.run_id) in runs:
                continue
            if row.announced_at_us > run.started_at_us + OVERLAP_US:
                return "refused", _two_jobs(run, self._host, row.run_id, row.host)
            wait = wait or row.host != self._host
        return ("wait" if wait else "free"), ""

    def _announce(self, run: Run, known: _Known, now_us: int) -> list[Output]:
        content = self._content(run, now_us)
        if content != known.checked:
            known.checked = content
            known.problem = _contradiction(run, content)
            if known.problem:
                self._say(known, known.problem)
        if known.problem:
            return []
        again = now_us - known.announced_at_us >= self._interval_us and not run.over
        if content == known.content and not again:
            return []
        if known.content is None and run.over:
            return []
        known.content, known.announced_at_us = content, now_us
        return [self._output(content, now_us)]

    def _content(self, run: Run, now_us: int) -> JobAnnouncement:
        workers = [run.workers[rank] for rank in sorted(run.workers)]
        groups: dict[tuple[str, str, str], ProcessGroup] = {}
        for worker in workers:
            for group in worker.hello.process_groups():
                groups[(group.kind, group.name, group.ranks)] = group
        return JobAnnouncement(
            job=run.job,
            run_id=run.run_id,
            host=self._host,
            world_size=run.world_size,
            ranks=[
                RankInfo(
                    rank=w.hello.rank,
                    local_rank=w.hello.local_rank,
                    pid=w.hello.pid,
                    device=w.hello.device,
                    coords=dict(sorted(w.hello.coords.items())),
                )
                for w in workers
            ],
            process_groups=[groups[key] for key in sorted(groups)],
            framework=next((w.hello.framework for w in workers if w.hello.framework), ""),
            launcher=next((w.hello.launcher for w in workers if w.hello.launcher), ""),
            started_at_us=run.started_at_us,
            ended=run.ended or run.given_up(now_us),
        )

    def _output(self, content: JobAnnouncement, now_us: int) -> Output:
        return Output(message_key(content.job, self._host), msgspec.structs.replace(content, announced_at_us=now_us), now_us)

    def _say(self, known: _Known, text: str) -> None:
        if text and text != known.told:
            known.told = text
            self.errors.append(text)


def _two_jobs(run: Run, host: str, other_run: str, other_host: str) -> str:
    return (
        f"job {run.job}: two launches are alive under one name: {other_run} (on {other_host}) and {run.run_id} (on {host}, began "
        f"later). The later one is not reported. Give each job a name of its own with EROICA_JOB, or end the one left over"
    )


def _contradiction(run: Run, content: JobAnnouncement) -> str:
    """What the launch's own ranks and process groups contradict; empty if nothing."""
    end = "The launch is not announced; training is not touched"
    sizes = sorted({worker.hello.world_size for worker in run.workers.values()})
    if len(sizes) > 1:
        return (
            f"job {run.job}, run {run.run_id}: its processes on host {content.host} name world sizes {sizes[0]} and {sizes[-1]}. "
            f"Check WORLD_SIZE, and give each job a name of its own with EROICA_JOB. {end}"
        )
    try:
        merge_announcements([content])
    except EroicaError as error:
        return f"job {content.job}, run {content.run_id}: {error}. {end}"
    return ""
