"""Whose trace is left out of a comparison."""

from __future__ import annotations

import pytest

from eroica.offline.usable import usable
from eroica.schemas.summaries import FunctionPattern, Identity, Summary, SummaryError

pytestmark = pytest.mark.unit


def summary(rank: int, *categories: str, **figures: float) -> Summary:
    functions = [FunctionPattern(name=c, category=c, beta=0.5) for c in categories]  # type: ignore[arg-type]
    who = Identity(job="offline", run_id="offline", request="o", cls="all", rank=rank, world_size=4, host="h")
    return Summary(who=who, first_step=1, last_step=3, window_us=10, ended_at_us=10, functions=functions, figures=figures)


@pytest.mark.parametrize(
    ("odd", "left_out"),
    [
        (summary(3, "python", "collective"), True),
        (summary(3, "python", "collective", compute_share=0.039), False),
        (summary(3, "collective", "memory"), False),
    ],
)
def test_a_trace_without_work_of_the_device_is_left_out_and_one_with_little_of_it_is_not(odd: Summary, left_out: bool) -> None:
    found = usable([summary(r, "compute", "collective", compute_share=0.4) for r in range(3)] + [odd])
    assert isinstance(found[3], SummaryError) == left_out
    assert [isinstance(one, Summary) for one in found[:3]] == [True] * 3
