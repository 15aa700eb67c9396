"""What mending some workers would give back of what mending all would: M_W and M_S of the OSDI '25 study of stragglers."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.measures import Measures
from eroica.localizer.frame import Ints

SLOWEST_SHARE = 0.03


def slowest_rows(measures: Measures) -> Ints:
    """The slowest 3 % of the workers, at least one: those with most own time above their role's."""
    own = measures.own
    count = max(1, round(SLOWEST_SHARE * measures.frame.size))
    return np.sort(np.argsort(-own.excess_us, kind="stable")[:count])


def last_stage(measures: Measures) -> Ints:
    """Workers of the last pipeline stage."""
    return np.flatnonzero(measures.model.stage == measures.model.stages - 1)


def recovered_by(measures: Measures, rows: Ints) -> float | None:
    """Share of the time lost, against a step in which every worker takes the mean own time, that *rows* at the mean give back.

    ``None`` where nothing is lost, or no step was profiled by all.
    """
    own, model = measures.own, measures.model
    if own.steps.size == 0 or measures.frame.size < 2:
        return None
    lost = measures.lost_to_mean_us
    if lost <= 0.005 * measures.step_us:
        return None
    mended = own.parts_us.copy()
    mended[:, rows] = measures.mean_parts_us[:, rows]
    return model.gain_us(own.parts_us, mended) / lost
