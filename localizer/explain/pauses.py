"""Time lost on other ranks in other steps: by rank, and the pauses that were recorded there."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.history import with_growth
from eroica.localizer.causes.slow import slow_rows
from eroica.localizer.causes.spread import find_common_pauses, find_spread
from eroica.localizer.causes.whole import find_whole
from eroica.localizer.explain.registry import Explanation, Item, Unexplained, register


@register("eroica/spread", "time of a step lost to *")
def lost_time(item: Item) -> Explanation:
    """The rule once more, and what it looked at."""
    measures = item.measures
    found = [
        *find_spread(measures, slow_rows(measures)),
        *find_common_pauses(measures),
        *find_whole(measures),
        *with_growth(measures, []),
    ]
    printed = item.evidence
    again = [
        e for f in found for e in f.evidence if (e.rule, e.metric, e.subject) == (printed.rule, printed.metric, printed.subject)
    ]
    if not again:
        raise Unexplained("the recording shows no such loss", where=printed.subject[:100])
    own, frame = measures.own, item.frame
    late = np.maximum(own.own_us - own.usual_us, 0.0)
    columns = {
        "late in the worst step, ms": late.max(axis=1) / 1e3,
        "late in the mean step, ms": late.mean(axis=1) / 1e3,
    }
    for kind in sorted({what for _, what, *_ in frame.pauses}):
        total = np.zeros(frame.size)
        for row, what, _, total_us, _ in frame.pauses:
            total[row] += total_us if what == kind else 0.0
        columns[f"{kind} per step, ms"] = total / frame.steps_of / 1e3
    best = min(again, key=lambda e: abs(e.value - printed.value))
    return Explanation(
        "value: time of a step that would be given back if nobody were later than usual in the role in that step, or the time "
        "that such a pause takes on the median rank; expected: none; score: share of the lateness that lies with it",
        ("", *columns),
        item.by_rank(columns, peers=np.arange(frame.size)),
        best.value,
        best.expected,
        best.score,
    )
