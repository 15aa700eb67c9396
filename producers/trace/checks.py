"""What a trace must tell for a summary to say anything: kinds, names, times. What it lacks is named, not taken for nothing."""

from __future__ import annotations

import numpy as np

from eroica.producers.trace.columns import GPU_ANNOTATION, KERNEL, MEMCPY, MEMSET, OTHER, UNTOLD, Trace
from eroica.schemas.errors import InvalidInput

__all__ = ["check_told", "untold_note"]

ON_DEVICE = (KERNEL, MEMCPY, MEMSET, GPU_ANNOTATION)
EXPORT = "export it anew with torch.profiler's export_chrome_trace, or keep all fields of its events"


def check_told(trace: Trace) -> None:
    """Refuse a trace of which nothing can be said.

    :raises InvalidInput: no complete event, none with a duration, or none that tells its kind, its name or its time.
    """
    if len(trace) == 0:
        raise InvalidInput("the trace holds no event with a duration", do="check what the profiler recorded")
    timed = trace.dur_us > 0
    count = int(np.count_nonzero(timed))
    if count == 0:
        raise InvalidInput("the trace holds no event with a duration: 'dur' is missing or 0", do=EXPORT)
    kinds = np.bincount(trace.category[timed], minlength=UNTOLD + 1)
    if int(kinds[OTHER] + kinds[UNTOLD]) == count:
        missing = int(kinds[UNTOLD])
        why = "the field 'cat' is missing" if missing == count else "'cat' says nothing that a profiler of torch writes"
        raise InvalidInput(f"nothing of the trace can be classified: in all its {count} events {why}", do=EXPORT)
    # Without its device's work the job would look like one that runs on the CPU.
    if 2 * int(kinds[UNTOLD]) >= count and not kinds[list(ON_DEVICE)].any():
        why = f"in {int(kinds[UNTOLD])} of its {count} events the field 'cat' is missing, and no work of a device is told"
        raise InvalidInput(f"too little of the trace can be classified: {why}", do=EXPORT)
    if not any(trace.names):
        raise InvalidInput(
            f"nothing of the trace can be told apart: in all its {count} events the field 'name' is missing", do=EXPORT
        )
    if count > 1 and not trace.ts_us.any():
        raise InvalidInput(
            f"nothing of the trace has a place in time: in all its {count} events the field 'ts' is missing", do=EXPORT
        )


def untold_note(trace: Trace) -> list[str]:
    """How many events do not tell their kind, and so count as nothing."""
    untold = trace.category == UNTOLD
    if not untold.any():
        return []
    timed = trace.dur_us > 0
    missing = int((timed & untold).sum())
    if not missing:
        return []
    return [f"{missing} of {int(timed.sum())} events do not tell their kind (the field 'cat' is missing): they count as nothing"]
