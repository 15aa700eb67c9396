"""A profile by hand: the same request that detect makes, far enough ahead for everybody."""

from __future__ import annotations

import msgspec
import pytest

from eroica.consumers.manual import Progress, plan_request, progress_of, silence
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import SchemaError, UsageError
from eroica.schemas.iterations import StepPartial
from eroica.schemas.jobs import JobAnnouncement, RankInfo
from eroica.schemas.settings import DetectSettings
from eroica.topology import JobView, merge_announcements

pytestmark = pytest.mark.unit

SETTINGS = DetectSettings(lead_ms=2_000, lead_steps=3)


def hosts(*, ended: bool = False) -> list[JobAnnouncement]:
    return [
        JobAnnouncement(
            job="j",
            run_id="1",
            host=host,
            world_size=4,
            ranks=[RankInfo(rank=r) for r in ranks],
            started_at_us=1,
            ended=ended,
        )
        for host, ranks in (("a", (0, 1)), ("b", (2, 3)))
    ]


def view(*, ended: bool = False) -> JobView:
    return merge_announcements(hosts(ended=ended))


def partial(first: int, means: list[float], *, run_id: str = "1", job: str = "j") -> StepPartial:
    n = len(means)
    return StepPartial(
        job=job,
        run_id=run_id,
        shard=0,
        ranks_per_shard=8,
        world_size=4,
        first_step=first,
        count=[4] * n,
        mean_us=means,
        max_us=[1] * n,
        max_rank=[0] * n,
        event_time_us=1,
    )


@pytest.mark.parametrize(
    ("progress", "start"),
    [
        (None, 0),
        (Progress(100, 50_000.0), 140),
        (Progress(100, 5_000_000.0), 103),
        (Progress(100, 0.0), 103),
    ],
)
def test_it_starts_ahead_of_every_rank(progress: Progress | None, start: int) -> None:
    request = plan_request(view(), progress, SETTINGS, now_us=7, steps=5)
    assert request.start_step == start
    assert (request.reason, request.steps, request.duration_ms, request.world_size) == ("manual", 5, 0, 4)
    assert request.classes == {"all": "0-3"}
    assert decode_as(ProfileRequest, encode(request)) == request


def test_two_requests_are_two_and_one_is_itself() -> None:
    one, again, later = (plan_request(view(), None, SETTINGS, now_us=at, steps=1) for at in (1, 1, 2))
    assert one == again
    assert one.request != later.request


def test_a_long_profile_moves_the_deadline() -> None:
    request = plan_request(view(), None, SETTINGS, now_us=1, duration_ms=30_000)
    assert request.deadline_ms == SETTINGS.deadline_ms + 30_000


@pytest.mark.parametrize(("steps", "duration"), [(0, 0), (1, 1), (-1, 5), (5, -1)])
def test_steps_or_seconds(steps: int, duration: int) -> None:
    with pytest.raises(UsageError, match="one of --steps and --seconds"):
        plan_request(view(), None, SETTINGS, now_us=1, steps=steps, duration_ms=duration)


def test_a_job_that_has_ended_is_not_profiled() -> None:
    with pytest.raises(UsageError, match="has ended"):
        plan_request(view(ended=True), None, SETTINGS, now_us=1, steps=1)


def test_progress_is_that_of_this_launch() -> None:
    partials = [
        partial(0, [9e9] * 5),
        partial(80, [40_000.0] * 20),
        partial(900, [1.0], run_id="0"),
        partial(900, [1.0], job="x"),
    ]
    assert progress_of(partials, view()) == Progress(99, 40_000.0)
    assert progress_of([], view()) is None


def test_a_profile_that_nobody_would_serve_is_not_asked_for() -> None:
    with pytest.raises(SchemaError, match="too long"):
        plan_request(view(), None, SETTINGS, now_us=1, steps=10**6)


MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("spoke", "says"),
    [
        ({"a": 100, "b": 100}, ""),
        ({"a": 98, "b": 100}, ""),
        ({"a": 97, "b": 100}, "1 of 2 hosts (a) last announced the job 3 min ago or more, and should every 60 s"),
        ({"a": 40, "b": 97}, "2 of 2 hosts (a, b) last announced the job 3 min ago or more"),
        ({"a": 0, "b": 100}, ""),
    ],
    ids=["all speak", "on the edge", "one is silent", "all are silent", "of one it is not known"],
)
def test_hosts_that_are_silent_are_said(spoke: dict[str, int], says: str) -> None:
    announced = [msgspec.structs.replace(one, announced_at_us=spoke[one.host] * MINUTE) for one in hosts()]
    old = [msgspec.structs.replace(one, run_id="0", announced_at_us=1) for one in hosts()]
    said = silence([*old, *announced], view(), now_us=100 * MINUTE, interval_ms=60_000)
    assert says in said
    assert bool(said) is bool(says)


def test_a_host_that_has_ended_is_not_silent() -> None:
    one, other = (msgspec.structs.replace(a, announced_at_us=1) for a in hosts())
    said = silence([msgspec.structs.replace(one, ended=True), other], view(), now_us=100 * MINUTE, interval_ms=60_000)
    assert "1 of 2 hosts (b) last announced the job 99 min ago" in said
