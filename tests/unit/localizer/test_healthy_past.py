"""A job's healthy past: which profile counts, which becomes one, and what may be lost for lack of room."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from scenes import Own, Scene, steady

from eroica.localizer.build import build_frame
from eroica.localizer.core import LocalizerCore
from eroica.localizer.past import baselines_of
from eroica.localizer.profiles import MAX_AGE_US, HealthyPast
from eroica.schemas.codec import encode
from eroica.schemas.groups import GroupChunk
from eroica.schemas.memory import Baseline
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Verdict

pytestmark = pytest.mark.unit

CLASSES = {"pp0": range(8), "pp1": range(8, 16)}
HOUR = 3_600_000_000
HEALTHY, SLOWER, ONE_SLOW = steady(50_000.0, {}), steady(80_000.0, {}), steady(50_000.0, {3: 1.8})


def asked(own: Own, request: str, at_us: int, reason: str = "degradation", **more: object) -> list[GroupChunk]:
    chunks = Scene(16, own, classes=CLASSES, request=request, issued_at_us=at_us, **more).chunks()  # type: ignore[arg-type]
    return [msgspec.structs.replace(c, request=msgspec.structs.replace(c.request, reason=reason)) for c in chunks]


def said(core: LocalizerCore, chunks: list[GroupChunk]) -> tuple[Verdict, list[Baseline]]:
    messages = [o.message for at, c in enumerate(chunks) for o in core.feed(c, InputRef("groups", 0, at))]
    [verdict] = [m for m in messages if isinstance(m, Verdict)]
    return verdict, [m for m in messages if isinstance(m, Baseline)]


def profile(request: str, at_us: int, own: Own = HEALTHY) -> list[Baseline]:
    return baselines_of(build_frame(asked(own, request, at_us)))


@pytest.mark.parametrize("reason", ["scheduled", "manual"])
def test_a_profile_that_nobody_complained_for_becomes_the_past_that_the_next_verdict_names(reason: str) -> None:
    core = LocalizerCore(LocalizeSettings())
    first, found = said(core, asked(HEALTHY, "req-h", HOUR, reason))
    assert (first.status, "baselines" in first.provenance.inputs) == ("no_fault_found", False)
    assert [b.cls for b in found] == ["pp0", "pp1"]
    later, none = said(core, asked(SLOWER, "req-l", 2 * HOUR))
    assert [c.class_ for c in later.causes] == ["whole_job"]
    assert later.provenance.inputs["baselines"] == "req-h"
    assert none == []


@pytest.mark.parametrize(
    ("name", "own", "reason", "past", "more"),
    [
        ("somebody complained", HEALTHY, "degradation", None, {}),
        ("a worker is slow", ONE_SLOW, "manual", None, {}),
        ("a worker is slow", ONE_SLOW, "scheduled", HEALTHY, {}),
        ("the whole job is slower than it was", SLOWER, "manual", HEALTHY, {}),
        ("the whole job is slower than it was", SLOWER, "scheduled", HEALTHY, {}),
        ("a class is missing", HEALTHY, "manual", None, {"absent": range(8, 16)}),
        ("too few answered", HEALTHY, "manual", None, {"absent": (1, 9)}),
    ],
)
def test_what_becomes_no_past(name: str, own: Own, reason: str, past: Own | None, more: dict[str, object]) -> None:
    core = LocalizerCore(LocalizeSettings())
    for baseline in profile("req-h", HOUR, past) if past else []:
        core.remember(baseline)
    assert said(core, asked(own, "req-m", 2 * HOUR, reason, **more))[1] == [], name


@pytest.mark.parametrize("rules", ["paper", "guide"])
def test_the_published_rules_leave_a_past_and_use_none(rules: str) -> None:
    core = LocalizerCore(LocalizeSettings(rules=rules))  # type: ignore[arg-type]
    assert len(said(core, asked(HEALTHY, "req-h", HOUR, "manual"))[1]) == 2
    assert "baselines" not in said(core, asked(SLOWER, "req-l", 2 * HOUR))[0].provenance.inputs


@pytest.mark.parametrize(
    ("recalled", "named", "classes"),
    [(None, "req-2", ["whole_job"]), ("req-1", "req-1", ["whole_job"]), ("", None, []), ("req-gone", "req-2", ["whole_job"])],
)
def test_a_request_may_be_held_against_what_was_decided_before(
    recalled: str | None, named: str | None, classes: list[str]
) -> None:
    core = LocalizerCore(LocalizeSettings(), recall=lambda _: recalled)
    for baseline in [*profile("req-1", HOUR), *profile("req-2", 2 * HOUR)]:
        core.remember(baseline)
    verdict = said(core, asked(SLOWER, "req-l", 3 * HOUR))[0]
    assert (verdict.provenance.inputs.get("baselines"), [c.class_ for c in verdict.causes]) == (named, classes)


def test_without_learning_what_is_found_decides_nothing() -> None:
    core = LocalizerCore(LocalizeSettings(), learn=False)
    assert len(said(core, asked(HEALTHY, "req-h", HOUR, "manual"))[1]) == 2
    assert said(core, asked(SLOWER, "req-l", 2 * HOUR))[0].causes == []


@pytest.mark.parametrize(
    ("name", "times", "at_us", "wanted"),
    [
        ("the latest before", (1, 2, 3), 2 * HOUR + 1, "req-2"),
        ("not one of the same moment", (1, 2, 3), 2 * HOUR, "req-1"),
        ("only later ones", (3,), 2 * HOUR, None),
        ("one that is too old", (1,), HOUR + MAX_AGE_US + 1, None),
        ("one that is just not too old", (1,), HOUR + MAX_AGE_US, "req-1"),
        ("none", (), HOUR, None),
    ],
)
def test_the_latest_profile_before_a_request_counts(name: str, times: tuple[int, ...], at_us: int, wanted: str | None) -> None:
    frame = build_frame(asked(HEALTHY, "req-x", at_us))
    messages = [b for hours in times for b in profile(f"req-{hours}", hours * HOUR)]
    for seed in range(5):
        past = HealthyPast()
        for baseline in random.Random(seed).sample(messages * 2, 2 * len(messages)):
            assert past.add(baseline)
        found = past.before(frame)
        assert (found.request if found else None) == wanted, name


def test_a_profile_that_is_torn_or_of_another_configuration_does_not_count() -> None:
    frame = build_frame(asked(HEALTHY, "req-x", 3 * HOUR))
    past = HealthyPast()
    past.add(profile("req-torn", 2 * HOUR)[0])
    assert past.before(frame) is None
    for baseline in profile("req-other", HOUR):
        past.add(msgspec.structs.replace(baseline, fingerprint="another"))
    assert past.before(frame) is None
    assert past.knows("job", "req-torn") and not past.knows("job", "req-x")
    whole = {name: asked(HEALTHY, name, HOUR)[0].request for name in ("req-torn", "req-other", "req-x")}
    assert [name for name, request in whole.items() if past.has(request)] == ["req-other"]


def test_what_was_deleted_from_the_topic_counts_no_longer() -> None:
    frame = build_frame(asked(HEALTHY, "req-x", 3 * HOUR))
    past = HealthyPast(max_profiles=3)
    for baseline in [*profile("req-1", HOUR), *(msgspec.structs.replace(b, job="another") for b in profile("req-1", HOUR))]:
        past.add(baseline)
    past.forget("job/pp9")
    assert past.before(frame)
    past.forget("job/pp0")
    assert past.before(frame) is None
    past.forget("job/pp1")
    assert not past.knows("job", "req-1") and past.knows("another", "req-1")
    for baseline in [*profile("req-2", HOUR), *profile("req-3", 2 * HOUR)]:
        past.add(baseline)
    assert past.before(frame) and past.knows("another", "req-1"), "there is room again for three"


@pytest.mark.parametrize(
    "fields",
    [
        {"ranks": "0-3"},
        {"ranks": "9-1"},
        {"own_by_rank_us": [1.0] * 9},
        {"own_by_rank_us": [float("nan")] * 8},
        {"step_us": 0.0},
        {"busy_us": 1e300},
        {"functions": {str(i): 1.0 for i in range(1_000)}},
        {"transfers": {"x": float("inf")}},
    ],
)
def test_a_message_that_contradicts_itself_is_left_out(fields: dict[str, object]) -> None:
    past = HealthyPast()
    good = profile("req-1", HOUR)[0]
    assert past.add(good) and not past.add(msgspec.structs.replace(good, request="req-2", **fields))
    assert past.refused == 1 and not past.knows("job", "req-2")


def test_a_job_that_floods_the_memory_loses_its_own_oldest_profiles() -> None:
    [one, _] = profile("req-1", HOUR)
    for limits in ({"max_profiles": 4}, {"max_figures": 4 * (10 + 8 + len(one.functions) + len(one.transfers))}):
        past = HealthyPast(**limits)
        past.add(msgspec.structs.replace(one, job="quiet"))
        for number in range(50):
            past.add(msgspec.structs.replace(one, job="loud", request=f"req-{number:02}", event_time_us=HOUR * number))
        assert past.knows("quiet", "req-1")
        assert [n for n in range(50) if past.knows("loud", f"req-{n:02}")] == [47, 48, 49]


def test_the_order_of_healthy_profiles_and_alarms_changes_no_byte_once_the_past_is_known() -> None:
    requests = [
        asked(HEALTHY, "req-h", HOUR, "scheduled"),
        asked(SLOWER, "req-l", 2 * HOUR),
        asked(HEALTHY, "req-k", 3 * HOUR, "manual"),
    ]
    found = set()
    for order in itertools.permutations(requests):
        core = LocalizerCore(LocalizeSettings(), learn=False)
        for baseline in [*profile("req-h", HOUR), *profile("req-k", 3 * HOUR)]:
            core.remember(baseline)
        found.add(tuple(sorted(encode(said(core, chunks)[0]) for chunks in order)))
    assert len(found) == 1
