"""The messages of a simulated job, in the order of their event times: the same that real agents and services send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from eroica.schemas.control import SIMULATED, Mode, ProfileRequest, Reason
from eroica.schemas.ids import stable_id
from eroica.schemas.jobs import JobAnnouncement, Layout, ProcessGroup, RankInfo
from eroica.schemas.outputs import Output
from eroica.schemas.ranks import RankArray, format_ranks
from eroica.schemas.summaries import CloseClass, Expectation, SummaryError
from eroica.schemas.topics import message_key
from eroica.simulator.channels import Channels
from eroica.simulator.effects import Effects, FloatArray
from eroica.simulator.engine import Run
from eroica.simulator.hangs import stack_evidence
from eroica.simulator.identities import Identities
from eroica.simulator.iterations import Timeline, batches
from eroica.simulator.problem import ScenarioError
from eroica.simulator.simulation import Simulation
from eroica.simulator.summaries import SummaryMaker, Window

__all__ = ["Emission", "messages"]

DEFAULT_START = "2026-01-01T00:00:00Z"
JOIN_US = 5_000_000
"""From the announcements to the first iteration."""
LEAD_STEPS = 4
"""Steps between a request and the start of its profile."""
IDLE_US = 30_000_000
"""A job that hangs has been silent for so long when it is asked for stacks."""
ITERATION_SIGMA = 0.004


@dataclass(frozen=True)
class _Fates:
    """What happens to the messages of each rank; masks of shape (world,)."""

    missing: RankArray
    failing: RankArray
    late: RankArray
    again: RankArray
    late_start: RankArray
    truncated: RankArray
    clock_us: FloatArray


def messages(simulation: Simulation) -> Iterator[Output]:
    """All messages of the job. Deterministic; memory does not grow with the number of messages."""
    return Emission(simulation).all()


class Emission:
    """Turns a simulation into messages."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._work, self._scenario = simulation.work, simulation.scenario
        self._start_us = _parse_time(self._scenario.start)
        self._fates = self._draw()
        self._run: Run | None = None if simulation.hang else simulation.run_broken()
        self._calm: Run | None = simulation.run_healthy() if self._needs_healthy() else None
        self._timeline = self._iterations()
        history = self._scenario.history
        first = history.before + max(LEAD_STEPS, history.after - simulation.steps)
        self.request = self._request(self._scenario.profile.reason, first, "stacks" if simulation.hang else "profile")
        self.baseline = self._request("manual", history.before // 2, "profile") if history.baseline else None

    def all(self) -> Iterator[Output]:
        """Everything."""
        yield from self.announcements()
        yield from self._interleaved()
        if self.baseline is not None and self._calm is not None:
            yield from self.profile(self.baseline, self._calm, self._sim.healthy)
        if self._sim.hang is not None:
            yield from self._stacks()
        elif self._run is not None:
            yield from self.profile(self.request, self._run, self._sim.broken)

    def announcements(self) -> Iterator[Output]:
        """Each host's part of the job. A process group is told by the host of its smallest member."""
        work, job = self._work, self._scenario.job
        channels = Channels(work, 1, 1)
        by_host: dict[int, list[ProcessGroup]] = {}
        for leader, group in channels.process_groups():
            by_host.setdefault(int(work.hosts.host_of[leader]), []).append(group)
        coords = work.layout.coordinates()
        members = work.hosts.by_host()
        framework = work.layout.framework
        sizes = {k: int(v) for k, v in job.sizes.items() if isinstance(v, int) and k != "order"}
        for host, ranks in enumerate(members):
            clock = int(self._fates.clock_us[ranks[0]])
            message = JobAnnouncement(
                job=job.name,
                run_id=self._sim.run_id,
                host=work.hosts.names[host],
                world_size=work.world,
                ranks=[
                    RankInfo(
                        rank=r,
                        local_rank=int(work.hosts.rail_of[r]),
                        pid=20_000 + int(work.hosts.rail_of[r]),
                        device=work.devices[r],
                        coords={a: int(v[r]) for a, v in coords.items()},
                    )
                    for r in ranks.tolist()
                ],
                process_groups=by_host.get(host, []),
                layout=None if framework == "custom" else Layout(framework=framework, sizes=sizes, order=work.layout.order),
                framework=framework,
                launcher="torchrun",
                started_at_us=self._start_us + clock,
                announced_at_us=self._start_us + clock,
            )
            yield Output(message_key(job.name, message.host), message, self._start_us)

    def profile(self, request: ProfileRequest, run: Run, effects: Effects) -> Iterator[Output]:
        """Summaries of *run*, class by class, and what closes a class that stays incomplete."""
        maker = SummaryMaker(self._sim.engine, run, effects, request, self._sim.seed)
        begin = self._start_us + JOIN_US + self._timeline.begin_us(request.start_step)
        last_us = int(begin + run.step_us.sum(axis=1).max())
        for name in sorted(request.classes):
            ranks = self._work.classes[name]
            key = message_key(request.job, request.request, name)
            fates = self._fates
            for stage in (~fates.late[ranks], fates.late[ranks]):
                yield from self._answers(maker, ranks[stage], key, begin, run.steps)
            if fates.missing[ranks].any():
                close = CloseClass(job=request.job, request=request.request, cls=name, closed_by="idle")
                yield Output(key, close, last_us + 25_000_000)

    def _answers(self, maker: SummaryMaker, ranks: RankArray, key: str, begin: float, steps: int) -> Iterator[Output]:
        fates = self._fates
        there = ranks[~fates.missing[ranks]]
        plain = there[~fates.failing[there]]
        for rank in there[fates.failing[there]].tolist():
            error = SummaryError(
                who=maker.identities.of(rank), error="the trace is cut", ended_at_us=int(begin + fates.clock_us[rank])
            )
            yield Output(key, error, error.ended_at_us)
        lead = np.minimum(fates.late_start[plain], steps - 1)
        tail = np.minimum(fates.truncated[plain], steps - 1 - lead)
        for first in np.unique(lead).tolist():
            for cut in np.unique(tail[lead == first]).tolist():
                mine = plain[(lead == first) & (tail == cut)]
                for summary in maker.summaries(mine, Window(first, steps - cut), fates.clock_us, begin):
                    output = Output(key, summary, summary.ended_at_us)
                    yield output
                    if fates.again[summary.who.rank]:
                        yield output

    def _stacks(self) -> Iterator[Output]:
        hang, request, fates = self._sim.hang, self.request, self._fates
        if hang is None:
            return
        maker = Identities(self._work, request)
        at = request.issued_at_us + 2_000_000
        for name in sorted(request.classes):
            key = message_key(request.job, request.request, name)
            for rank in self._work.classes[name][~fates.missing[self._work.classes[name]]].tolist():
                clock = int(fates.clock_us[rank])
                evidence = stack_evidence(hang, maker.of(rank), request.start_step, at + clock, IDLE_US + 2_000_000)
                yield Output(key, evidence, evidence.ended_at_us)
            if fates.missing[self._work.classes[name]].any():
                yield Output(key, CloseClass(job=request.job, request=request.request, cls=name, closed_by="idle"), at + IDLE_US)

    def _interleaved(self) -> Iterator[Output]:
        """Iterations, with the requests and the opening of their classes where they fall."""
        asked = [r for r in (self.baseline, self.request) if r is not None]
        history = self._scenario.history
        marks: dict[int, dict[str, int]] = {}
        for pause in self._sim.broken.pauses:
            if pause.what == "checkpoint":
                for k in np.flatnonzero(pause.us.any(axis=0)).tolist():
                    marks[self.request.start_step + k] = {"checkpoint": self.request.start_step + k}
        stream = batches(
            self._work,
            self._sim.run_id,
            self._timeline,
            start_us=self._start_us + JOIN_US,
            clock_us=self._fates.clock_us,
            marks={k: v for k, v in marks.items() if k < history.before + history.after},
            seed=self._sim.seed,
            stuck=self._sim.hang,
            silent_us=IDLE_US if self._sim.hang is not None else 0,
        )
        for output in stream:
            while asked and asked[0].issued_at_us <= output.event_time_us:
                yield from _opening(asked.pop(0))
            yield output
        for request in asked:
            yield from _opening(request)

    def _iterations(self) -> Timeline:
        """Durations of all iterations; those that are profiled take what the profile says."""
        history, steps = self._scenario.history, self._sim.steps
        rng = np.random.default_rng([self._sim.seed, 8])
        calm = self._sim.healthy_step_us if self._calm is None else self._calm.step_us.mean(axis=0)
        before = rng.choice(np.atleast_1d(calm), history.before) * np.exp(ITERATION_SIGMA * rng.standard_normal(history.before))
        if self._run is None:
            return Timeline(before)
        slow = self._run.step_us.mean(axis=0)
        after = rng.choice(slow, history.after) * np.exp(ITERATION_SIGMA * rng.standard_normal(history.after))
        if history.after >= steps + LEAD_STEPS:
            after[-steps:] = slow
        return Timeline(np.concatenate((before, after)))

    def _needs_healthy(self) -> bool:
        return self._scenario.history.baseline or self._scenario.history.before > 0

    def _request(self, reason: Reason, start_step: int, mode: Mode) -> ProfileRequest:
        work, profile, job = self._work, self._scenario.profile, self._scenario.job.name
        stacks = mode == "stacks"
        classes = {name: format_ranks(work.classes[name]) for name in sorted(work.classes)}
        issue_step = max(0, start_step - LEAD_STEPS)
        issued = self._start_us + JOIN_US + self._timeline.begin_us(self._scenario.history.before if stacks else issue_step)
        reason = "blocked" if stacks else reason
        return ProfileRequest(
            request=stable_id("req", job, self._sim.run_id, reason, start_step),
            job=job,
            run_id=self._sim.run_id,
            reason=reason,
            mode=mode,
            start_step=self._scenario.history.before if stacks else start_step,
            steps=0 if stacks else profile.steps,
            world_size=work.world,
            classes=classes,
            topology_source="coordinates",
            issued_at_us=int(issued) + (IDLE_US if stacks else 0),
            deadline_ms=profile.deadline_ms,
            detail=SIMULATED,
            figures=self._figures(reason, issue_step),
        )

    def _figures(self, reason: Reason, issue_step: int) -> dict[str, float]:
        """What detect would tell of a degradation: the mean iteration with the fault, up to the request, and before."""
        before, took = self._scenario.history.before, self._timeline.duration_us
        if reason != "degradation" or before == 0 or issue_step <= before:
            return {}
        return {"observed_us": float(took[before:issue_step].mean()), "baseline_us": float(took[:before].mean())}

    def _draw(self) -> _Fates:
        nuisance, work = self._scenario.nuisance, self._work
        rng = np.random.default_rng([self._sim.seed, 9])

        def share(p: float) -> RankArray:
            return np.asarray(rng.random(work.world) < p)

        missing, failing, late, again = (share(p) for p in (nuisance.missing, nuisance.errors, nuisance.late, nuisance.duplicate))
        late_start = share(nuisance.late_start) * rng.integers(1, 3, work.world)
        truncated = share(nuisance.truncated) * 1
        offset = rng.uniform(-1, 1, len(work.hosts.names)) * nuisance.clock_offset_s * 1e6
        return _Fates(missing, failing, late, again, late_start, truncated, offset[work.hosts.host_of])


def _opening(request: ProfileRequest) -> Iterator[Output]:
    """The request, and the expectations that group writes from it."""
    yield Output(message_key(request.job), request, request.issued_at_us)
    names = sorted(request.classes)
    for name in names:
        expectation = Expectation(cls=name, ranks=request.classes[name], classes=names, request=request)
        yield Output(message_key(request.job, request.request, name), expectation, request.issued_at_us)


def _parse_time(text: str) -> int:
    try:
        moment = datetime.fromisoformat((text or DEFAULT_START).replace("Z", "+00:00"))
    except ValueError as error:
        raise ScenarioError(f"{text[:40]!r} is not a time", "start", do="write e.g. 2026-01-01T00:00:00Z") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return int(moment.timestamp() * 1e6)
