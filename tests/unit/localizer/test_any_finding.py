"""Whatever a rule set finds, and whatever stands in a frame: a small verdict comes out, and its evidence can be made again."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from gallery import scene
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eroica.localizer.actions import Advice
from eroica.localizer.explain import explain_verdict
from eroica.localizer.frame import Readings
from eroica.localizer.judged import Judged
from eroica.localizer.judgement import Finding, Judgement
from eroica.localizer.verdict import make_verdict
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.topics import MAX_VERDICT_BYTES
from eroica.schemas.verdicts import CauseClass, Verdict

pytestmark = pytest.mark.unit

SCENES = ["slow-gpu", "nic-down", "slow-storage", "hang", "bad-delivery"]
NAMES = ["gc", "pin_memory < x.py", "", "(" * 50, "x" * 5_000, "\x1b[31mred", "recv_into"]
READINGS = ["sm_clock[MHz]", "mlx5_0:nic_link[Gb/s]", "[", "]:[", "", ":", "x" * 5_000, "cpu_busy"]
findings = st.builds(
    Finding,
    cls=st.sampled_from(get_args(CauseClass)),
    ranks=st.lists(st.integers(0, 80), max_size=70, unique=True).map(lambda r: np.array(sorted(r), dtype=np.int64)),
    explains=st.floats(0, 1),
    confidence=st.sampled_from([0.1, 0.5, 1.0]),
    functions=st.lists(st.sampled_from(NAMES), max_size=3),
    hosts=st.lists(st.sampled_from(["node-0", "node-3", "elsewhere"]), max_size=2, unique=True),
    fault=st.sampled_from([None, None, "pin_memory", "no_such_fault"]),
    links=st.lists(st.just("node-0|node-3"), max_size=1),
    stages=st.lists(st.integers(0, 5), max_size=2, unique=True),
)
metrics = st.lists(
    st.tuples(
        st.integers(0, 63), st.sampled_from(READINGS), st.sampled_from([0.0, -1.0, 1e300, float("nan"), float("inf"), 400.0])
    ),
    max_size=30,
).map(sorted)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SCENES), st.lists(findings, max_size=4), metrics)
def test_a_verdict_comes_out(name: str, found: list[Finding], readings: list[tuple[int, str, float]]) -> None:
    frame, _ = scene(name)
    if frame.size:
        readings = [entry for entry in readings if entry[0] < frame.size]
        frame = replace(frame, metrics=Readings.of(readings)) if readings else frame
    wanted, advice = LocalizeSettings(), Advice()
    judgement = Judgement(findings=found, step_us=1e5, ideal_step_us=5e4)
    verdict = make_verdict(frame, judgement, wanted, advice)
    raw = encode(verdict)
    assert len(raw) <= MAX_VERDICT_BYTES
    assert decode_as(Verdict, raw) == verdict
    for cause in verdict.causes:
        assert cause.isolation_group.kind
        assert cause.isolation_group.ranks
        assert cause.action.remedies
        assert cause.fault is None or cause.fault in ("pin_memory", "no_such_fault") or cause.evidence
    judged = Judged(frame, None, judgement, advice, wanted, verdict)
    for item in explain_verdict(judged):
        assert item.explanation is None or item.explanation.agrees(item.evidence)
        assert item.explanation is not None or item.why_not
