"""What is known of the healthy past of all jobs: bounded, and the same whatever the order in which it was heard."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np

from eroica.localizer.frame import Frame
from eroica.localizer.own import Past
from eroica.localizer.past import MAX_FUNCTIONS, MAX_RANKS, MAX_TRANSFERS, fingerprint
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import SchemaError
from eroica.schemas.memory import Baseline
from eroica.schemas.ranks import RankRanges, parse_ranks
from eroica.schemas.topics import message_key

MAX_PROFILES = 10_000
"""Profiles of all jobs together."""
MAX_FIGURES = 5_000_000
"""Their figures together, some 100 bytes each with their names."""
MAX_AGE_US = 14 * 24 * 3_600_000_000
"""An older profile is no longer held against a request, by event time: the job has become another one."""
MAX_US = 1e15
"""A longer time is a slip, µs."""
PLACE = "baselines"
"""Where a verdict's inputs name the request whose profile it was held against."""

Recall = Callable[[ProfileRequest], str | None]
"""Which profile a request is to be held against, by the request that it is of: empty for none, ``None`` for the latest."""


def latest(_: ProfileRequest) -> str | None:
    """Where nothing was decided before."""
    return None


class HealthyPast:
    """Healthy profiles by job and request. Repetitions and order change nothing.

    Beyond the bounds the job with most figures loses its oldest profile, so that no job takes another's past.
    """

    def __init__(self, max_profiles: int = MAX_PROFILES, max_figures: int = MAX_FIGURES) -> None:
        self._max_profiles, self._max_figures = max_profiles, max_figures
        self._jobs: OrderedDict[str, dict[str, dict[str, Baseline]]] = OrderedDict()
        self._figures: dict[str, int] = {}
        self._all_figures = self._profiles = 0
        self.refused = 0
        """Messages that contradict themselves."""

    def add(self, baseline: Baseline) -> bool:
        """Take in one class of a profile; false if it cannot be."""
        if not _possible(baseline):
            self.refused += 1
            return False
        profiles = self._jobs.setdefault(baseline.job, {})
        self._jobs.move_to_end(baseline.job)
        if baseline.request not in profiles:
            profiles[baseline.request] = {}
            self._profiles += 1
        if baseline.cls not in profiles[baseline.request]:
            profiles[baseline.request][baseline.cls] = baseline
            self._count(baseline.job, _figures(baseline))
        while self._profiles > self._max_profiles or (self._all_figures > self._max_figures and self._profiles > 1):
            self._drop_one()
        return True

    def before(self, frame: Frame, wanted: str | None = None) -> Past | None:
        """The past that *frame* is held against.

        :param wanted: the request of the profile; empty for none, ``None`` for the latest one from before the request of *frame*.
            One that is not known counts as ``None``.

        Only whole profiles of the same fingerprint count.
        """
        request = frame.request
        profiles = self._jobs.get(request.job, {})
        if wanted == "" or not profiles:
            return None
        chosen = [wanted] if wanted in profiles else self._older(profiles, request)
        digest = fingerprint(frame) if chosen else ""
        for name in chosen:
            classes = profiles[name] if name is not None else {}
            if set(classes) == set(request.classes) and all(b.fingerprint == digest for b in classes.values()):
                return _past(name or "", classes)
        return None

    def forget(self, key: str) -> None:
        """Somebody deleted the messages of *key* (job/class) from the topic: profiles without that class are whole no longer."""
        for job, profiles in list(self._jobs.items()):
            for request, classes in list(profiles.items()):
                for cls in [cls for cls in classes if message_key(job, cls) == key]:
                    self._count(job, -_figures(classes.pop(cls)))
                if not classes:
                    self._remove(job, request)

    def has(self, request: ProfileRequest) -> bool:
        """Whether the whole profile of *request* is here."""
        return set(self._jobs.get(request.job, {}).get(request.request, ())) == set(request.classes)

    def knows(self, job: str, request: str) -> bool:
        """Whether the profile of *request* is here, or a part of it."""
        return request in self._jobs.get(job, {})

    def _older(self, profiles: dict[str, dict[str, Baseline]], request: ProfileRequest) -> list[str | None]:
        found = [(_time(classes), name) for name, classes in profiles.items() if name != request.request]
        fresh = [(at, name) for at, name in found if 0 < request.issued_at_us - at <= MAX_AGE_US]
        return [name for _, name in sorted(fresh, reverse=True)]

    def _count(self, job: str, figures: int) -> None:
        self._figures[job] = self._figures.get(job, 0) + figures
        self._all_figures += figures

    def _drop_one(self) -> None:
        job = max(self._jobs, key=lambda name: (self._figures[name], len(self._jobs[name])))
        profiles = self._jobs[job]
        oldest = min(profiles, key=lambda name: (_time(profiles[name]), name))
        self._count(job, -sum(map(_figures, profiles[oldest].values())))
        self._remove(job, oldest)

    def _remove(self, job: str, request: str) -> None:
        """A profile that is counted no longer."""
        del self._jobs[job][request]
        self._profiles -= 1
        if not self._jobs[job]:
            del self._jobs[job], self._figures[job]


def place_of(past: Past | None) -> dict[str, str]:
    """How a verdict's inputs name *past*."""
    return {} if past is None else {PLACE: past.request}


def _past(name: str, classes: dict[str, Baseline]) -> Past:
    mine = [classes[cls] for cls in sorted(classes)]
    return Past(
        request=name,
        event_time_us=_time(classes),
        own_us={b.cls: b.own_us for b in mine},
        step_us=float(np.mean([b.step_us for b in mine])),
        once_us={b.cls: b.once_us for b in mine},
        spread_us={b.cls: b.spread_us for b in mine},
        own_by_rank={rank: us for b in mine for rank, us in zip(parse_ranks(b.ranks).tolist(), b.own_by_rank_us, strict=True)},
        busy_us=max(b.busy_us for b in mine),
        lost_us=max(b.lost_us for b in mine),
        functions={b.cls: b.functions for b in mine},
        transfers=mine[0].transfers,
    )


def _time(classes: dict[str, Baseline]) -> int:
    return max(b.event_time_us for b in classes.values())


def _figures(baseline: Baseline) -> int:
    return 10 + len(baseline.own_by_rank_us) + len(baseline.functions) + len(baseline.transfers)


def _possible(baseline: Baseline) -> bool:
    """Whether the message keeps what :class:`Baseline` promises; the topic may be written by others."""
    b = baseline
    if len(b.own_by_rank_us) > MAX_RANKS or len(b.functions) > MAX_FUNCTIONS or len(b.transfers) > MAX_TRANSFERS:
        return False
    try:
        ranks = len(RankRanges.parse(b.ranks))
    except SchemaError:
        return False
    single = (b.step_us, b.own_us, b.busy_us, b.lost_us)
    times: Iterable[Iterable[float]] = (single, b.own_by_rank_us, b.functions.values(), b.transfers.values())
    return ranks == len(b.own_by_rank_us) and b.step_us > 0 and all(abs(us) < MAX_US for column in times for us in column)
