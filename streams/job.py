"""Hop 2 of detect: a job's whole steps are watched, and one request goes out when a rule has fired.

Pure: no clock, no Kafka. Cool-down, budget and silence run on event time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from eroica.schemas.control import ProfileRequest, Reason, checked_classes
from eroica.schemas.errors import SchemaError
from eroica.schemas.iterations import StepPartial
from eroica.schemas.outputs import Output
from eroica.schemas.settings import DetectSettings
from eroica.schemas.topics import message_key
from eroica.streams.merge import JobStep, ShardMerge, check_partial
from eroica.streams.request import comes_in_time, lead, profile_request, profiled_steps
from eroica.streams.rules import Finding, Level, blocked_after_us
from eroica.streams.schedule import RESERVED_REQUESTS, Schedule
from eroica.streams.spikes import Spikes
from eroica.topology.jobview import JobView

MAX_RUNS = 4_096
"""Launches of all jobs that one partition may hold; beyond, the one unheard for longest is forgotten."""
MAX_HELD = 2_000_000
"""Shards and waiting steps of all launches, each some 300 bytes; beyond, the launch unheard for longest is forgotten."""
PROFILE_TAIL_STEPS = 3
"""Steps after a profile that its export may still slow down."""
REQUESTS_REMEMBERED = 64
PROFILE_HEAD_STEPS = 2
"""Steps before a scheduled profile that its preparation may slow down."""
_WEIGHT: dict[Reason, int] = {"scheduled": -1, "spike": 0, "manual": 0, "offline": 0, "degradation": 1, "blocked": 2}
"""The cool-down holds back reasons up to the weight of the request that began it: a stutter must not hide a standstill, and
a scheduled profile hides nothing."""


@dataclass
class JobCounters:
    """What happened, for the log."""

    held_back: int = 0
    """Findings that led to no request because of cool-down or budget."""
    forgotten: int = 0
    """Launches dropped for lack of room."""


class JobCore:
    """Watches jobs; emits :class:`ProfileRequest` messages.

    Guarantees: decisions depend on the partials of each shard in their order, not on how the shards interleave
    (silence excepted: it needs the others' time). A trigger gives the same request, byte for byte, however often it
    is derived; a request id is emitted once. Another ``run_id`` is another life: nothing carries over.
    """

    def __init__(self, settings: DetectSettings) -> None:
        self._settings = settings
        self._runs: OrderedDict[tuple[str, str], _Run] = OrderedDict()
        self._views: dict[str, JobView] = {}
        self._scheduled: OrderedDict[str, ProfileRequest] = OrderedDict()
        """The last scheduled request of jobs that are not watched yet."""
        self._held = 0
        self.counters = JobCounters()

    def feed(self, partial: StepPartial) -> list[Output]:
        """Take in a shard's part of steps.

        :raises InvalidInput: the partial contradicts itself or its job.
        """
        key = (partial.job, partial.run_id)
        run = self._runs.get(key)
        check_partial(partial, run.shape if run is not None else None)
        if run is None:
            run = self._runs[key] = _Run(partial, self._settings, self.counters)
            known = self._scheduled.pop(partial.job, None)
            if known is not None and known.run_id == partial.run_id:
                run.note(known)
        else:
            self._held -= run.held
        self._runs.move_to_end(key)
        requests = run.feed(partial, self._views.get(partial.job))
        self._held += run.held
        while len(self._runs) > MAX_RUNS or (self._held > MAX_HELD and len(self._runs) > 1):
            self._forget_oldest()
        return [Output(key=message_key(r.job), message=r, event_time_us=r.issued_at_us) for r in requests]

    def _forget_oldest(self) -> None:
        (job, _), run = self._runs.popitem(last=False)
        self._held -= run.held
        if job in self._views and all(other != job for other, _ in self._runs):
            self._views.pop(job, None)
        self.counters.forgotten += 1

    def feed_job(self, view: JobView) -> None:
        """What is known of a job now: its comparison classes go into the requests that follow."""
        self._views[view.job] = view

    def feed_request(self, request: ProfileRequest) -> None:
        """A request seen on ``control``, of whatever origin: its profiled steps are innocent, and it starts the cool-down.

        Requests of this core's own come back here too and change nothing.
        """
        run = self._runs.get((request.job, request.run_id))
        if run is None and request.reason != "scheduled":
            return
        with suppress(SchemaError):  # nobody serves it; group puts it into the dead letters
            checked_classes(request)
            if run is not None:
                run.note(request)
                return
            self._scheduled[request.job] = request
            if len(self._scheduled) > MAX_RUNS:
                self._scheduled.popitem(last=False)

    def watches(self, job: str, run_id: str) -> bool:
        """Whether this launch of *job* is watched here."""
        return (job, run_id) in self._runs

    def jobs(self) -> list[str]:
        """Jobs that are watched here, ascending."""
        return sorted({job for job, _ in self._runs})


class _Issued(NamedTuple):
    """What a request holds back."""

    at_us: int
    weight: int
    level_us: float
    """The mean iteration that it was about; 0 if it was about none."""


class _Run:
    """One launch of a job."""

    def __init__(self, first: StepPartial, settings: DetectSettings, counters: JobCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._who = (first.job, first.run_id)
        self.shape = (first.ranks_per_shard, first.world_size)
        self._merge = ShardMerge(first, settings.silence_ms * 1_000)
        self._level = Level(settings)
        self._spikes = Spikes(settings)
        self._schedule = Schedule(settings, *self._who)
        self._steps = 0
        self._last_step = -1
        self._profiled = 0
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._issued: deque[_Issued] = deque(maxlen=REQUESTS_REMEMBERED)
        self._innocent: deque[tuple[int, int]] = deque(maxlen=REQUESTS_REMEMBERED)

    @property
    def held(self) -> int:
        """What memory goes by: see :data:`MAX_HELD`."""
        return self._merge.held

    def feed(self, partial: StepPartial, view: JobView | None) -> list[ProfileRequest]:
        requests: list[ProfileRequest] = []
        for whole in self._merge.feed(partial):
            request = self._step(whole, view)
            if request is not None:
                requests.append(request)
        blocked = self._blocked(view)
        return [*requests, blocked] if blocked is not None else requests

    def note(self, request: ProfileRequest) -> None:
        if not self._remember(request.request):
            return
        scheduled = request.reason == "scheduled"
        if scheduled:
            self._schedule.asked(request.issued_at_us)
            if request.issued_at_us + 1_000 * (request.deadline_ms + request.duration_ms) < self._merge.now_us:
                return  # told after a restart: it is over
        else:
            self._schedule.trouble()
        if not comes_in_time(request, self._last_step, self._level.mean_us):
            return
        about = request.figures.get("observed_us", 0.0) if request.reason == "degradation" else 0.0
        if not scheduled:
            self._issued.append(_Issued(request.issued_at_us, _WEIGHT[request.reason], max(about, 0.0)))
        steps = profiled_steps(request, self._level.mean_us)
        self._profiled += steps
        if steps:
            ahead = lead(self._settings, self._level.mean_us)
            start = request.start_step - PROFILE_HEAD_STEPS if scheduled else min(request.start_step, self._last_step + 1)
            self._innocent.append((start, max(request.start_step, self._last_step + ahead) + steps + PROFILE_TAIL_STEPS))

    def _step(self, whole: JobStep, view: JobView | None) -> ProfileRequest | None:
        self._last_step = whole.step
        self._steps += 1
        while self._innocent and self._innocent[0][1] < whole.step:
            self._innocent.popleft()
        if self._steps <= self._settings.warmup or whole.marked or any(a <= whole.step <= b for a, b in self._innocent):
            return None
        innocent, spike = self._spikes.feed(whole.step, whole.mean_us)
        slow = None if innocent else self._level.feed(whole.mean_us, self._asked_level("degradation", whole.event_time_us))
        if slow is not None:
            return self._ask("degradation", whole, slow, view)
        # Spikes on top of a level that has been asked about are its noise.
        if spike is not None and not self._level.slow:
            return self._ask("spike", whole, spike, view)
        return self._scheduled(whole, view) if not innocent else None

    def _scheduled(self, whole: JobStep, view: JobView | None) -> ProfileRequest | None:
        """The healthy profile that may be due after an iteration without a finding."""
        schedule, now_us = self._schedule, whole.event_time_us
        if not self._level.settled:
            schedule.trouble()
            return None
        if not schedule.quiet(now_us) or self._spikes.pending(whole.step):
            return None
        if self._asked_level("scheduled", now_us) is not None or not self._affords(1 + RESERVED_REQUESTS):
            return None
        mean = self._level.mean_us
        return self._emit("scheduled", whole.step, now_us, schedule.finding(mean), view, mean, schedule.slot(now_us))

    def _affords(self, requests: int) -> bool:
        """Whether the budget of profiled steps has room for so many requests."""
        budget = max(self._settings.budget_min_steps, int(self._settings.budget_share * self._steps))
        wanted = self._settings.profile_steps or -(-self._settings.profile_ms * 1_000 // max(1, int(self._level.mean_us)))
        return self._profiled + requests * wanted <= budget

    def _ask(self, reason: Reason, whole: JobStep, finding: Finding, view: JobView | None) -> ProfileRequest | None:
        mean = self._level.mean_us
        worse = reason == "degradation" and self._level.worse
        cooling = not worse and self._asked_level(reason, whole.event_time_us) is not None
        self._schedule.trouble()
        if cooling or not self._affords(1):
            self._counters.held_back += 1
            return None
        figures = {**finding.figures, "step": float(whole.step), "max_us": float(whole.max_us), "max_rank": float(whole.max_rank)}
        # Whose iteration is the longest says nothing: all wait for the slow one, which the verdict names.
        longest = f"the longest {whole.max_us / 1e3:.1f} ms"
        detail = f"{finding.detail}; at step {whole.step}, {whole.ranks} ranks, {longest}"
        if worse:
            detail += f"; more than {self._settings.cooldown_worse_ratio:g} times what was asked about before"
        if reason == "degradation" and self._level.asked():
            detail += "; asked for the last time about this level, which counts as usual from here on"
        return self._emit(reason, whole.step, whole.event_time_us, Finding(figures, detail), view, mean)

    def _blocked(self, view: JobView | None) -> ProfileRequest | None:
        idle = self._merge.idleness()
        if idle is None or idle.idle_us < self._settings.blocked_floor_ms * 1_000:
            return None
        mean = self._level.mean_us
        after = blocked_after_us(self._settings, mean, started=mean > 0)
        when = idle.since_us + after
        if idle.idle_us < after or self._asked_level("blocked", when) is not None:
            return None
        where = f", rank {idle.rank} for longest, its last event was {idle.last_event}" if idle.last_event else ""
        finding = Finding(
            figures={"idle_us": float(after), "threshold_us": float(after), "baseline_us": mean, "step": float(self._last_step)},
            detail=(
                f"no rank has done anything for {after / 1e6:.1f} s after step {self._last_step} "
                f"(mean iteration {mean / 1e3:.1f} ms){where}"
            ),
        )
        return self._emit("blocked", self._last_step, when, finding, view, mean)

    def _emit(
        self,
        reason: Reason,
        step: int,
        event_time_us: int,
        finding: Finding,
        view: JobView | None,
        mean_us: float,
        trigger: int | None = None,
    ) -> ProfileRequest | None:
        request = profile_request(
            job=self._who[0],
            run_id=self._who[1],
            world_size=self.shape[1],
            reason=reason,
            step=step,
            mean_us=mean_us,
            event_time_us=event_time_us,
            finding=finding,
            view=view,
            settings=self._settings,
            trigger=trigger,
        )
        if request.request in self._ids:
            return None
        self.note(request)
        return request

    def _asked_level(self, reason: Reason, now_us: int) -> float | None:
        """The worst level that requests holding *reason* back were about (0: about none); ``None`` if nothing holds it back."""
        if not self._issued:
            return None
        limit, weight = self._settings.cooldown_ms * 1_000, _WEIGHT[reason]
        return max((i.level_us for i in self._issued if i.weight >= weight and 0 <= now_us - i.at_us < limit), default=None)

    def _remember(self, request_id: str) -> bool:
        if request_id in self._ids:
            return False
        self._ids[request_id] = None
        if len(self._ids) > REQUESTS_REMEMBERED:
            self._ids.popitem(last=False)
        return True
