"""Bandwidth of a communicator's collectives by kind, size of the message and type of its elements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from eroica.producers.trace.collectives import Operation, bus_factor
from eroica.schemas.sketch import sketch_of
from eroica.schemas.summaries import Traffic

GBPS = 8e-3
"""Gb/s in a byte per µs."""
MAX_CLASSES = 64
"""Kinds × sizes × types kept for a communicator, those that took longest."""


def traffic(operations: Sequence[Operation]) -> list[Traffic]:
    """One entry for each kind, power of two of bytes, and type; ascending. A communicator's operations, in any order.

    Times are those of the executions and hold the wait for the last member, so that the mean rate is a lower bound of what the
    wires can do; the best execution is the closest to it.
    """
    classes: dict[tuple[str, int, str], list[Operation]] = defaultdict(list)
    for o in operations:
        classes[o.op, size_class(o.bytes), o.dtype].append(o)
    kept = sorted(classes, key=lambda k: (-sum(o.duration_us for o in classes[k]), k))[:MAX_CLASSES]
    return [_entry(*key, classes[key]) for key in sorted(kept)]


def size_class(size: int) -> int:
    """The least power of two that is not below *size* bytes; 0 where it is unknown."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def _entry(op: str, up_to: int, dtype: str, members: list[Operation]) -> Traffic:
    took = np.array([o.duration_us for o in members])
    size = np.array([float(o.bytes) for o in members])
    factor = np.array([bus_factor(o.op, o.size) for o in members])
    rate = np.divide(size * factor * GBPS, took, out=np.zeros(took.size), where=took > 0)
    total = float(took.sum())
    return Traffic(
        op=op,
        up_to_bytes=up_to,
        dtype=dtype,
        count=len(members),
        bytes=int(size.sum()),
        total_us=round(total, 1),
        max_us=round(float(took.max()), 1),
        var_us2=round(float(took.var()), 1),
        algorithm_gbps=round(float(size.sum()) * GBPS / total, 3) if total > 0 else 0.0,
        bus_gbps=round(float((size * factor).sum()) * GBPS / total, 3) if total > 0 else 0.0,
        best_bus_gbps=round(float(rate.max()), 3),
        sketch=sketch_of(took) if took.size > 1 else None,
    )
