"""A verdict of 100,000 ranks is small, whatever is in it, and says what was cut."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np
import pytest

from eroica.localizer.build import build_frame
from eroica.localizer.fit import fit
from eroica.localizer.frame import Frame
from eroica.localizer.isolation import Groups
from eroica.localizer.judgement import Finding, Judgement, name_rows
from eroica.localizer.verdict import make_verdict, whole_verdict
from eroica.schemas.codec import decode_as, encode, encoded_size
from eroica.schemas.control import ProfileRequest
from eroica.schemas.groups import CommunicatorName, GroupChunk, MetricColumns, Worker
from eroica.schemas.ranks import format_ranks, parse_ranks
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.topics import MAX_VERDICT_BYTES
from eroica.schemas.verdicts import CauseClass, Evidence, Verdict

pytestmark = pytest.mark.unit

WORLD = 100_000
ODD, EVEN = format_ranks(range(1, WORLD, 2)), format_ranks(range(0, WORLD, 2))
LONG = "x" * 250


@lru_cache(maxsize=1)
def frame() -> Frame:
    """Every third rank is missing, hosts have the longest names that there are, groups and offsets are full of gaps."""
    request = ProfileRequest(
        request="r", job="job", run_id="run", reason="manual", steps=5, world_size=WORLD, classes={"odd": ODD, "even": EVEN},
        issued_at_us=1, deadline_ms=1,
    )  # fmt: skip
    chunks = []
    for at, (name, ranks) in enumerate(request.classes.items()):
        here = [r for r in parse_ranks(ranks).tolist() if r % 3]
        chunks.append(
            GroupChunk(
                job="job", run_id="run", request=request, cls=name, classes=["even", "odd"], chunk=0, chunks=1,
                closed_by="deadline", expected=ranks, received=format_ranks(here),
                errors={str(r): LONG for r in parse_ranks(ranks).tolist()[:2_000]},
                inputs={f"summaries/{p}": ",".join(str(i) for i in range(p, 40_000, 3)) for p in range(16)},
                workers=[
                    Worker(rank=r, host=f"{r // 8:06d}{LONG}", first_step=0, last_step=4, window_us=5e6, late_by_steps=r % 2)
                    for r in here
                ],
                communicators=[CommunicatorName(name=LONG, kind=LONG, ranks=ranks, size=WORLD // 2)],
                metrics=MetricColumns(
                    row=list(range(len(here))), name=["sm_clock[MHz]"] * len(here), mean=[1000.0 + 900 * at] * len(here)
                ),
            )
        )  # fmt: skip
    return build_frame(chunks)


def finding(ranks: str, cls: CauseClass = "worker", evidence: int = 40) -> Finding:
    made = frame()
    suspects = parse_ranks(ranks)
    peers = name_rows(made, np.flatnonzero(~np.isin(made.ranks, suspects)))
    item = Evidence(
        kind="function", metric=LONG, subject=f"ranks {ranks}", value=1.0, unit="ms", expected=0.5, score=2.0, rule="r",
        compared_with=f"ranks {peers}",
    )  # fmt: skip
    return Finding(
        cls, suspects, explains=0.5, confidence=0.9, functions=[LONG * 20] * 5, evidence=[item] * evidence,
        hosts=sorted({made.host_of_rank[r] for r in suspects.tolist() if r in made.host_of_rank}),
    )  # fmt: skip


def judgement(case: str) -> Judgement:
    findings = {
        "all odd ranks": lambda: [finding(ODD)],
        "all odd, then all even": lambda: [finding(ODD), finding(EVEN)],
        "a rank": lambda: [finding("4711", evidence=2)],
        "thirty causes": lambda: [finding(str(r)) for r in range(1, 60, 2)],
        "a class of nobody": lambda: [finding("", "whole_job")],
        "nobody": list,
    }[case]()
    waiters = np.arange(0, frame().size, 2)
    return Judgement(findings=findings, waiters=waiters, wait_share=0.5, step_us=1e6, notes=[LONG * 40] * 60)


@pytest.mark.parametrize(
    "case", ["all odd ranks", "all odd, then all even", "a rank", "thirty causes", "a class of nobody", "nobody"]
)
def test_the_worst_cases_fit(case: str) -> None:
    made, judged, settings = frame(), judgement(case), LocalizeSettings()
    whole, small = whole_verdict(made, judged, settings), make_verdict(made, judged, settings)
    assert encoded_size(whole) > MAX_VERDICT_BYTES
    raw = encode(small)
    assert len(raw) <= MAX_VERDICT_BYTES
    assert decode_as(Verdict, raw) == small
    assert (small.status, small.verdict_id) == (whole.status, whole.verdict_id)
    assert [c.class_ for c in small.causes] == [c.class_ for c in whole.causes][: len(small.causes)]
    for one, other in zip(small.causes, whole.causes, strict=False):
        assert (one.class_, one.fault, one.action, one.explains) == (other.class_, other.fault, other.action, other.explains)
        kept, suspects = parse_ranks(one.suspects.ranks), parse_ranks(other.suspects.ranks)
        assert set(kept.tolist()) <= set(suspects.tolist())
        if kept.size < suspects.size:
            assert any(f"suspects.ranks names {kept.size} of {suspects.size} ranks" in n for n in small.coverage.notes)
        assert one.evidence, "evidence is cut, but not all of it"


def test_a_verdict_that_is_small_already_is_not_touched() -> None:
    small = make_verdict(frame(), judgement("a rank"), LocalizeSettings())
    assert fit(small) == small


def test_the_smallest_group_is_found_at_this_size() -> None:
    groups = Groups(frame())
    assert groups.smallest(np.array([4711])).kind == "host"
    assert groups.smallest(np.array([1, 99_997])).ranks == ODD
    assert groups.smallest(np.array([1, 2])).kind == "host"
    assert groups.smallest(np.array([1, 50_000])).kind == "world"
    assert groups.smallest(np.array([], dtype=np.int64), [frame().hosts[0]]).ranks == "1-2,4-5,7"
    assert groups.smallest(np.array([], dtype=np.int64)).kind == "world"


def test_a_job_with_a_name_of_any_length_still_fits() -> None:
    made = frame()
    verdict = msgspec.structs.replace(whole_verdict(made, judgement("all odd ranks"), LocalizeSettings()), headline=LONG * 400)
    assert len(encode(fit(verdict))) <= MAX_VERDICT_BYTES
